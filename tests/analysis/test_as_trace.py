"""A run, or a served lab, converted to a trace for other policies."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.entries import event

from testbed.cli.trace import convert
from testbed.errors import InputError, UserError
from testbed.run import events
from testbed.run.journal import encode
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.table import read_table
from testbed.study.analysis.as_trace import jobs_of_run


def arrived(job: int, submit_time_s: float, tasks: int = 1, **more: object) -> dict[str, Any]:
    told = {"job": job, "submit_time_s": submit_time_s, "tasks": tasks, "cpu_need_frac": 0.5, "mem_req_frac": 0.2,
            "run_time_s": 60.0, **more}  # fmt: skip
    return {"kind": "arrived", "arrival": told, "by": "root", "addresses": ()}


def state(job: int, word: str, **more: object) -> dict[str, Any]:
    return {"kind": "job", "job": job, "state": word, **more}


def decision(job: int, virtual_time_s: float) -> dict[str, Any]:
    view = {"time_s": 0.0, "node_available": (True,), "job_id": (job,), "submit_time_s": (0.0,), "tasks": (1,),
            "cpu_need_frac": (0.5,), "mem_req_frac": (0.2,), "virtual_time_s": (virtual_time_s,), "state": (0,),
            "task_node": (-1,), "start_time_s": (None,), "estimate_s": (None,)}  # fmt: skip
    trigger = {"completed": (), "submitted": (), "periodic": False, "changed": True}
    return {"kind": "decision", "decide_s": 0.0, "policy": "XGE", "view": view, "event": trigger,
            "decision": {"task_node": (-1,), "yield_frac": (0.0,)}}  # fmt: skip


def done(job: int) -> list[dict[str, Any]]:
    nodes = {"action": job, "verb": "start", "job": job, "nodes": (0,)}
    return [
        state(job, "submitted"),
        state(job, "running"),
        {"kind": "intent", **nodes},
        {"kind": "outcome", "ok": True, **nodes},
        {"kind": "guest", "job": job, "task": 0, "node": 0, "event": "done", "detail": {"units": 5, "checksum": "c"}},
        state(job, "done"),
    ]


def run_of(folder: Path, *entries: dict[str, Any]) -> Path:
    begin = {"kind": "begin", "version": events.VERSION}
    replay = {"kind": "replay", "jobs": 0, "nodes": ["a"], "served": True}
    folder.mkdir()
    lines = [encode(event({"t_s": float(number), **entry})) for number, entry in enumerate((begin, replay, *entries))]
    (folder / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder


def test_jobs_that_are_done_and_the_work_of_deleted_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    deleted = {"code": "deleted", "detail": "deleted by user root"}
    run = run_of(
        tmp_path / "run", arrived(1, 100.0, urgent=True, program="patterns", estimate_s=90.0), *done(1),
        arrived(2, 130.0), state(2, "submitted"), decision(2, 12.5), state(2, "failed", **deleted),
        arrived(3, 140.0), state(3, "submitted"), state(3, "failed", **deleted),
        arrived(4, 150.0), state(4, "submitted"), state(4, "failed", code="node-lost"),
        arrived(5, 160.0), state(5, "submitted"),
    )  # fmt: skip
    expected = [
        Job(1, 0.0, 1, 0.5, 0.2, 60.0, None, 90.0, urgent=True, program="patterns"), Job(2, 30.0, 1, 0.5, 0.2, 12.5),
    ]  # fmt: skip
    with caplog.at_level(logging.WARNING):
        assert jobs_of_run(run) == expected
    (run / "jobs.csv").write_text("job_id,virtual_time_s\n1,60\n2,40.25\n3,\n4,7\n5,0\n")
    assert [job.run_time_s for job in jobs_of_run(run)] == [60.0, 40.25], "what it did after the last decision counts"
    (run / "jobs.csv").write_text("job_id\n1\n")
    with pytest.raises(UserError, match=r"jobs\.csv: expected the jobs of a run"):
        jobs_of_run(run)
    (run / "jobs.csv").unlink()
    for words in ("deleted, and are", "deleted before", "failed and were", "had not ended"):
        assert f"1 of 5 jobs {words}" in caplog.text or f"1 of 5 jobs were {words}" in caplog.text
    out = tmp_path / "trace.csv"
    result = CliRunner().invoke(convert, [str(run), str(out), "--from", "run"], catch_exceptions=False)
    assert result.exit_code == 0
    assert read_table(out) == expected


def test_what_is_no_run_and_a_run_without_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a run directory"):
        jobs_of_run(tmp_path)
    with pytest.raises(InputError, match="at least one that is done"):
        jobs_of_run(run_of(tmp_path / "run"))
