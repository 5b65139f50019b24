"""Pause, continue, stop, drain and return of whole runs, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.control.rehearsal import five_jobs, rehearse
from support.folds import fold_each, folds_compared
from support.ordered import Operator, of_kind

from testbed.control.order_messages import Request
from testbed.control.orders import RunStoppedError
from testbed.measure.rundir import read_journal
from testbed.run.journal import read_events
from testbed.scheduling.workload.jobs import Job

PAUSE, CONTINUE, STOP = Request("pause"), Request("continue"), Request("stop")
ARRIVES = ("start", "transfer", "restore", "migrate")
DRAIN, RETURN = Request("drain", "node-0"), Request("return", "node-0")


def run(tmp_path: Path, operator: Operator, jobs: list[Job] | None = None, **changes: object):
    """Return summary and journal of a run; its journal folds to the state of its controller."""
    with operator.at_work(), folds_compared() as different:
        result, journal = rehearse(tmp_path, five_jobs() if jobs is None else jobs, **changes)
    assert different == []
    return result.summary, journal


def between(journal: list[dict], first: str, last: str) -> list[dict]:
    """Return the entries between two orders."""
    begin, end = (
        next(index for index, entry in enumerate(journal) if entry.get("order") == order) for order in (first, last)
    )
    return journal[begin + 1 : end]


def ends_of(journal: list[dict]) -> dict[int, float]:
    return {entry["job"]: entry["trace_s"] for entry in of_kind(journal, "job") if entry["state"] == "done"}


def test_a_pause_costs_no_trace_time(tmp_path: Path) -> None:
    _, undisturbed = run(tmp_path, Operator())
    operator = Operator((10.0, PAUSE), (100.0, CONTINUE))
    summary, journal = run(tmp_path, operator)
    pause, resume = operator.answers
    assert (pause.done, pause.changed, pause.state) == (True, True, "paused")
    assert (resume.done, resume.changed, resume.state) == (True, True, "running")
    assert (summary["done"], summary["failed"]) == (5, {})
    (started,) = of_kind(journal, "clock-started")
    assert started["stood_still_s"] == pytest.approx(90.0, abs=1.0)
    within = [entry for entry in journal if 10.0 < entry["t_s"] - journal_zero(journal) < 100.0]
    assert len({entry["trace_s"] for entry in within}) == 1, "trace time stands still"
    ends = ends_of(undisturbed)
    assert ends_of(journal) == {job: pytest.approx(end_s, abs=120.0) for job, end_s in ends.items()}
    assert summary["pauses"]["count"] == 1
    assert summary["pauses"]["saves"] == len(of_kind(journal, "suspension")) > 0
    assert summary["pauses"]["stood_still_s"] == started["stood_still_s"]


def journal_zero(journal: list[dict]) -> float:
    (replay,) = of_kind(journal, "replay")
    return replay["t_s"]


def test_no_decision_is_taken_and_nothing_runs_in_a_pause(tmp_path: Path) -> None:
    _, journal = run(tmp_path, Operator((10.0, PAUSE), (100.0, CONTINUE)))
    zero_s = journal_zero(journal)
    kinds = [entry["kind"] for entry in journal if 11.0 < entry["t_s"] - zero_s < 99.0]
    assert not {"decision", "intent", "guest", "job"} & set(kinds)


def test_a_pause_is_no_rescheduling(tmp_path: Path) -> None:
    jobs = [Job(1, 0, 1, 1.0, 0.4, 1200), Job(2, 0, 1, 1.0, 0.4, 1200)]
    summary, journal = run(tmp_path, Operator((5.0, PAUSE), (65.0, CONTINUE)), jobs)
    assert of_kind(journal, "rescheduling") == []
    assert (summary["metrics"]["preemptions"]["value"], summary["metrics"]["migrations"]["value"]) == (0, 0)
    assert summary["metrics"]["penalty_total"]["value"] == 0
    suspensions = of_kind(journal, "suspension")
    assert [each["job"] for each in suspensions] == [1, 2]
    for each in suspensions:
        assert each["held_s"] == pytest.approx(60.0, abs=1.0)
        assert each["penalty_s"] < 5.0, "the penalty excludes the pause itself"


def test_orders_whose_effect_is_there_change_nothing(tmp_path: Path) -> None:
    operator = Operator(
        (5.0, CONTINUE), (10.0, PAUSE), (20.0, PAUSE), (30.0, CONTINUE), (40.0, CONTINUE), (40.0, RETURN)
    )
    _, journal = run(tmp_path, operator)
    assert [(answer.done, answer.changed) for answer in operator.answers] == [
        (True, False), (True, True), (True, False), (True, True), (True, False), (True, False),
    ]  # fmt: skip
    assert [entry["order"] for entry in of_kind(journal, "order")] == ["pause", "continue"]


def test_a_run_that_is_continued_at_once_and_paused_again_goes_on(tmp_path: Path) -> None:
    operator = Operator(
        (10.0, PAUSE), (10.0, CONTINUE), (10.0, PAUSE), (20.0, CONTINUE), (20.0, PAUSE), (30.0, CONTINUE)
    )
    summary, _ = run(tmp_path, operator)
    assert summary["done"] == 5
    assert operator.answers[-1].done


def test_a_stop_saves_what_runs_and_writes_the_results(tmp_path: Path) -> None:
    operator = Operator((10.0, STOP))
    with operator.at_work(), folds_compared() as different, pytest.raises(RunStoppedError) as caught:
        rehearse(tmp_path, five_jobs())
    assert different == []
    assert caught.value.exit_code == 1
    assert operator.answers[0].done
    (path,) = tmp_path.iterdir()
    assert f"measured data is in {path}" in str(caught.value)
    journal = read_journal(path / "events.jsonl")
    history = fold_each(read_events(path / "events.jsonl"))
    assert history.aborted.startswith("stopped by the operator: ")
    assert [job.job for job in history.jobs.values() if job.running_on is not None] == []
    saved = [job for job in history.jobs.values() if job.saved_on is not None]
    assert saved
    assert all(job.images for job in saved)
    assert of_kind(journal, "order")[0]["by"] == "user 0, process 1"
    assert (path / "summary.json").exists()
    assert (path / "jobs.csv").exists()


def test_a_paused_run_can_be_stopped(tmp_path: Path) -> None:
    operator = Operator((10.0, PAUSE), (50.0, STOP), (50.0, CONTINUE))
    with operator.at_work(), folds_compared() as different, pytest.raises(RunStoppedError):
        rehearse(tmp_path, five_jobs())
    assert different == []
    assert operator.answers[1].done
    assert operator.answers[2].text == "the run is being stopped"


def test_a_drained_node_holds_no_guest_until_it_is_returned(tmp_path: Path) -> None:
    operator = Operator((10.0, DRAIN), (40.0, RETURN))
    summary, journal = run(tmp_path, operator)
    assert summary["done"] == 5
    assert [answer.done for answer in operator.answers] == [True, True]
    drained = between(journal, "drain", "return")
    arrivals = [entry for entry in drained if entry["kind"] == "intent" and entry["verb"] in ARRIVES]
    assert all(0 not in entry["nodes"] for entry in arrivals)
    assert any(1 in entry["nodes"] for entry in arrivals), "its guests resume elsewhere"
    for entry in drained:
        if entry["kind"] == "decision":
            assert entry["view"]["node_available"] == [False, True]
    assert any(0 in entry["nodes"] for entry in of_kind(journal[journal.index(drained[-1]) :], "intent"))


def test_jobs_that_fit_nowhere_else_are_saved_and_wait_for_the_node(tmp_path: Path) -> None:
    jobs = [Job(1, 0, 2, 1.0, 0.6, 1200)]
    operator = Operator((5.0, DRAIN), (35.0, RETURN))
    summary, journal = run(tmp_path, operator, jobs)
    assert (summary["done"], summary["failed"]) == (1, {})
    assert operator.answers[0].done
    assert [entry.get("code") for entry in of_kind(journal, "stranded")] == ["does-not-fit", None]
    assert summary["metrics"]["preemptions"]["value"] == 1


def test_all_nodes_can_be_drained(tmp_path: Path) -> None:
    other = Request("drain", "node-1")
    operator = Operator((5.0, DRAIN), (5.0, other), (35.0, RETURN), (36.0, Request("return", "node-1")))
    summary, _ = run(tmp_path, operator)
    assert (summary["done"], summary["failed"]) == (5, {})
    assert [answer.done for answer in operator.answers] == [True] * 4


def test_a_node_that_is_drained_in_a_pause_gets_nothing_back(tmp_path: Path) -> None:
    operator = Operator((10.0, PAUSE), (20.0, DRAIN), (30.0, CONTINUE), (60.0, RETURN))
    summary, journal = run(tmp_path, operator)
    assert summary["done"] == 5
    assert [answer.done for answer in operator.answers] == [True] * 4
    arrivals = [entry for entry in between(journal, "drain", "return") if entry.get("verb") in ARRIVES]
    assert arrivals
    assert all(0 not in entry["nodes"] for entry in arrivals if entry["kind"] == "intent")


@pytest.mark.parametrize("mechanism", ["image", "live"])
def test_guests_leave_a_drained_node_live_where_they_can(tmp_path: Path, mechanism: str) -> None:
    changes = {"extras": "whole,live", "migration": {"mechanism": "live"}} if mechanism == "live" else {}
    jobs = [Job(1, 0, 1, 0.5, 0.4, 1200)]
    _, journal = run(tmp_path, Operator((5.0, DRAIN)), jobs, **changes)
    verbs = {entry["verb"] for entry in of_kind(journal, "intent")}
    assert ("migrate" in verbs) == (mechanism == "live")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request("drain", "node-3"), "no node 'node-3'; nearest: node-"),
        (Request("drain"), "no node None; nodes: node-0, node-1"),
        (Request("pause", "node-0"), "pause is for the whole run: expected no node"),
    ],
)
def test_wrong_orders_are_refused(request_: Request, words: str, tmp_path: Path) -> None:
    operator = Operator((5.0, request_))
    _, journal = run(tmp_path, operator)
    (answer,) = operator.answers
    assert answer.text.startswith(words)
    assert answer.mistaken
    assert of_kind(journal, "order") == []


def test_an_order_that_takes_too_long_stays_in_force(tmp_path: Path) -> None:
    operator = Operator((10.0, Request("pause", wait_s=0.0)), (50.0, CONTINUE))
    summary, _ = run(tmp_path, operator)
    pause, _ = operator.answers
    assert not pause.done
    assert pause.text.startswith("not done within 0 s: the order stays in force, and waits for job")
    assert summary["pauses"]["count"] == 1
