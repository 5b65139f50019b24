"""Results of a run, from the cluster's final state: jobs.csv and summary.json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from testbed.control.cluster import Cluster, LiveJob
from testbed.run.interruptions import LIVE
from testbed.run.phases import Phase
from testbed.scenario.schema import BoundTable
from testbed.scheduling.bound.max_stretch import bound

if TYPE_CHECKING:  # a recorder reads the stretch of a job from here
    from testbed.control.recorder import CapWindow, Recorder

LONG_WINDOW_S = 5.0


def job_row(live: LiveJob, tau_s: float) -> tuple[object, ...]:
    """Return a row of jobs.csv. Times are trace seconds, except `penalty_s`, which is in wall seconds."""
    job, past = live.job, live.state
    return (
        job.job_id, job.submit_time_s, job.tasks, job.cpu_need_frac, job.mem_req_frac, job.run_time_s,
        _rounded(past.start_trace_s, 3), _rounded(past.end_trace_s, 3), _rounded(live.stretch(tau_s), 6),
        _rounded(live.measured_virtual_time_s(), 3), past.preemptions, past.migrations,
        _rounded(sum(each.so_far_s for each in past.reschedulings), 6),
        sum(each.bytes_moved for each in past.reschedulings),
        sum(each.mechanism == LIVE for each in past.reschedulings),
    )  # fmt: skip


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _gb_per_s(moved_bytes: Iterable[int], elapsed_s: float) -> tuple[float | None, str]:
    return sum(moved_bytes) / 1e9 / elapsed_s if elapsed_s else None, "GB/wall s"


def cap_error_pp(windows: Sequence[CapWindow]) -> tuple[float | None, int]:
    """Mean absolute error of achieved CPU against the cap, in percentage points of a core, and the number of windows.

    Only CPU-bound guests and windows of at least `LONG_WINDOW_S` count: a member of an MPI job also waits for messages,
    which is no error. Windows that ended with a drift are left out, because the cap may have changed before their last
    sample.
    """
    errors = [
        abs(window.achieved_cores - window.requested_cores) * 100
        for window in windows
        if window.program == "eatcpu" and window.window_s >= LONG_WINDOW_S and not window.drifted
    ]
    return _mean(errors), len(errors)


def _pauses(cluster: Cluster, recorder: Recorder) -> dict[str, object]:
    """Return number, duration and costs of the operator's pauses, which are not part of the metrics."""
    saves = [each for live in cluster.jobs.values() for each in live.state.interruptions if not each.is_rescheduling]
    costs = [each.so_far_s for each in saves if each.complete]
    return {
        "count": cluster.history.standstill.pauses,
        "stood_still_s": round(cluster.history.standstill.paused_s(recorder.now_s()), 6),
        "saves": len(saves),
        "bytes_moved": sum(each.bytes_moved for each in saves),
        "cost_total_s": round(sum(costs), 6),
    }


def _blind(cluster: Cluster) -> dict[str, object]:
    """Return the times without a controller, which are not part of the metrics."""
    standstill = cluster.history.standstill
    return {
        "resumes": cluster.history.resumes,
        "blind_s": round(standstill.blind_s, 6),
        "spans_s": [[round(since_s, 6), round(until_s, 6)] for since_s, until_s in standstill.blind],
    }


def summarize(
    cluster: Cluster, recorder: Recorder, bound_table: BoundTable, *, nodes: int, policy: str, complete: bool,
    wall_s: float, trace_s: float,
) -> dict[str, object]:  # fmt: skip
    """Return the content of summary.json: each metric with its value and unit; an unmeasured value is null."""
    jobs = list(cluster.jobs.values())
    done = [live for live in jobs if live.state.phase is Phase.DONE]
    stretches = [stretch for live in done if (stretch := live.stretch(bound_table.tau_s)) is not None]
    records = [record for live in jobs for record in live.state.reschedulings]
    finished = [record for record in records if record.complete]
    failed = [live for live in jobs if live.state.failure_code is not None]
    lower = (
        bound([live.job for live in done], nodes, tau_s=bound_table.tau_s, kind=bound_table.kind)
        if complete and done and len(done) == len(jobs)
        else None
    )
    preempted = [record for record in records if record.reason == "preemption"]
    migrated = [record for record in records if record.reason == "migration"]
    moved_live = [record for record in records if record.mechanism == LIVE]
    live_s = sum(record.live_s for record in moved_live)
    error_pp, windows = cap_error_pp(recorder.cap_windows)
    penalties = [record.so_far_s for record in finished]
    saved = [record for record in records if record.save_s > 0]
    doubts = {
        str(live.job_id): "; ".join(f"task {task}: {reason}" for task, reason in sorted(live.state.doubts.items()))
        for live in jobs
        if live.state.doubts
    }
    metrics: dict[str, tuple[float | None, str]] = {
        "max_stretch": (max(stretches, default=None), "1"),
        "mean_stretch": (_mean(stretches), "1"),
        "bound": (lower, "1"),
        "degradation": (max(stretches) / lower if lower and stretches else None, "1"),
        "preemptions": (len(preempted), "count"),
        "migrations": (len(migrated), "count"),
        "preemptions_per_job": (len(preempted) / len(jobs) if jobs else None, "1/job"),
        "migrations_per_job": (len(migrated) / len(jobs) if jobs else None, "1/job"),
        "restores": (len([record for record in records if record.restored]), "count"),
        "restores_on_another_node": (
            len([record for record in records if record.restored and record.moved_tasks]),
            "count",
        ),
        "reschedulings_cut_off": (len([record for record in records if record.cut_off]), "count"),
        "penalty_mean": (_mean(penalties), "wall s"),
        "penalty_max": (max(penalties, default=None), "wall s"),
        "penalty_total": (sum(penalties), "wall s"),
        "preemption_gb": (sum(record.bytes_moved for record in preempted) / 1e9, "GB"),
        "migration_gb": (sum(record.bytes_moved for record in migrated) / 1e9, "GB"),
        "preemption_gb_per_s": _gb_per_s((each.bytes_moved for each in preempted), wall_s),
        "migration_gb_per_s": _gb_per_s((each.bytes_moved for each in migrated), wall_s),
        "save_gb_per_s": _gb_per_s((each.saved_bytes for each in saved), sum(each.save_s for each in saved)),
        "live_migrations": (len(moved_live), "count"),
        "live_migration_mean": (_mean([record.live_s for record in moved_live]), "wall s"),
        "live_downtime_mean": (_mean([record.downtime_s for record in moved_live]), "wall s"),
        "live_downtime_max": (max((record.downtime_s for record in moved_live), default=None), "wall s"),
        "live_migration_gb_per_s": _gb_per_s((each.migrated_bytes for each in moved_live), live_s),
        "cap_error_mean": (error_pp, "percentage points of a core"),
        "cap_windows": (windows, "count"),
        "decide_mean": (_mean(recorder.decide_s), "s"),
        "decide_max": (max(recorder.decide_s, default=None), "s"),
        "decisions": (len(recorder.decide_s), "count"),
        "makespan_trace": (trace_s, "trace s"),
        "makespan_wall": (wall_s, "wall s"),
    }
    return {
        "policy": policy,
        "complete": complete,
        "jobs": len(jobs),
        "done": len(done),
        "failed": {str(live.job_id): live.state.failure_text for live in failed},
        "failure_codes": {str(live.job_id): live.state.failure_code for live in failed},
        **({"doubts": doubts} if doubts else {}),
        **({"pauses": _pauses(cluster, recorder)} if cluster.history.standstill.pauses else {}),
        **({"without_controller": _blind(cluster)} if cluster.history.resumes else {}),
        "points_refused": dict(recorder.refused),
        "stretch_bound_s": bound_table.tau_s,
        "bound_kind": bound_table.kind,
        "metrics": {
            name: {"value": None if value is None else round(value, 6), "unit": unit}
            for name, (value, unit) in metrics.items()
        },
    }
