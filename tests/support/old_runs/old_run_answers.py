"""Results of the current commands on an old run, as golden values."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import click
import polars as pl
from click.testing import CliRunner, Result

from support.timelines import read_timeline
from testbed.cli.bodies.compare import NOT_SHOWN_CODE
from testbed.cli.compare import compare
from testbed.cli.query import query
from testbed.cli.replay_decisions import replay_decisions
from testbed.cli.report import report
from testbed.cli.why import why
from testbed.measure.frames import load_journal, load_points
from testbed.measure.rundir import read_json
from testbed.study.report.browser.changes import Page
from testbed.study.report.browser.state import RunState

QUERIES = {
    "jobs": "SELECT job_id, tasks, start_time_s, end_time_s, stretch, virtual_time_s, preemptions, migrations, "
    "live_migrations, bytes_moved FROM jobs ORDER BY job_id",
    "actions": "SELECT verb, COUNT(*) AS n, SUM(elapsed_s) AS elapsed_s FROM action GROUP BY verb ORDER BY verb",
    "caps": "SELECT node, COUNT(*) AS windows, AVG(requested_cores) AS requested_cores, "
    "AVG(achieved_cores) AS achieved_cores FROM cap GROUP BY node ORDER BY node",
    "reschedulings": "SELECT job, reason, mechanism, penalty_s, save_s, restore_s, saved_bytes FROM rescheduling "
    "ORDER BY time",
    "guests": "SELECT job, task, COUNT(*) AS samples, MAX(units_done) AS units_done FROM guest GROUP BY job, task "
    "ORDER BY job, task",
    "penalties_by_job": "SELECT j.job_id, COUNT(*) AS reschedulings, SUM(r.penalty_s) AS penalty_s, "
    "MAX(j.penalty_s) AS of_the_job_s FROM jobs AS j JOIN rescheduling AS r ON j.job_id = r.job "
    "GROUP BY j.job_id ORDER BY j.job_id",
    "entries": "SELECT kind, COUNT(*) AS n FROM events GROUP BY kind ORDER BY kind",
}


def run_command(command: click.Command, *words: object) -> Result:
    """Run a command; errors of the testbed propagate."""
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False, standalone_mode=False)


def query_answers(run: Path) -> dict[str, Any]:
    """Return the rows of each of `QUERIES`."""
    return {name: json.loads(run_command(query, run, sql, "--json").stdout) for name, sql in QUERIES.items()}


def report_answers(run: Path) -> dict[str, Any]:
    """Return the output of `testbed report --json`, without the path of the run."""
    (found,) = json.loads(run_command(report, run, "--json", "--no-html").stdout)
    del found["run"]
    return dict(found)


def compare_answers(run: Path) -> dict[str, Any]:
    """Return the output of `testbed compare --json` for a run and its simulation, disturbed or not."""
    result = run_command(compare, run, "--json", "--keep-disturbed")
    assert result.return_value == NOT_SHOWN_CODE, "one run is not conclusive"
    found = json.loads(result.stdout)
    for group in found["groups"]:
        for pair in group["by_run"]:
            del pair["decisions"]["decisions"]  # one row per decision: `testbed replay-decisions` checks each of them
    return dict(found)


def replay_answers(run: Path) -> dict[str, Any]:
    """Return the output of `testbed replay-decisions --json`: every decision must be bit-identical."""
    result = run_command(replay_decisions, run, "--json")
    assert result.return_value == 0, result.stdout
    return dict(json.loads(result.stdout))


def why_answers(run: Path, job: int) -> dict[str, Any]:
    """Return the output of `testbed why` for a job: its lines, and its facts without the path of the run."""
    found = json.loads(run_command(why, run, job, "--json").stdout)
    del found["run"]
    return {"lines": run_command(why, run, job).stdout.splitlines(), "facts": found}


def page_answers(run: Path) -> dict[str, Any]:
    """Return the content of the live page before every fifth decision, and the whole page at the end."""
    state = RunState("run")
    page = Page(state)
    state.feed_manifest(read_json(run / "manifest.json"))
    parts, decisions = [], 0
    for line in (run / "events.jsonl").read_bytes().splitlines():
        if json.loads(line)["kind"] == "decision":
            decisions += 1
            if decisions % 5 == 0:
                page.update()
                whole = page.snapshot()
                shown = ("queue", "actions", "nodes", "open", "reschedulings", "now_s")
                parts.append({name: whole[name] for name in shown})
        state.feed_line(line)
    page.update()
    return dict(json.loads(json.dumps({"parts": parts, "end": page.snapshot()})))


def schedule_answers(run: Path) -> dict[str, Any]:
    """Return all spans of a run, as (job, task, node, begin, end, kind, yield), and the facts of its jobs."""
    schedule = read_timeline(run).schedule()
    return {
        "spans": [list(astuple(span)[:7]) for span in schedule.spans],
        "jobs": {str(job): asdict(facts) for job, facts in schedule.jobs.items()},
        "end_s": schedule.end_s,
    }


def frame_answers(run: Path) -> dict[str, Any]:
    """Return the rows of each data frame, the sum of each column of numbers, and the journal's entries by kind."""
    points = {name: _frame(frame) for name, frame in load_points(run).items() if frame.height}
    journal = load_journal(run)
    kinds = journal.group_by("kind").len().sort("kind")
    return {
        "points": points,
        "journal": dict(kinds.iter_rows()),
        "last_entry_s": journal["t_s"].max(),
        "jobs_of_entries": sorted(journal["job"].drop_nulls().unique().to_list()),
    }


def _frame(frame: pl.DataFrame) -> dict[str, Any]:
    numbers = [name for name, dtype in frame.schema.items() if dtype.is_numeric() and name not in {"job", "task"}]
    return {"rows": frame.height, "columns": frame.columns, "sums": {name: frame[name].sum() for name in numbers}}
