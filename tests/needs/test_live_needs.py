"""Live policies with estimated needs: agents estimate, views and caps follow, journals replay, simulations agree."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import pytest
from support.compare.compared_runs import dry_run
from support.live_jobs import live_job, quiet_recorder

from testbed.bus.messages import GuestSpec, ProgramSpec
from testbed.bus.telemetry import NeedSample
from testbed.control.cluster import LEAST_NEED_FRAC, Cluster
from testbed.control.executor import _at_present_need
from testbed.control.planner import PlannedAction, Verb
from testbed.control.replay_decisions import replay_decisions
from testbed.control.tracker import Tracker
from testbed.errors import UserError
from testbed.needs.estimator import NEED_WINDOW_S
from testbed.run.events import Decision
from testbed.run.intents import Flight
from testbed.run.job_history import JobHistory
from testbed.run.journal import read_events
from testbed.run.phases import Phase
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.workload.jobs import Job
from testbed.study.compare.live import read_live
from testbed.study.compare.pairs import pair

BASE = "Greedy */OPT=MIN"
SPEC = GuestSpec(
    guest="a", run="r", job=1, task=0, cpu_cores=1.0, memory_mib=64, program=ProgramSpec("eatcpu", 9, 1, 1)
)
FOUND = f"{BASE}/NEEDS=discovered"
SCALE = 50  # a window of five seconds is 250 trace seconds
PACED = {"profile": "1"}


def jobs() -> list[Job]:
    """Two jobs on each node; one of the two (the first and the last job) needs a quarter of its declared need."""
    wrong = (1, 4)
    return [Job(n, 0.0, 1, 1.0, 0.2, 6000.0, true_need_frac=0.25 if n in wrong else 1.0) for n in range(1, 5)]


def ends_s(run: Path) -> list[float]:
    with (run / "jobs.csv").open(newline="") as file:
        return [float(row["end_time_s"]) for row in csv.DictReader(file)]


def test_found_needs_leave_more_to_others_and_both_worlds_agree(tmp_path: Path) -> None:
    told, found = (
        dry_run(tmp_path / name, policy, jobs(), time_scale=SCALE, programs=PACED)
        for name, policy in (("told", BASE), ("found", FOUND))
    )
    assert ends_s(told)[1:3] == pytest.approx([9000.0, 9000.0], rel=0.03)  # half of a node each, until the first ends
    assert max(ends_s(found)[1:3]) < 8000.0
    for run in (told, found):
        one = pair(read_live(run), constant(0))
        assert one.simulation.run.end_s == pytest.approx(ends_s(run), rel=0.03)
    assert one.simulation.run.needs is not None
    assert len(one.simulation.run.needs.found_s) == 4
    views = [event.view for event in read_events(found / "events.jsonl") if isinstance(event, Decision)]
    assert {view.cpu_need_frac for view in views[:1]} == {(1.0,) * 4}
    assert min(min(view.cpu_need_frac) for view in views if view.cpu_need_frac) == pytest.approx(0.295, abs=0.01)
    assert replay_decisions(found) == (len(views), [])
    triggers = [event.event for event in read_events(found / "events.jsonl") if isinstance(event, Decision)]
    assert not any(each.changed for each in triggers), "found needs change yields, and no places"


def need(booked: float, least: float, *, guessed: bool) -> NeedSample:
    return NeedSample(cores=booked, least_cores=least, most_cores=2.0, booked_cores=booked, guessed=guessed)


def test_a_guess_of_a_new_node_does_not_replace_a_measured_need() -> None:
    live = live_job(Job(1, 0.0, 1, 1.0, 0.1, 60.0), [SPEC])
    live.hear_need(0, need(1.0, 0.2, guessed=True))
    assert live.needs_cores == {0: 1.0}, "nothing is known yet"
    live.hear_need(0, need(0.3, 0.25, guessed=False))
    live.hear_need(0, need(1.0, 0.1, guessed=True))
    assert live.needs_cores == {0: 0.3}
    live.hear_need(0, need(1.0, 0.5, guessed=True))
    assert live.needs_cores == {0: 1.0}, "it uses more than the known need"
    live.hear_need(0, need(0.9, 0.1, guessed=True))
    assert live.needs_cores == {0: 0.9}, "that need was a guess, too"
    live.hear_need(0, need(0.3, 0.25, guessed=False))
    live.begin_again()
    live.hear_need(0, need(1.0, 0.1, guessed=True))
    assert live.needs_cores == {0: 1.0}


@pytest.mark.parametrize("state", [{"stranded": "too few nodes"}, {"withdrawn": "its node is lost"}])
def test_jobs_that_no_decision_concerns_cause_none(state: dict) -> None:
    recorder = quiet_recorder(lambda _event: None)
    recorder.history.name_nodes(("n0",))
    live = live_job(Job(1, 0.0, 1, 0.5, 0.1, 60.0), [SPEC], recorder.history, running_on=(0,), **state)
    tracker = Tracker(Cluster([live], recorder.history), recorder)
    decisions: list[int] = []
    tracker._hear_need(live, 0, need(2.0, 0.5, guessed=False), lambda: decisions.append(1))
    assert (decisions, live.needs_cores) == ([], {0: 2.0})


def test_an_operation_keeps_its_caps_when_the_need_changes() -> None:
    live = live_job(Job(1, 0.0, 1, 1.0, 0.1, 60.0), [SPEC], cpu_need_frac=1.0)
    live.state.flight = Flight(1, "start", (0,), 0.4, 0.0, for_a_move=False)
    action = PlannedAction(Verb.START, 1, (0,), 0.4)
    assert live.cap_cores(_at_present_need(live, action).yield_frac) == pytest.approx(0.4)
    live.take_need(0.5)
    live.state.show(0.0, 1, (0.5, 0.1), 0.0)
    assert live.cap_cores(action.yield_frac) == pytest.approx(0.2)
    assert live.cap_cores(_at_present_need(live, action).yield_frac) == pytest.approx(0.4)


def test_a_node_that_changes_its_estimates_all_the_time_causes_one_decision_per_window() -> None:
    recorder = quiet_recorder(lambda _event: None)
    recorder.history.name_nodes(("n0",))
    spec = GuestSpec(
        guest="a", run="r", job=1, task=0, cpu_cores=1.0, memory_mib=64, program=ProgramSpec("eatcpu", 9, 1, 1)
    )
    live = live_job(Job(1, 0.0, 1, 0.5, 0.1, 60.0), [spec], recorder.history, phase=Phase.RUNNING, running_on=(0,))
    tracker = Tracker(Cluster([live], recorder.history), recorder)
    decisions: list[float] = []
    for sample in range(100):
        now_s = 0.2 * sample
        recorder.now_s = lambda now_s=now_s: now_s  # type: ignore[method-assign,misc]
        need = NeedSample(
            cores=1.0, least_cores=0.5, most_cores=2.0, booked_cores=1.0 + sample % 7, memory_mib=1.0
        )  # fmt: skip
        before = len(decisions)
        tracker._hear_need(live, 0, need, lambda now_s=now_s: decisions.append(now_s))  # type: ignore[misc]
        assert len(decisions) - before <= 1
    assert decisions[0] < 1.0
    assert all(later - earlier >= NEED_WINDOW_S for earlier, later in pairwise(decisions))
    assert len(decisions) == 4


def test_a_need_that_changes_on_the_way_is_followed(tmp_path: Path) -> None:
    one = [Job(1, 0.0, 1, 0.8, 0.2, 6000.0), Job(2, 0.0, 1, 0.8, 0.2, 6000.0)]
    run = dry_run(tmp_path / "r", FOUND, one, time_scale=SCALE, programs={"profile": "1,0.25@0.5"})
    needs = [
        event.view.cpu_need_frac for event in read_events(run / "events.jsonl") if isinstance(event, Decision)
    ]  # fmt: skip
    told = [min(view) for view in needs if view]
    assert told[0] == 0.8
    assert told[-1] == pytest.approx(0.2 + 2 * (0.01 + 0.01), abs=0.01)


def test_jobs_with_other_needs_want_a_program_with_a_pace(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"job 1: true_need_frac = 0.25, and its program uses all .* profile = \"1\""):
        dry_run(tmp_path / "r", BASE, jobs(), time_scale=SCALE)


def test_yields_are_parts_of_the_need_that_is_told() -> None:
    job = JobHistory(job=1, cpu_need_frac=0.5, cpu_cores=1.0, yield_frac=0.4)
    job.flight = Flight(1, "cap", (0,), 0.8, 0.0, for_a_move=False)
    job.show(0.0, 1, (0.25, 0.1), 0.0)
    assert (job.yield_frac, job.flight.yield_frac, job.cpu_cores) == (0.8, 1.6, 0.5)
    job.show(0.0, 1, (0.25, 0.1), 0.0)
    assert (job.yield_frac, job.cpu_cores) == (0.8, 0.5)


def test_what_nodes_claim_stays_within_a_node() -> None:
    spec = GuestSpec(
        guest="a", run="r", job=1, task=0, cpu_cores=1.0, memory_mib=64, program=ProgramSpec("eatcpu", 9, 1, 1)
    )
    live = live_job(Job(1, 0.0, 2, 0.5, 0.1, 60.0), [spec, spec])
    assert live.found_need_frac == 0.5
    live.needs_cores = {0: 0.4, 1: 0.3}
    assert live.found_need_frac == pytest.approx(0.2), "the highest need of a task, on nodes of two cores"
    live.needs_cores = {0: 0.3}
    assert live.found_need_frac == 0.5, "a task without an estimate needs what is known"
    live.needs_cores = {0: 1e30}
    assert live.found_need_frac == 1.0
    live.needs_cores = {0: 0.0, 1: 0.0}
    assert live.found_need_frac == LEAST_NEED_FRAC
    live.take_need(0.2)
    assert [each.cpu_cores for each in live.specs] == pytest.approx([0.4, 0.4])
    live.needs_cores = {0: 1.0}
    assert live.found_need_frac == pytest.approx(0.5), "the number of cores is unchanged"
