"""Refusal of a save for lack of disk space: an error in the agent, and data in the reply to the controller."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from testbed.bus.messages import Value
from testbed.bus.numbers import DiskSpace
from testbed.errors import TestbedError

_KEY = "no_room"


class NoRoom(Value, frozen=True):
    """The space that images need on a node, and the free space, in MiB."""

    needed_mib: DiskSpace
    free_mib: DiskSpace


class NoRoomError(TestbedError):
    """An image does not fit on its node, and was not written; a repeated command fails until space was freed."""

    def __init__(self, image: str, where: str, needed_mib: int, free_mib: int) -> None:
        self.image = image
        self.where = where
        self.room = NoRoom(needed_mib=needed_mib, free_mib=free_mib)
        super().__init__(f"no room for image {image}: {needed_mib} MiB needed, {free_mib} MiB free in {where}")

    def result(self) -> dict[str, object]:
        """Return the `result` of the reply to the command."""
        return {_KEY: msgspec.to_builtins(self.room)}


def no_room_in(result: Mapping[str, object]) -> NoRoom | None:
    """Return the refusal in the result of a failed command; None if it failed for another reason."""
    try:
        return msgspec.convert(result[_KEY], NoRoom)
    except (KeyError, msgspec.ValidationError, OverflowError):
        return None
