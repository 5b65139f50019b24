"""What a preemption or a migration costs, split into its phases, by the controller's one monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Rescheduling:
    """One interruption of a job, from the order to hold until every task has progressed again; wall seconds.

    The penalty of [RR 5.1] is the time in which the job makes no progress although the policy wants it to run, and
    the time that saving takes. `paused_s`, while the policy does not want it to run, is no part of it.
    """

    reason: str  # "preemption" or "migration"
    save_begin_s: float
    save_end_s: float | None = None
    wanted_s: float | None = None
    transfer_s: float = 0.0
    restore_begin_s: float | None = None
    restore_end_s: float | None = None
    progress_s: float | None = None
    saved_bytes: int = 0
    transferred_bytes: int = 0
    restored_bytes: int = 0
    saved_on: tuple[int, ...] = ()  # the node of each task
    moved_tasks: int = 0

    @property
    def complete(self) -> bool:
        """Whether the job has progressed again."""
        return self.progress_s is not None

    @property
    def save_s(self) -> float:
        """From the order to hold until the last image was durable and the memory free."""
        return 0.0 if self.save_end_s is None else self.save_end_s - self.save_begin_s

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
        """From there until every task had done its first iteration."""
        if self.restore_end_s is None or self.progress_s is None:
            return 0.0
        return max(0.0, self.progress_s - self.restore_end_s)

    @property
    def penalty_s(self) -> float:
        """Save + wait + transfer + restore + first progress, as far as it has come."""
        return self.save_s + self.wait_s + self.transfer_s + self.restore_s + self.first_progress_s

    @property
    def bytes_moved(self) -> int:
        """Image bytes written, copied and read."""
        return self.saved_bytes + self.transferred_bytes + self.restored_bytes

    def phases(self) -> dict[str, float]:
        """The phases by name, wall seconds."""
        return {
            "save_s": self.save_s,
            "paused_s": self.paused_s,
            "wait_s": self.wait_s,
            "transfer_s": self.transfer_s,
            "restore_s": self.restore_s,
            "first_progress_s": self.first_progress_s,
            "penalty_s": self.penalty_s,
        }
