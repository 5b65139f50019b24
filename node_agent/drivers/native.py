"""Programs that run on the node itself, outside any guest: the speed of the slowest rank, once all ranks work."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from node_agent.drivers.protocol import NativeReport
from testbed.bus.messages import GuestSpec, ProgramSpec, RankKeys
from testbed.bus.mpi_barriers import Barriers, Entered

_LOOK_EVERY_S = 0.005  # interval of reads while a report is awaited
_LOOK_AFTER_S = 0.1  # interval of reads during the measurement


@dataclass(frozen=True, slots=True)
class RankProgress:
    """A rank's progress at one instant of the node's monotonic clock, and its CPU time up to then."""

    units: int
    mono_ns: int
    cpu_s: float


class PassBarrier(Protocol):
    """Lets a rank pass a barrier, as `PmiServer.pass_barrier`."""

    def __call__(self, session: str, number: int, keys: Sequence[RankKeys], *, last: bool) -> None:
        """Let it pass."""


class NativeBarriers:
    """Barriers of ranks that are all run by one agent; `passes` are the functions that let each rank pass, by rank."""

    def __init__(self, ranks: int) -> None:
        self.session = os.urandom(8).hex()
        self.passes: list[PassBarrier] = []
        self._barriers = Barriers(ranks)

    def enter(self, rank: int, detail: dict[str, object]) -> None:
        """Take the `Barrier.detail` of a rank; raises `BadKeysError`."""
        entered = msgspec.convert(detail, _Entered)
        if self._barriers.enter(rank, entered.number, entered.keys) is Entered.ALL:
            for let_pass in self.passes:
                let_pass(self.session, entered.number, self._barriers.keys, last=True)


class _Entered(msgspec.Struct):
    number: int
    keys: dict[str, str]


async def measure(ranks: Sequence[Callable[[], RankProgress | None]], seconds: float) -> NativeReport:
    """Return the progress of the slowest rank over at least `seconds`, after all of them have progressed.

    Each function in `ranks` returns a rank's last report, None before the first; it raises `DriverError` after its end.
    """
    begin = [await _told(rank, lambda told: told.units > 0) for rank in ranks]
    begin = [rank() or told for rank, told in zip(ranks, begin, strict=True)]  # again, after the wait for the last rank
    until_ns = max(told.mono_ns for told in begin) + round(seconds * 1e9)
    ends_s = asyncio.get_running_loop().time() + seconds
    while (left_s := ends_s - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(min(left_s, _LOOK_AFTER_S))
        for rank in ranks:
            rank()  # raises at once for a rank that has ended
    end = [await _told(rank, lambda told: told.mono_ns >= until_ns) for rank in ranks]
    reports = [
        NativeReport(last.units - first.units, (last.mono_ns - first.mono_ns) / 1e9, last.cpu_s - first.cpu_s)
        for first, last in zip(begin, end, strict=True)
    ]
    return min(reports, key=lambda report: report.units / report.elapsed_s)


async def _told(rank: Callable[[], RankProgress | None], enough: Callable[[RankProgress], bool]) -> RankProgress:
    while (told := rank()) is None or not enough(told):  # noqa: ASYNC110  # a file sends no event; the command has a deadline
        await asyncio.sleep(_LOOK_EVERY_S)
    return told


def rank_spec(guest: str, program: ProgramSpec, rank: int, memory_mib: int) -> GuestSpec:
    """Return one rank of a program as the task of a guest; hardly any of its ballast memory is touched."""
    return GuestSpec(
        guest=guest, run="native", job=0, task=rank, cpu_cores=float(program.workers), memory_mib=memory_mib,
        program=msgspec.structs.replace(program, rank=rank, touched_frac=1e-9),
    )  # fmt: skip
