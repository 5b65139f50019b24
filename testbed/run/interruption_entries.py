"""The entries of interruptions of jobs: what a preemption, a migration or a pause moved, and how long it took."""

from __future__ import annotations

from typing import Annotated

from testbed.run.entry import Entry, JobId, about


class Penalty(Entry, frozen=True, kw_only=True):
    """Base of the events about an interruption of a job: its phases and its bytes."""

    job: JobId
    reason: Annotated[str, about("`preemption`, `migration` or `pause` (by the operator)")]
    mechanism: Annotated[str, about("`save-restore` or `live`")] = "save-restore"
    moved_tasks: Annotated[int, about("tasks that changed their node")]
    saved_bytes: Annotated[int, about("written to images")]
    transferred_bytes: Annotated[int, about("copied between nodes")]
    restored_bytes: Annotated[int, about("read from images")]
    migrated_bytes: Annotated[int, about("sent by live migrations")]
    save_s: Annotated[float, about("from the order to hold until the last image was durable")]
    paused_s: Annotated[float, about("for which the policy did not want the job to run; no part of the penalty")]
    wait_s: Annotated[float, about("wanted to run, but waiting for memory or an earlier operation")]
    transfer_s: Annotated[float, about("copying images between nodes")]
    restore_s: Annotated[float, about("from the order to restore until every guest was created")]
    live_s: Annotated[float, about("from the order to migrate live until every guest was taken over")]
    downtime_s: Annotated[float, about("longest time for which a guest stood still in a live migration")]
    first_progress_s: Annotated[float, about("from the restore or arrival until every task had progressed")]
    penalty_s: Annotated[float, about("save + wait + transfer + restore + downtime + first progress")]
    hold_skew_s: Annotated[float, about("between the first and the last member held, by the nodes' clocks")]
    release_skew_s: Annotated[float, about("between the first and the last whole member released, likewise")]
    held_s: Annotated[
        float, about("for which the run was paused meanwhile; no part of the other times. Not before version 4")
    ] = 0.0

    @property
    def bytes_moved(self) -> int:
        """Bytes written, copied, read and sent."""
        return self.saved_bytes + self.transferred_bytes + self.restored_bytes + self.migrated_bytes


class Rescheduling(Penalty, frozen=True, kw_only=True, tag="rescheduling"):
    """A preemption or migration is complete: every task has made progress after it."""


class ReschedulingCutOff(Penalty, frozen=True, kw_only=True, tag="rescheduling_cut_off"):
    """A preemption or migration was followed by the next one before the job had made progress: the penalty until then.

    The penalty of a cut-off preemption or migration is not known.
    """


class Suspension(Penalty, frozen=True, kw_only=True, tag="suspension"):
    """A job that was saved for a pause by the operator runs again: every task has made progress. Not before version 4.

    A suspension is no rescheduling: `penalty_s` is what it cost the job, and part of no other figure.
    """
