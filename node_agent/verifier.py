"""Whether a guest came to the result that its task has: worked out while it works, compared when it is done."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import msgspec

from node_agent.drivers.protocol import Happening
from node_agent.programs.expected import expected_checksum
from node_agent.programs.task import Task
from testbed.bus.messages import GuestSpec


class Verifier:
    """Checksums of the guests of one node."""

    def __init__(self) -> None:
        self._expected: dict[str, tuple[asyncio.Task[str], threading.Event]] = {}

    def begin(self, spec: GuestSpec) -> None:
        """Work out, beside everything else, what a guest's checksum must be."""
        self.forget(spec.guest)
        task = Task.from_spec(msgspec.to_builtins(spec))
        given_up = threading.Event()
        computing = asyncio.create_task(
            asyncio.to_thread(expected_checksum, task, given_up.is_set), name=f"expected checksum of {spec.guest}"
        )
        self._expected[spec.guest] = computing, given_up

    def forget(self, guest: str) -> None:
        """The guest is not here any more."""
        if guest in self._expected:
            self._expected.pop(guest)[1].set()

    def close(self) -> None:
        """Give all of them up."""
        for guest in list(self._expected):
            self.forget(guest)

    async def check(self, happening: Happening) -> Happening:
        """Return what happened, marked `verified` if its checksum is right, as a failure if it is wrong."""
        if happening.event != "done" or happening.guest not in self._expected:
            return happening
        computing, _ = self._expected.pop(happening.guest)
        expected, found = await computing, happening.detail["checksum"]
        if found == expected:
            return replace(happening, detail={**happening.detail, "verified": True})
        reason = f"it is done with checksum {found}; its work comes to {expected}"
        return replace(happening, event="failed", detail={"reason": reason})
