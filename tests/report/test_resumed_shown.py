"""Every view of a run that was without a controller for a while, which was killed in a save, in virtual time."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from support.control.killed_controller import LEASE_S, KilledController
from support.control.rehearsal import movers, scenario
from support.timelines import read_timeline

from testbed import Run
from testbed.measure.rundir import read_journal
from testbed.run import events
from testbed.run.reader import read_history
from testbed.study.compare.live import read_live
from testbed.study.compare.quarantine import examine
from testbed.study.report.browser.changes import Page
from testbed.study.report.browser.state import RunState
from testbed.study.report.page.document import render, run_page
from testbed.study.report.run.job_story_reader import read_job_report
from testbed.study.report.run.job_story_text import lines
from testbed.study.report.run.job_waits import BLIND
from testbed.study.report.run.run_data import load_run_data
from testbed.study.report.terminal.picture import draw, status
from testbed.study.report.terminal.text import print_run

AWAY_S = 2 * LEASE_S


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> KilledController:
    keep = scenario(on_controller_loss="keep", deadlines={"lease_ttl_s": LEASE_S})
    run = KilledController(
        tmp_path_factory.mktemp("resumed"), keep, movers(),
        lambda event: isinstance(event, events.Intent) and event.verb == "save" and not run.killed_at,
    )  # fmt: skip
    assert run.run().summary["done"] == len(movers())
    return run


@pytest.fixture(scope="module")
def run(killed: KilledController) -> Path:
    return killed.path


def saved_job(run: Path) -> int:
    """Return the job whose save was continued."""
    journal = read_journal(run / "events.jsonl")
    (carried_on,) = (entry["carried_on"] for entry in journal if entry["kind"] == "recovered")
    (job,) = (entry["job"] for entry in journal if entry["kind"] == "intent" and [entry["action"]] == carried_on)
    assert isinstance(job, int)
    return job


def test_the_timeline_leaves_the_time_without_a_controller_out(run: Path) -> None:
    timeline = read_timeline(run)
    for job in Run(run)._facts.jobs:
        assert job.end_time_s is not None
        assert timeline.jobs[job.job_id].end_s * timeline.time_scale == pytest.approx(job.end_time_s, abs=0.5)


def page_until(run: Path, kind: str) -> Page:
    """Return the page after the first entry of a kind."""
    state = RunState(run.name)
    state.feed_manifest(json.loads((run / "manifest.json").read_text()))
    for line in (run / "events.jsonl").read_bytes().splitlines():
        state.feed_line(line)
        if json.loads(line)["kind"] == kind:
            break
    return Page(state)


def test_the_page_says_that_the_run_recovers_and_goes_on(run: Path) -> None:
    before = page_until(run, "resumed").state
    assert before.state == "recovering"
    after = page_until(run, "recovered").state
    assert after.state == "running"
    assert after.stood_still_s >= AWAY_S
    assert after.now_s == pytest.approx(before.now_s, abs=1.0), "the time without a controller has no length"
    assert after.log[-1][3].startswith("trace time continues after ")
    assert any("whose controller was lost 60.0 s before" in text for _, _, _, text in after.log)


def test_the_story_of_a_job_tells_of_it(run: Path) -> None:
    job = saved_job(run)
    report = read_job_report(run, job)
    text = "\n".join(lines(report))
    assert "resumed the run, whose controller was lost 60.0 s before" in text
    assert "trace time continues after 60." in text
    assert ", continued after the loss of the controller: took " in text
    others = [read_job_report(run, each.job_id) for each in Run(run)._facts.jobs]
    assert any("the job ran in that time" in "\n".join(lines(other)) for other in others)
    blind = [span for other in others for span in other.story.waits if span.wait.kind == BLIND]
    (known,) = read_history(run / "events.jsonl").standstill.blind
    assert blind
    assert {(span.begin_s, span.end_s) for span in blind} <= {known}


def test_tables_and_report_say_how_long_it_was(run: Path) -> None:
    blind_s = json.loads((run / "summary.json").read_text())["without_controller"]["blind_s"]
    out = StringIO()
    print_run(run, Console(file=out, width=200))
    (line,) = (line for line in out.getvalue().splitlines() if "time without a controller" in line)
    assert line.split()[-2:] == [f"{blind_s:.3f}", "s"]
    assert "s without a controller; " in out.getvalue()
    html = render(run_page(load_run_data(run)))
    assert "time without a controller (not in other metrics)" in html
    assert "resumed the run, whose controller was lost 60.0 s before" in html


def test_the_picture_says_that_the_run_recovers(killed: KilledController) -> None:
    picture = replace(killed.watcher.pictures[-1], recovering=True)
    assert status(picture).startswith("recovering from the loss of the controller; ")
    out = StringIO()
    Console(file=out, width=120).print(draw("title", picture, [], 120, 20))
    assert "recovering from the loss of the controller" in out.getvalue()


def test_a_resumed_run_is_quarantined(run: Path) -> None:
    (reason,) = (each for each in examine(read_live(run)).reasons if each.name == "without_controller")
    assert str(reason).startswith("time without a controller: 6")
    assert str(reason).endswith(" s, limit 0 s")
