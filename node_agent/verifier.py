"""Verification of guests' results: expected values are computed while a guest works, and compared at its end.

The expected value of long work takes seconds of CPU time, on a node that is measured. So its computation uses a small
fraction of a core until the guest is done.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec

from node_agent.drivers.protocol import DriverEvent
from node_agent.programs.catalogue import find_program
from node_agent.programs.expected import expected_checksum
from node_agent.programs.task import Task
from testbed.bus.messages import GuestSpec
from testbed.errors import FailureCode

CORE_FRAC = 0.05  # of a core, for the computation of one guest
_MOST_GUESTS = 4096  # each has a thread of its own: a resting thread must not delay other guests or the agent
_SLICE_S = 0.001  # CPU time between two rests
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


class Pace:
    """Limits a computation that polls `given_up` to `CORE_FRAC` of a core, until `want` lifts the limit."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._is_given_up = False
        self._rested_s: float | None = None  # CPU time of the computing thread at its last rest

    def want(self) -> None:
        """Let the computation end as soon as possible."""
        self._wanted.set()

    def give_up(self) -> None:
        """Let the computation end without an answer."""
        self._is_given_up = True
        self._wanted.set()

    def given_up(self) -> bool:
        """Return whether to end without an answer; rest before, if it has used more CPU time than it should."""
        now_s = time.thread_time()
        if self._rested_s is None:
            self._rested_s = now_s
        used_s = now_s - self._rested_s
        if used_s >= _SLICE_S and not self._wanted.is_set():
            self._wanted.wait(used_s * (1.0 / CORE_FRAC - 1.0))
            self._rested_s = time.thread_time()
        return self._is_given_up


class Verifier:
    """Checksums of the guests of one node."""

    def __init__(self) -> None:
        self._expected: dict[str, tuple[asyncio.Future[Answer], Pace]] = {}
        self._threads = ThreadPoolExecutor(_MOST_GUESTS, thread_name_prefix="expected checksum")

    def begin(self, spec: GuestSpec) -> None:
        """Compute a guest's expected checksum in the background."""
        self.forget(spec.guest)
        task = Task.from_spec(msgspec.to_builtins(spec))
        pace = Pace()
        computing = asyncio.get_running_loop().run_in_executor(self._threads, work_out, task, pace.given_up)
        self._expected[spec.guest] = computing, pace

    def forget(self, guest: str) -> None:
        """Abort the computation for a guest that has left."""
        if guest in self._expected:
            computing, pace = self._expected.pop(guest)
            computing.cancel()  # in Python 3.11.2 a thread that reports to a closed event loop raises an error
            pace.give_up()

    def close(self) -> None:
        """Abort all computations."""
        for guest in list(self._expected):
            self.forget(guest)
        self._threads.shutdown(wait=False)

    def take(self, driver_event: DriverEvent) -> asyncio.Future[Answer] | None:
        """Return the pending expected checksum of a guest that is done; None for events that need no check."""
        if driver_event.event != "done" or driver_event.guest not in self._expected:
            return None
        computing, pace = self._expected.pop(driver_event.guest)
        pace.want()
        return computing

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
