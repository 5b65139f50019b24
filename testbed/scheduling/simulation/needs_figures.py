"""Figures of a simulation with needs that are not as declared."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class NeedsFigures:
    """The cost of wrong needs, and the convergence of estimates; CPU is in node-seconds of trace time.

    * `unused_cpu_s`: caps minus usage, summed over running tasks.
    * `short_cpu_s`: usage that tasks missed because their cap was below yield times real need.
    * `used_cpu_s`: usage.
    * `overcommitted_s`: the part of real needs beyond the capacity of a node, integrated over time, summed over nodes.
    * `found_s`: for each change of a need, the running time until the estimate converged; `not_found` counts changes
      after which it did not.
    """

    unused_cpu_s: float = 0.0
    short_cpu_s: float = 0.0
    used_cpu_s: float = 0.0
    overcommitted_s: float = 0.0
    found_s: list[float] = field(default_factory=list)
    not_found: int = 0
