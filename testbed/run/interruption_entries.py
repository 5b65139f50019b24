"""Journal entries about interruptions of jobs: amounts and durations of preemptions, migrations and pauses."""

from __future__ import annotations

from typing import Annotated

from testbed.run.entry import Entry, JobId, about


class Penalty(Entry, frozen=True, kw_only=True):
    """Base of the events about an interruption of a job: its phases in wall seconds, and its bytes."""

    job: JobId
    reason: Annotated[str, about("`preemption`, `migration` or `pause` (by the operator)")]
    mechanism: Annotated[str, about("`save-restore` or `live`")] = "save-restore"
    moved_tasks: Annotated[int, about("tasks that changed their node")]
    saved_bytes: Annotated[int, about("bytes written to images")]
    transferred_bytes: Annotated[int, about("bytes copied between nodes")]
    restored_bytes: Annotated[int, about("bytes read from images")]
    migrated_bytes: Annotated[int, about("bytes sent by live migrations")]
    save_s: Annotated[float, about("time from the order to hold until the last image was durable")]
    paused_s: Annotated[float, about("time for which the policy did not want the job to run; not part of the penalty")]
    wait_s: Annotated[float, about("time for which the wanted job waited for memory or an earlier operation")]
    transfer_s: Annotated[float, about("time for copying images between nodes")]
    restore_s: Annotated[float, about("time from the order to restore until every guest was created")]
    live_s: Annotated[float, about("time from the order to migrate live until every guest was taken over")]
    downtime_s: Annotated[float, about("longest time for which a live migration stopped a guest")]
    first_progress_s: Annotated[float, about("time from the restore or arrival until every task had progressed")]
    penalty_s: Annotated[float, about("save + wait + transfer + restore + downtime + first progress")]
    hold_skew_s: Annotated[float, about("time between the first and the last member held, by the nodes' clocks")]
    release_skew_s: Annotated[
        float, about("time between the first and the last whole member released, by the nodes' clocks")
    ]
    held_s: Annotated[
        float, about("time for which the run was paused meanwhile; not part of the other times. Not before version 4")
    ] = 0.0

    @property
    def bytes_moved(self) -> int:
        """Bytes written, copied, read and sent."""
        return self.saved_bytes + self.transferred_bytes + self.restored_bytes + self.migrated_bytes


class Rescheduling(Penalty, frozen=True, kw_only=True, tag="rescheduling"):
    """A preemption or migration is complete: every task has made progress after it."""


class ReschedulingCutOff(Penalty, frozen=True, kw_only=True, tag="rescheduling_cut_off"):
    """The next preemption or migration began before the job had made progress; the entry has the penalty until then.

    The complete penalty of a cut-off preemption or migration is not known.
    """


class Suspension(Penalty, frozen=True, kw_only=True, tag="suspension"):
    """A job that was saved for a pause by the operator runs again: every task has made progress. Not before version 4.

    A suspension is no rescheduling: `penalty_s` is the time that the job lost by it, and part of no other figure.
    """
