"""Commands to the guests of a job, to one node or to several in parallel: the elements of operations on whole jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

from testbed.bus.messages import AnyAction, GuestSpec, Release
from testbed.bus.no_room import NoRoom, no_room_in
from testbed.bus.requests import CommandFailedError
from testbed.errors import RunError
from testbed.lab.replies import Nodes, ask
from testbed.scenario.schema import DeadlinesTable

T = TypeVar("T")


class NoRoomThereError(RunError):
    """A node has no disk space for an image. No guest was saved or moved; a running job continues."""

    def __init__(self, node: int, room: NoRoom, reason: str) -> None:
        self.node = node
        self.room = room
        super().__init__(reason)


class JobCommands:
    """Commands with the deadlines of a scenario."""

    def __init__(self, nodes: Nodes, deadlines: DeadlinesTable) -> None:
        self.nodes = nodes
        self.deadlines = deadlines

    async def ask(self, node: int, action: AnyAction, kind: type[T], deadline_s: float) -> T:
        """Send a command to a node; raises `NoRoomThereError` if the node has no disk space for an image."""
        try:
            return await ask(self.nodes, node, action, kind, deadline_s)
        except CommandFailedError as error:
            room = None if error.reply is None else no_room_in(error.reply.result)
            if room is None:
                raise
            raise NoRoomThereError(node, room, str(error)) from error

    def bulk_s(self, memory_mib: int) -> float:
        """Return the deadline of a command that reads or writes a guest's memory, in seconds."""
        return self.deadlines.command_s + memory_mib / self.deadlines.slowest_mib_per_s

    async def attempt(self, orders: Iterable[tuple[int, AnyAction]]) -> list[dict[str, object] | BaseException]:
        """Send commands, best effort; a failure does not stop the others, and is returned in place of the result."""
        calls = (self.nodes.call(node, order, self.deadlines.command_s) for node, order in orders)
        return await asyncio.gather(*calls, return_exceptions=True)

    async def release(self, placed: Sequence[tuple[int, GuestSpec]]) -> None:
        """Release guests, best effort; a failure does not stop the release of the others."""
        await self.attempt((node, release_of(spec)) for node, spec in placed)


def release_of(spec: GuestSpec) -> Release:
    """Return the command that lets a held guest continue."""
    return Release(guest=spec.guest, generation=spec.generation)


async def in_parallel(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Run commands in parallel; the first failure cancels the others, waits for them, and is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def skew_s(wall_ns: Sequence[int]) -> float:
    """Return the time between the first and the last guest's action, in seconds, by the clocks of their nodes."""
    return (max(wall_ns) - min(wall_ns)) / 1e9
