"""Every view of a run that was paused, and of a drained node: a dry run in virtual time."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from support.control.rehearsal import Watcher, five_jobs, rehearse
from support.ordered import Operator, of_kind
from support.timelines import read_timeline

from testbed import Run
from testbed.control.order_messages import Request
from testbed.measure.rundir import read_journal
from testbed.study.compare.live import read_live
from testbed.study.compare.quarantine import examine
from testbed.study.report.browser.changes import Page
from testbed.study.report.browser.state import RunState
from testbed.study.report.run.job_story_reader import read_job_report
from testbed.study.report.run.job_story_text import lines
from testbed.study.report.run.job_waits import OPERATOR
from testbed.study.report.terminal.picture import draw, status
from testbed.study.report.terminal.text import print_run

PAUSED_S = 100.0


@pytest.fixture(scope="module")
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, watcher: Watcher) -> Path:
    operator = Operator(
        (10.0, Request("pause")), (10.0 + PAUSED_S, Request("continue")),
        (115.0, Request("drain", node="node-0")), (135.0, Request("return", node="node-0")),
    )  # fmt: skip
    with operator.at_work():
        result, _ = rehearse(tmp_path_factory.mktemp("runs"), five_jobs(), watcher=watcher)
    assert all(answer is not None and answer.done for answer in operator.answers)
    return result.path


def test_the_timeline_leaves_the_pause_out(run: Path) -> None:
    timeline = read_timeline(run)
    jobs = {job.job_id: job for job in Run(run)._facts.jobs}
    assert len(jobs) == 5
    for job, facts in timeline.jobs.items():
        assert facts.end_s * timeline.time_scale == pytest.approx(jobs[job].end_time_s, abs=0.5)
        assert facts.start_s * timeline.time_scale == pytest.approx(jobs[job].start_time_s, abs=0.5)
    assert timeline.now_s * timeline.time_scale < read_journal(run / "events.jsonl")[-1]["t_s"] * 60.0 - PAUSED_S * 55.0


def page_until(run: Path, kind: str, **keys: object) -> Page:
    """Return the page after the first entry of a kind with these keys."""
    state = RunState(run.name)
    state.feed_manifest(json.loads((run / "manifest.json").read_text()))
    for line in (run / "events.jsonl").read_bytes().splitlines():
        state.feed_line(line)
        entry = json.loads(line)
        if entry["kind"] == kind and all(entry.get(key) == value for key, value in keys.items()):
            break
    return Page(state)


def test_the_page_says_that_a_run_is_paused_and_goes_on(run: Path) -> None:
    assert page_until(run, "order", order="pause").state.state == "paused"
    assert page_until(run, "order", order="continue").state.state == "resuming"
    page = page_until(run, "clock-started")
    assert page.state.state == "running"
    last_s = page.state.now_s
    assert last_s == pytest.approx(10.0, abs=1.0), "the pause has no length"
    texts = [text for _, _, _, text in page.state.log]
    assert texts[-1].startswith("trace time continues after a standstill of ")
    assert "the operator paused the run" in texts


def test_the_page_marks_a_drained_node(run: Path) -> None:
    for order, drained in (("drain", True), ("return", False)):
        nodes = page_until(run, "order", order=order).update()["nodes"]
        assert nodes["0"].get("drained", False) is drained
        assert nodes["0"]["online"] is True


def test_the_terminal_says_that_a_run_is_paused_and_a_node_drained(watcher: Watcher, run: Path) -> None:
    def drawn(picture: object) -> str:
        console = Console(file=StringIO(), width=120, height=40)
        console.print(draw("title", picture, (), 120, 30))
        return console.file.getvalue()

    assert run.exists()
    (paused, *_) = (picture for picture in watcher.pictures if picture.hold == "paused" and not picture.operations)
    assert "paused by the operator" in drawn(paused)
    assert status(paused).startswith("paused by the operator; ")
    empty = [picture for picture in watcher.pictures if any(node.drained and not node.guests for node in picture.nodes)]
    assert "drained" in drawn(empty[0])
    assert any("order of the operator: drain of node node-0" in line for line in watcher.lines)
    assert not watcher.pictures[-1].hold


def test_why_tells_of_orders_and_of_what_the_pause_cost(run: Path) -> None:
    journal = read_journal(run / "events.jsonl")
    job = of_kind(journal, "suspension")[0]["job"]
    told = read_job_report(run, job)
    text = "\n".join(lines(told))
    assert "the operator paused the run" in text
    assert "the operator continued the run" in text
    assert "trace time continues after a standstill of " in text
    assert "pause of the run cost " in text
    assert "; the run was paused for 1" in text
    assert told.story.waited_s()[OPERATOR] == pytest.approx(PAUSED_S, abs=2.0)
    assert "for the operator to continue the run" in text


def test_the_report_tells_of_orders_and_counts_no_pause_as_a_rescheduling(run: Path) -> None:
    console = Console(file=StringIO(), width=160)
    print_run(run, console)
    text = console.file.getvalue()
    assert "the operator paused the run" in text
    assert "the operator drained node-0" in text
    opened = Run(run)
    remarks = opened._page.remarks
    assert any("the operator returned node-0" in remark for remark in remarks)
    summary = opened.summary
    assert summary["pauses"]["saves"] > 0
    assert opened.reschedulings.height == len(of_kind(read_journal(run / "events.jsonl"), "rescheduling"))
    assert set(opened.reschedulings["reason"].cast(str)) <= {"preemption", "migration"}
    assert opened.status == "finished"


def test_a_run_without_results_has_the_same_rows_as_with_them(run: Path, tmp_path: Path) -> None:
    with_results = [(job.job_id, job.preemptions, job.migrations, job.bytes_moved) for job in Run(run)._facts.jobs]
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("events.jsonl", "manifest.json"):
        (copy / name).write_bytes((run / name).read_bytes())
    assert [(j.job_id, j.preemptions, j.migrations, j.bytes_moved) for j in Run(copy)._facts.jobs] == with_results


def test_a_run_with_orders_is_not_compared_with_others(run: Path) -> None:
    (finding,) = (one for one in examine(read_live(run)).findings if one.name == "orders")
    assert (finding.value, finding.disturbed) == (4, True)
