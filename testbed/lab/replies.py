"""Reads the replies of nodes to commands with types and bounds; an error has the node and the value."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Protocol, TypeVar

import msgspec

from testbed.bus.guest_details import GuestReport
from testbed.bus.messages import AnyAction, NodeFacts
from testbed.bus.numbers import Count
from testbed.bus.suspicious_acts import ActKind
from testbed.bus.telemetry import GuestSample
from testbed.errors import RunError, printable, shown

_SHOWN_CHARS = 80
_PLACE = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]")
T = TypeVar("T")


class Nodes(Protocol):
    """The fleet's interface for operations; it calls `on_mpi_barrier` and `on_guest_event` with node and event."""

    on_guest_event: Callable[[int, GuestReport], None]
    on_mpi_barrier: Callable[[int, GuestReport], None]

    async def call(self, node: int, action: AnyAction, deadline_s: float) -> dict[str, object]:
        """Send a command to one node, and return the result."""

    def facts(self, node: int) -> NodeFacts:
        """Facts of one node."""

    def name(self, node: int) -> str:
        """Name of one node."""

    def suspect(self, node: int, kind: ActKind, what: object) -> None:
        """Record a suspicious act of one node."""


class ReplyError(RunError):
    """A node's reply to a command is malformed or implausible.

    `path` is the part of the reply, `found` its value, and `expected` a text about valid values.
    """

    def __init__(self, node: str, action: AnyAction, path: str, found: object, expected: str) -> None:
        self.node = node
        self.action = action
        self.path = path
        self.found = found
        self.expected = expected
        says = f"says {path} =" if path else "is"
        tag = action.__struct_config__.tag
        super().__init__(f"node {node}: its reply to {tag} {says} {shown(found, _SHOWN_CHARS)}: {expected}")


class Guests(msgspec.Struct, frozen=True):
    """The reply to `ListGuests`: the guests of a node, the names of its images, and a reading of its clock."""

    guests: list[GuestSample]
    images: list[str] = []
    clock: Annotated[str, msgspec.Meta(max_length=64)] = ""
    mono_ns: Count = 0


async def ask(nodes: Nodes, node: int, action: AnyAction, kind: type[T], deadline_s: float) -> T:
    """Send a command to a node and return the result as `kind`; raises `ReplyError`, or the error of the command."""
    reply = await nodes.call(node, action, deadline_s)
    try:
        return read_reply(nodes.name(node), action, reply, kind)
    except ReplyError as error:
        nodes.suspect(node, ActKind.FALSE_REPORT, error)
        raise


def read_reply(node: str, action: AnyAction, reply: object, kind: type[T]) -> T:
    """Convert a node's reply to a command to `kind`, or raise `ReplyError`."""
    try:
        return msgspec.convert(reply, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        place = _PLACE.fullmatch(str(error))
        what, path = (place["what"], place["path"] or "") if place is not None else (str(error), "")
        path, found = _follow(reply, path)
        raise ReplyError(node, action, path, found, printable(what[:1].lower() + what[1:], _SHOWN_CHARS)) from error


def _follow(reply: object, path: str) -> tuple[str, object]:
    """Return the resolvable prefix of a path in a reply, as msgspec writes paths, and the part of the reply there."""
    at = 0
    while step := _STEP.match(path, at):
        if step["name"] is not None and isinstance(reply, dict) and step["name"] in reply:
            reply = reply[step["name"]]
        elif step["index"] is not None and isinstance(reply, list) and int(step["index"]) < len(reply):
            reply = reply[int(step["index"])]
        else:
            break
        at = step.end()
    return path[:at].removeprefix("."), reply
