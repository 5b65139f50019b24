"""The story of a job as data for JSON."""

from __future__ import annotations

from dataclasses import asdict

from testbed.study.report.run.job_story_reader import JobReport
from testbed.study.report.run.job_waits import Wait


def as_data(report: JobReport) -> dict[str, object]:
    """Return the facts of a story; times are wall seconds since the run began unless the name has `trace`.

    `reason` is None unless the job failed. `waits_for` is the job's wait at the end of the journal, or None.
    """
    story, row, run = report.story, report.row, report.run
    return {
        "run": str(run.path),
        "job": story.job,
        "state": story.state,
        "t_s": story.t_s,
        "trace_s": story.trace_s,
        "unix_ns": None if run.anchor_ns is None else run.anchor_ns + int(story.t_s * 1e9),
        "reason": None if story.reason is None else asdict(story.reason),
        "run_ended": run.summary is not None,
        "run_aborted": story.aborted,
        "tasks": row.tasks,
        "program": run.program_of(story.job),
        "cpu_need_frac": row.cpu_need_frac,
        "mem_req_frac": row.mem_req_frac,
        "submit_trace_s": row.submit_time_s,
        "start_trace_s": row.start_time_s,
        "work_trace_s": report.work_s,
        "run_time_trace_s": row.run_time_s,
        "stretch": row.stretch,
        "preemptions": row.preemptions,
        "migrations": row.migrations,
        "live_migrations": row.live_migrations,
        "penalty_s": row.penalty_s,
        "bytes_moved": row.bytes_moved,
        "ran_s": round(story.ran_s, 6),
        "ran": [asdict(span) for span in story.spans],
        "waited_s": {kind: round(waited_s, 6) for kind, waited_s in story.waited_s().items()},
        "waits": [
            {"begin_s": span.begin_s, "end_s": span.end_s, "idle": span.idle, **_wait(report, span.wait)}
            for span in story.waits
        ],
        "waits_for": None if story.waits_for is None else _wait(report, story.waits_for),
        "events": [
            {"t_s": event.t_s, "trace_s": event.trace_s, "kind": event.kind, **event.facts} for event in story.events
        ],
    }


def _wait(report: JobReport, wait: Wait) -> dict[str, object]:
    names = report.run.node_names
    nodes = [names[node] if node < len(names) else f"node {node}" for node in wait.nodes]
    return {**asdict(wait), "nodes": nodes, "jobs": list(wait.jobs)}
