"""Results of operations on a job and of measurements of a lab.

Seconds are by the controller's monotonic clock. Seconds with `reported` in their name were measured by the hypervisor
or the agent.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from testbed.bus.numbers import Amount, Cores, Count, Positive
from testbed.errors import RunError


@dataclass(frozen=True, slots=True)
class Started:
    """A start: `start_s` until every guest existed, then `first_progress_s` until every task had progressed."""

    start_s: float
    first_progress_s: float


@dataclass(frozen=True, slots=True)
class Capped:
    """Caps by task as read back, and the time to set them all."""

    caps_cores: dict[int, float]
    round_trip_s: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a guest: work units, the program's clock at that moment, CPU time used, and the guest's state.

    `cap_cores` is the cap in force as the node read it back at that time, None if the node could not read it.
    """

    units: int
    mono_s: float
    cpu_s: float
    cap_cores: float | None
    state: str


@dataclass(frozen=True, slots=True)
class Held:
    """The time until every guest was held, and the time between the first and the last stop."""

    hold_s: float
    skew_s: float


@dataclass(frozen=True, slots=True)
class Saved:
    """A coordinated checkpoint: `save_s` is its duration, `hold_s` the first part; values are of the slowest guest."""

    save_s: float
    hold_s: float
    run_on_reported_s: float
    write_reported_s: float
    sync_reported_s: float
    hold_skew_s: float
    image_mib: float  # of all tasks


@dataclass(frozen=True, slots=True)
class Transferred:
    """A transfer of images to other nodes, all tasks in parallel."""

    transfer_s: float
    image_mib: float


@dataclass(frozen=True, slots=True)
class Restored:
    """A start from images; `cached_frac` of the images was in the page cache before, NaN if that is unknown.

    `restore_s` and `first_progress_s` are the times of `Started`.
    """

    restore_s: float
    release_skew_s: float
    first_progress_s: float
    cached_frac: float


@dataclass(frozen=True, slots=True)
class Migrated:
    """A live migration of tasks; `downtime_reported_s` is the longest downtime of a task."""

    migrate_s: float
    reported_s: float
    downtime_reported_s: float
    moved_mib: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Rate:
    """Work units per second of the slowest task by its program's clock, and the cores that the task used meanwhile."""

    units_per_s: float
    used_cores: float

    @property
    def units_per_cpu_s(self) -> float:
        """Work units per second of CPU time; raises `RunError` if no CPU time was counted."""
        if self.used_cores <= 0.0:
            raise RunError("no CPU time was counted while the guest progressed")
        return self.units_per_s / self.used_cores


class CapsChanged(msgspec.Struct, frozen=True):
    """Times at which caps were set during a watch, in seconds since its beginning, and the caps as read back."""

    begin_s: Amount
    end_s: Amount
    caps: dict[str, Cores]


class Watched(msgspec.Struct, frozen=True):
    """Samples of guests by their node's monotonic clock, from 0 on; all lists are as long as `t_s`."""

    t_s: list[Amount]
    cpu_s: dict[str, list[Amount]]
    units: dict[str, list[Count]]
    cap_changes: list[CapsChanged] = []


class NativeRun(msgspec.Struct, frozen=True):
    """Progress of a program's slowest rank on a node outside guests."""

    units: Count
    elapsed_s: Positive
    cpu_s: Positive
