"""Progress of a guest: the reports of its program, and the kernel's counters of its processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from node_agent.drivers.caps.duty import process_clock
from node_agent.drivers.native import RankProgress
from node_agent.drivers.procs.usage import Usage, read_usage
from node_agent.drivers.protocol import DriverError, Meter, Reading
from node_agent.guests.pace import supersteps_of, waits_of
from testbed.bus.telemetry import GuestSample, Supersteps


class GuestProgress:
    """`told` is the last report. `steps` has the longest iteration since the last sample."""

    def __init__(self) -> None:
        self.told: RankProgress | None = None
        self.steps: Supersteps | None = None
        self._waits_s: tuple[float, ...] = ()
        self._reported = False
        self._usage = Usage()
        self._cpu_s = 0.0  # of the program alone

    def take(self, fields: Mapping[str, Any], pid: int | None) -> bool:
        """Take a report of progress; return whether it is the first."""
        first, self._reported = not self._reported, True
        self.told = RankProgress(fields["units"], fields["mono_ns"], self.program_cpu_s(pid))
        self.steps = supersteps_of(fields, self.steps)
        self._waits_s = waits_of(fields, self._waits_s)
        return first

    def finish(self, fields: dict[str, Any], at_ns: int, pid: int | None) -> dict[str, Any]:
        """Take the report that the work is done; return it with the longest iteration that no sample has reported."""
        self.steps = supersteps_of(fields, self.steps)
        self.told = RankProgress(fields["units"], at_ns, self.program_cpu_s(pid))
        return fields if self.steps is None else {**fields, "longest_s": self.steps.longest_s}

    def again(self, told: tuple[int, int] | None, steps: Supersteps | None) -> None:
        """Continue from an earlier agent's state. The next report counts as the first, which may have been lost."""
        self.told = None if told is None else RankProgress(*told, 0.0)
        self.steps = steps

    def program_cpu_s(self, pid: int | None) -> float:
        """Return the CPU time of the program's threads; the last value once they are gone (`pid` is None)."""
        if pid is not None:
            with contextlib.suppress(OSError):
                self._cpu_s = time.clock_gettime(process_clock(pid))
        return self._cpu_s

    def reader(self, guest: str, live_pid: Callable[[], int | None]) -> Meter:
        """Return a function that reads CPU time and work units; see `Meters.meter`."""

        def read() -> Reading:
            pid = live_pid()
            cpu_s = self.program_cpu_s(pid)
            if pid is None:
                raise DriverError(f"guest {guest} has ended")
            return Reading(cpu_s, self.told.units if self.told else 0)

        return read

    def sample(
        self, guest: str, state: str, pids: Iterable[int], in_force: float | None, wanted_cores: float,
        throttled_s: float | None = None,
    ) -> GuestSample:  # fmt: skip
        """Return a sample, with the usage of live processes."""
        usage = read_usage(pids)
        if usage is not None and usage.cpu_s >= self._usage.cpu_s:
            self._usage = usage
        told, steps = self.told, self.steps
        if steps is not None:
            self.steps = msgspec.structs.replace(steps, longest_s=0.0)
        return GuestSample(
            guest=guest, state=state, cap_cores=in_force, wanted_cores=wanted_cores,
            cpu_s=self._usage.cpu_s, rss_mib=self._usage.rss_mib, read_mib=self._usage.read_mib,
            written_mib=self._usage.written_mib,
            units_done=told.units if told else 0, units_mono_ns=told.mono_ns if told else 0, supersteps=steps,
            waits_s=self._waits_s, throttled_s=throttled_s,
        )  # fmt: skip
