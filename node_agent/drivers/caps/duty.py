"""CPU caps without any privilege: SIGSTOP and SIGCONT, by the CPU time that the processes have really used.

In every period of 100 ms a process may use its cap's worth of CPU time and is then stopped. An overrun (signals arrive
a millisecond late) is subtracted from the next periods, so the average is exact. Time that it did not use, because it
waited for a message or the machine was busy, can be caught up later, by at most one more period's worth. Periods begin
at multiples of 100 ms of CLOCK_MONOTONIC: tasks of one job on several nodes run at the same time, where the nodes share
a clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass

from node_agent.drivers.caps.protocol import PERIOD_S

CARRY_PERIODS = 1.0
# Checks, signals and timers are not free, hence these three lower bounds:
_LEAST_S = 0.002  # a budget below this, or below a quarter of a period's worth, is kept for the next period
_LEAST_STEP_S = 0.004  # least time between two checks of one process, even if it can overrun by as much
_TOGETHER_S = 0.002  # checks due within this time are done now


def process_clock(pid: int) -> int:
    """Return the id of the clock that counts the CPU time of all threads of a process, dead ones included."""
    return (~pid << 3) | 2  # as clock_getcpuclockid(3) makes it


def _period_at(now_s: float) -> int:
    return int(now_s / PERIOD_S + 1e-6)  # a timer that fires a rounding error early is in the next period


@dataclass(slots=True, eq=False)
class _Process:
    pidfd: int
    clock: int
    most_cores: float
    cap_cores: float | None = None
    budget_s: float = 0.0
    used_s: float = 0.0
    settled_s: float = 0.0
    rate_cores: float = 0.0  # of CPU time used between the last two checks
    look_s: float = 0.0
    stopped: bool = False
    throttled_s: float = 0.0  # total time stopped, until the last SIGCONT
    stopped_s: float = 0.0  # time of the last SIGSTOP, 0 before the first

    def signal(self, *, stop: bool) -> None:
        if stop != self.stopped:
            self.stopped = stop
            now_s = time.monotonic()
            if stop:
                self.stopped_s = now_s
            elif self.stopped_s:
                self.throttled_s += now_s - self.stopped_s
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGSTOP if stop else signal.SIGCONT)

    def settle(self, now_s: float) -> None:
        """Subtract the CPU time used since the last check from the budget."""
        try:
            used_s = time.clock_gettime(self.clock)
        except OSError:
            return  # it has ended; its watcher will remove it
        self.budget_s -= used_s - self.used_s
        self.rate_cores = (used_s - self.used_s) / max(1e-6, now_s - self.settled_s)
        self.used_s, self.settled_s = used_s, now_s


class DutyCaps:
    """One timer for all processes of a node."""

    name = "duty"

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._period = 0

    async def open(self) -> None:
        """See `Caps.open`; needs nothing but the right to signal one's own processes."""
        os.close(os.pidfd_open(os.getpid()))

    async def add(self, guest: str, pid: int, most_cores: float) -> None:
        """See `Caps.add`."""
        self._processes[guest] = _Process(os.pidfd_open(pid), process_clock(pid), most_cores)

    async def take_over(self, guest: str, pid: int, most_cores: float) -> None:
        """See `Caps.take_over`: the process may be stopped, as no agent has enforced its cap meanwhile."""
        await self.add(guest, pid, most_cores)
        process = self._processes[guest]
        process.stopped = True
        process.signal(stop=False)
        process.settle(time.monotonic())  # CPU time that it used before is no overrun

    async def set(self, guest: str, cap_cores: float | None) -> float | None:
        """See `Caps.set`."""
        process = self._processes[guest]
        was_s, now_s = process.cap_cores, time.monotonic()
        process.cap_cores = cap_cores
        if cap_cores is None or cap_cores >= process.most_cores:
            process.signal(stop=False)
        else:
            process.settle(now_s)
            if was_s is None or was_s >= process.most_cores:  # no budget so far: grant the rest of this period
                process.budget_s = cap_cores * (PERIOD_S - now_s % PERIOD_S)
            process.look_s = now_s
        if self._timer is None:
            self._period = _period_at(now_s)
        self._tick()
        return process.cap_cores

    def read(self, guest: str) -> float:
        """See `Caps.read`: only this mechanism enforces the cap, so its own value is in force."""
        process = self._processes[guest]
        return process.most_cores if process.cap_cores is None else min(process.cap_cores, process.most_cores)

    def throttled_s(self, guest: str) -> float | None:
        """See `Caps.throttled_s`."""
        process = self._processes[guest]
        if process.most_cores != 1:
            return None
        stopped_now = process.stopped and process.stopped_s > 0.0
        return process.throttled_s + (time.monotonic() - process.stopped_s if stopped_now else 0.0)

    async def remove(self, guest: str) -> None:
        """See `Caps.remove`."""
        process = self._processes.pop(guest, None)
        if process is not None:
            process.signal(stop=False)
            os.close(process.pidfd)

    async def close(self) -> None:
        """See `Caps.close`."""
        for guest in list(self._processes):
            await self.remove(guest)
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        """Do the checks that are due, and set the timer for the next one."""
        now_s = time.monotonic()
        period = _period_at(now_s)
        passed, self._period = period - self._period, period
        next_s = (period + 1) * PERIOD_S
        any_capped = False
        for process in self._processes.values():
            cap_cores = process.cap_cores
            if cap_cores is None or cap_cores >= process.most_cores:
                continue
            any_capped = True
            if passed or process.look_s <= now_s + _TOGETHER_S:
                self._look(process, now_s, cap_cores * PERIOD_S, passed)
            if not process.stopped:
                next_s = min(next_s, process.look_s)
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, next_s - time.monotonic()), self._tick) if any_capped else None

    def _look(self, process: _Process, now_s: float, grant_s: float, grants: int) -> None:
        """Stop or continue a process, and estimate when its budget will be used up."""
        was_running = not process.stopped
        process.settle(now_s)
        if grants:
            process.budget_s = min(process.budget_s + grant_s * grants, grant_s * (1 + CARRY_PERIODS))
        process.signal(stop=process.budget_s < min(_LEAST_S, grant_s / 4))
        # under contention it used less than all its cores: check half as often, as an overrun is subtracted later
        rate_cores = max(process.rate_cores, process.most_cores / 2) if was_running else process.most_cores
        process.look_s = now_s + max(_LEAST_STEP_S, process.budget_s / rate_cores)
