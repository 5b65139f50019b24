"""Foreign load: CPU time of the nodes' machines that neither guests nor agents nor this process used.

Foreign load includes the broker, the kernel's own threads (also writeback of images) and all processes outside the lab.
Samples arrive once per second, so the value of a short trial is coarse. A disturbed trial has a higher value than its
neighbours.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from testbed.bus.telemetry import Telemetry
from testbed.lab.fleet import Node


@dataclass(slots=True)
class _Seen:
    mono_ns: int
    agent_cpu_s: float
    guests_cpu_s: dict[str, float]


@dataclass(slots=True)
class LoadMeter:
    """Sums up CPU times from telemetry. With `one_machine` all nodes and this process share a machine."""

    one_machine: bool
    _last: dict[tuple[str, str], _Seen] = field(default_factory=dict)
    _cores_s: dict[str, float] = field(default_factory=dict)  # elapsed core seconds, by node
    _busy_s: dict[str, float] = field(default_factory=dict)
    _own_s: dict[str, float] = field(default_factory=dict)

    def hear(self, node: Node, record: Telemetry, _taken_ns: int) -> None:
        """Add a node's sample; samples of a control domain are ignored, as it does not know its machine's load."""
        if node.facts is not None and "dom0" in node.facts.capabilities:
            return
        now = _Seen(record.mono_ns, record.agent_cpu_s, {guest.guest: guest.cpu_s for guest in record.guests})
        last = self._last.get((node.name, record.boot))
        self._last[node.name, record.boot] = now
        if last is None or node.facts is None:
            return
        cores_s = (now.mono_ns - last.mono_ns) / 1e9 * node.facts.machine_cores
        own_s = now.agent_cpu_s - last.agent_cpu_s
        for guest, cpu_s in now.guests_cpu_s.items():
            own_s += max(0.0, cpu_s - last.guests_cpu_s.get(guest, 0.0))
        for sums, amount in ((self._cores_s, cores_s), (self._busy_s, record.cpu_frac * cores_s), (self._own_s, own_s)):
            sums[node.name] = sums.get(node.name, 0.0) + amount

    def mark(self) -> tuple[float, float]:
        """Return (elapsed core seconds, core seconds used by others) until now; subtract two marks for an interval."""
        cores_s, busy_s, own_s = (sum(sums.values()) for sums in (self._cores_s, self._busy_s, self._own_s))
        if self.one_machine:  # each of n nodes reported the same machine
            count = max(1, len(self._cores_s))
            used = os.times()
            return cores_s / count, busy_s / count - own_s - used.user - used.system
        return cores_s, busy_s - own_s


def foreign_frac(before: tuple[float, float], after: tuple[float, float]) -> float | None:
    """Return the fraction of CPU time that others used between two marks; None if no sample arrived in between."""
    cores_s = after[0] - before[0]
    return round(max(0.0, after[1] - before[1]) / cores_s, 4) if cores_s > 0.0 else None
