"""What a preemption or a migration costs, split into its phases, by the controller's one monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass

SAVE_RESTORE = "save-restore"
LIVE = "live"


@dataclass(slots=True, eq=False)
class Rescheduling:
    """One interruption of a job, from the first order until every task has progressed again; wall seconds.

    The penalty of [RR 5.1] is the time in which the job makes no progress although the policy wants it to run, and
    the time that saving takes. `paused_s`, while the policy does not want it to run, is no part of it. Of a live
    migration, during which the job goes on, the penalty is what the job felt: the longest time for which one of its
    guests stood still, and from their arrival until every task had progressed again.
    """

    reason: str  # "preemption" or "migration"
    begin_s: float
    mechanism: str = SAVE_RESTORE
    save_end_s: float | None = None
    wanted_s: float | None = None
    transfer_s: float = 0.0
    restore_begin_s: float | None = None
    restore_end_s: float | None = None
    live_end_s: float | None = None
    downtime_s: float = 0.0
    progress_s: float | None = None
    hold_skew_s: float = 0.0  # between the first and the last member that stood still
    release_skew_s: float = 0.0  # between the first and the last that went on
    saved_bytes: int = 0
    transferred_bytes: int = 0
    restored_bytes: int = 0
    migrated_bytes: int = 0
    saved_on: tuple[int, ...] = ()  # the node of each task
    moved_tasks: int = 0
    cut_off_s: float | None = None

    @property
    def complete(self) -> bool:
        """Whether the job has progressed again."""
        return self.progress_s is not None

    @property
    def cut_off(self) -> bool:
        """Whether the next one began before the job had progressed: its penalty is what it was until then."""
        return self.cut_off_s is not None

    @property
    def save_s(self) -> float:
        """From the order to hold until the last image was durable and the memory free."""
        return 0.0 if self.save_end_s is None else self.save_end_s - self.begin_s

    @property
    def live_s(self) -> float:
        """From the order to migrate live until the last guest was taken over at its new node."""
        return 0.0 if self.live_end_s is None else self.live_end_s - self.begin_s

    @property
    def back_s(self) -> float | None:
        """When every guest was there again: after a restore, or a live migration."""
        return self.restore_end_s if self.mechanism == SAVE_RESTORE else self.live_end_s

    @property
    def paused_s(self) -> float:
        """For which the policy did not want the job to run, after it was saved."""
        if self.save_end_s is None or self.wanted_s is None:
            return 0.0
        return max(0.0, self.wanted_s - self.save_end_s)

    @property
    def wait_s(self) -> float:
        """Wanted and saved, but waiting for memory or for another operation."""
        if self.save_end_s is None or self.wanted_s is None or self.restore_begin_s is None:
            return 0.0
        return max(0.0, self.restore_begin_s - max(self.save_end_s, self.wanted_s) - self.transfer_s)

    @property
    def restore_s(self) -> float:
        """From the order to restore until every guest was there."""
        if self.restore_begin_s is None or self.restore_end_s is None:
            return 0.0
        return self.restore_end_s - self.restore_begin_s

    @property
    def first_progress_s(self) -> float:
        """From there until every task had done its first iteration, or until this was cut off."""
        end_s = self.cut_off_s if self.progress_s is None else self.progress_s
        if self.back_s is None or end_s is None:
            return 0.0
        return max(0.0, end_s - self.back_s)

    @property
    def penalty_s(self) -> float:
        """Save + wait + transfer + restore + downtime + first progress, as far as it has come."""
        interrupted_s = self.save_s + self.wait_s + self.transfer_s + self.restore_s
        return interrupted_s + self.downtime_s + self.first_progress_s

    @property
    def bytes_moved(self) -> int:
        """Image bytes written, copied and read, and bytes of live migrations."""
        return self.saved_bytes + self.transferred_bytes + self.restored_bytes + self.migrated_bytes

    def phases(self) -> dict[str, float]:
        """The phases by name, wall seconds."""
        return {
            "save_s": self.save_s,
            "paused_s": self.paused_s,
            "wait_s": self.wait_s,
            "transfer_s": self.transfer_s,
            "restore_s": self.restore_s,
            "live_s": self.live_s,
            "downtime_s": self.downtime_s,
            "first_progress_s": self.first_progress_s,
            "penalty_s": self.penalty_s,
            "hold_skew_s": self.hold_skew_s,
            "release_skew_s": self.release_skew_s,
        }

    def amounts(self) -> dict[str, int]:
        """The bytes by name."""
        return {
            "saved_bytes": self.saved_bytes,
            "transferred_bytes": self.transferred_bytes,
            "restored_bytes": self.restored_bytes,
            "migrated_bytes": self.migrated_bytes,
        }
