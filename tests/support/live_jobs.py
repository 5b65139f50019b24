"""Jobs of a run for tests, in a state that is set directly, not by events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from testbed.bus.messages import GuestSpec
from testbed.control.cluster import LiveJob, Progress
from testbed.run import events
from testbed.run.history import History
from testbed.run.job_history import JobHistory
from testbed.run.ledger import Ledger
from testbed.scheduling.workload.jobs import Job


def live_job(
    job: Job, specs: Sequence[GuestSpec] = (), history: History | None = None, *, verified: bool = True, **state: object
) -> LiveJob:
    """Return a job whose history has these fields; it is added to `history`, if that is given."""
    past = JobHistory(job=job.job_id, tasks=job.tasks, **state)
    if history is not None:
        history.jobs[job.job_id] = past
    return LiveJob(
        job=job, specs=tuple(specs), trace_s_per_unit=1.0, state=past, progress=Progress([0] * job.tasks),
        verified=verified,
    )  # fmt: skip


def quiet_recorder(append: Callable[[events.Event], None], **more: object) -> SimpleNamespace:
    """Return a recorder that suffices for a tracker, with a real ledger and without a run directory."""
    ledger = Ledger(append)
    return SimpleNamespace(**{
        "ledger": ledger, "history": ledger.history, "journal": ledger.record, "times": lambda: (1.0, 60.0),
        "now_s": lambda: 1.0, "point": lambda *_: None, "node_names": ["n0"], "anchor_ns": 0, "doubt": lambda *_: None,
        **more,
    })  # fmt: skip
