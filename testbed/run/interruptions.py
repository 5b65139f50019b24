"""Preemptions and migrations of a job: the bytes that they moved, and their penalties, split into phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from testbed.run import events

LIVE: Final = "live"
SAVE_RESTORE: Final = "save-restore"
MIGRATION: Final = "migration"
PREEMPTION: Final = "preemption"
PAUSE: Final = "pause"
P = TypeVar("P", bound=events.Penalty)

_PHASES: Final = (
    "save_s", "paused_s", "wait_s", "transfer_s", "restore_s", "live_s", "downtime_s", "hold_skew_s", "release_skew_s",
)  # fmt: skip


@dataclass(slots=True)
class Interruption:
    """One interruption of a job, from the first order until every task has progressed again.

    Times are wall seconds of the run, from the entries of the journal. The penalty of [RR 5.1] is the time in which the
    job makes no progress although the policy wants it to run, and the time of the save. `paused_s` is the time in which
    the policy does not want the job to run, and is not part of the penalty. During a live migration the job continues.
    Its penalty is the longest time for which one of its guests was stopped, plus the time from their arrival until
    every task has progressed again.

    An interruption for a pause of the operator (`PAUSE`) is no rescheduling, and has no penalty. `held_wait_s` and
    `held_paused_s` are the parts of `wait_s` and `paused_s` in which the run was paused; both exclude them.

    `blind` has the times without a controller, in which phases continue unobserved; all phases exclude them.

    `measured` is the journalled account of the interruption, once it is complete or cut off by the next one.
    """

    reason: str
    mechanism: str
    begin_s: float
    saved_on: tuple[int, ...] = ()
    moved_tasks: int = 0
    saved_bytes: int = 0
    transferred_bytes: int = 0
    restored_bytes: int = 0
    migrated_bytes: int = 0
    save_end_s: float | None = None
    wanted_s: float | None = None
    transfer_s: float = 0.0
    restore_begin_s: float | None = None
    back_s: float | None = None  # when all guests existed again
    downtime_s: float = 0.0
    hold_skew_s: float = 0.0
    release_skew_s: float = 0.0
    held_wait_s: float = 0.0
    held_paused_s: float = 0.0
    blind: Sequence[tuple[float, float]] = ()
    measured: events.Penalty | None = None

    @property
    def complete(self) -> bool:
        """Whether every task has made progress after the interruption."""
        return isinstance(self.measured, events.Rescheduling | events.Suspension)

    @property
    def is_rescheduling(self) -> bool:
        """Whether the policy caused the interruption, and not a pause of the operator."""
        return self.reason != PAUSE

    @property
    def cut_off(self) -> bool:
        """Whether the next interruption began, or the guests were lost, before every task had made progress."""
        return isinstance(self.measured, events.ReschedulingCutOff)

    @property
    def restored(self) -> bool:
        """Whether the guests were restored from images."""
        return self.mechanism == SAVE_RESTORE and self.back_s is not None

    @property
    def bytes_moved(self) -> int:
        """Bytes written, copied, read and sent."""
        return self.saved_bytes + self.transferred_bytes + self.restored_bytes + self.migrated_bytes

    @property
    def penalty_s(self) -> float | None:
        """The penalty in wall seconds, None if it is not known."""
        return self.measured.penalty_s if isinstance(self.measured, events.Rescheduling) else None

    @property
    def so_far_s(self) -> float:
        """The penalty so far: until the interruption was complete or cut off, or until now."""
        return self._interrupted_s() if self.measured is None else self.measured.penalty_s

    @property
    def save_s(self) -> float:
        """Time from the order to hold until the last image was durable and the memory free."""
        return 0.0 if self.save_end_s is None else self.observed_s(self.begin_s, self.save_end_s)

    @property
    def live_s(self) -> float:
        """Time from the order to migrate live until the last guest was taken over at its new node."""
        return 0.0 if self.back_s is None or self.mechanism != LIVE else self.observed_s(self.begin_s, self.back_s)

    @property
    def paused_s(self) -> float:
        """Time after the save for which the policy did not want the job to run."""
        if self.save_end_s is None or self.wanted_s is None:
            return 0.0
        return max(0.0, self.wanted_s - self.save_end_s - self.held_paused_s)

    @property
    def wait_s(self) -> float:
        """Time for which the saved and wanted job waited for memory or another operation."""
        if self.save_end_s is None or self.wanted_s is None or self.restore_begin_s is None:
            return 0.0
        waited_s = self.restore_begin_s - max(self.save_end_s, self.wanted_s) - self.transfer_s
        return max(0.0, waited_s - self.held_wait_s)

    @property
    def restore_s(self) -> float:
        """Time from the order to restore until every guest was created."""
        if self.restore_begin_s is None or self.back_s is None:
            return 0.0
        return self.observed_s(self.restore_begin_s, self.back_s)

    def observed_s(self, begin_s: float, end_s: float) -> float:
        """Return the time between two moments, without the times in which the run had no controller."""
        blind_s = sum(max(0.0, min(end_s, until_s) - max(begin_s, since_s)) for since_s, until_s in self.blind)
        return end_s - begin_s - blind_s

    def _interrupted_s(self) -> float:
        return self.save_s + self.wait_s + self.transfer_s + self.restore_s + self.downtime_s

    def leave_out(self, stood_still_s: Callable[[float, float], float]) -> None:
        """Record the pauses of the run before the restore; `stood_still_s` returns the pauses between two moments."""
        if self.save_end_s is not None and self.wanted_s is not None and self.restore_begin_s is not None:
            self.held_paused_s = stood_still_s(self.save_end_s, max(self.save_end_s, self.wanted_s))
            self.held_wait_s = stood_still_s(max(self.save_end_s, self.wanted_s), self.restore_begin_s)

    def account(self, kind: type[P], times: tuple[float, float], job: int, end_s: float) -> P:
        """Return the event with these `times` for an interruption that was complete, or cut off, at `end_s`."""
        first_progress_s = 0.0 if self.back_s is None else max(0.0, self.observed_s(self.back_s, end_s))
        phases: dict[str, Any] = {name: getattr(self, name) for name in _PHASES}
        phases |= {"first_progress_s": first_progress_s, "penalty_s": self._interrupted_s() + first_progress_s}
        held_s = self.held_wait_s + self.held_paused_s
        if held_s > 0.0:
            phases["held_s"] = held_s
        return kind(
            *times, job=job, reason=self.reason, mechanism=self.mechanism, moved_tasks=self.moved_tasks,
            saved_bytes=self.saved_bytes, transferred_bytes=self.transferred_bytes, restored_bytes=self.restored_bytes,
            migrated_bytes=self.migrated_bytes, **{name: round(value, 6) for name, value in phases.items()},
        )  # fmt: skip
