"""Verification of guests' results: expected values are computed while a guest works, and compared at its end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from node_agent.drivers.protocol import DriverEvent
from node_agent.programs.catalogue import find_program
from node_agent.programs.expected import expected_checksum
from node_agent.programs.task import Task
from testbed.bus.messages import GuestSpec
from testbed.errors import FailureCode

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """A task's expected checksum, or the reason why it is unknown."""

    checksum: str = ""
    unknown: str = ""


def work_out(task: Task, given_up: Callable[[], bool]) -> Answer:
    """Compute a task's expected checksum; empty as soon as `given_up()` is true. Blocks."""
    try:
        program = find_program(task.name)
        if program.expected is None:
            return Answer(unknown=f"program {task.name!r} has no `expected` function")
        return Answer(expected_checksum(task, given_up, program.expected))
    except Exception as error:  # noqa: BLE001  # a mistake in a plug-in must not end the agent
        _log.exception("expected checksum of %s", task.guest)
        return Answer(unknown=f"program {task.name!r}: {type(error).__name__}: {error}")


class Verifier:
    """Checksums of the guests of one node."""

    def __init__(self) -> None:
        self._expected: dict[str, tuple[asyncio.Task[Answer], threading.Event]] = {}

    def begin(self, spec: GuestSpec) -> None:
        """Compute a guest's expected checksum in the background."""
        self.forget(spec.guest)
        task = Task.from_spec(msgspec.to_builtins(spec))
        given_up = threading.Event()
        computing = asyncio.create_task(
            asyncio.to_thread(work_out, task, given_up.is_set), name=f"expected checksum of {spec.guest}"
        )
        self._expected[spec.guest] = computing, given_up

    def forget(self, guest: str) -> None:
        """Abort the computation for a guest that has left."""
        if guest in self._expected:
            self._expected.pop(guest)[1].set()

    def close(self) -> None:
        """Abort all computations."""
        for guest in list(self._expected):
            self.forget(guest)

    def take(self, driver_event: DriverEvent) -> asyncio.Task[Answer] | None:
        """Return the pending expected checksum of a guest that is done; None for events that need no check."""
        if driver_event.event != "done" or driver_event.guest not in self._expected:
            return None
        return self._expected.pop(driver_event.guest)[0]

    async def check(self, driver_event: DriverEvent) -> DriverEvent:
        """Return the event with its result compared, as soon as the expected checksum is known."""
        answer = self.take(driver_event)
        return driver_event if answer is None else compare(driver_event, await answer)


def compare(driver_event: DriverEvent, expected: Answer) -> DriverEvent:
    """Return the end of a guest, marked `verified` if its checksum is right, as a failure if it is wrong.

    If the expected checksum is unknown it is marked as not `verified`, with the reason as `unverified`.
    """
    found = driver_event.detail["checksum"]
    if expected.unknown:
        return replace(driver_event, detail={**driver_event.detail, "verified": False, "unverified": expected.unknown})
    if found == expected.checksum:
        return replace(driver_event, detail={**driver_event.detail, "verified": True})
    reason = f"it is done with checksum {found}: expected {expected.checksum}"
    return replace(driver_event, event="failed", detail={"reason": reason, "code": FailureCode.WRONG_RESULT.value})
