"""Policies that get views from the event loop: malformed decisions, times, and the loop of batch policies."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import RunError
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import Decision, JobState
from testbed.scheduling.simulation.compiling import NEVER
from testbed.scheduling.simulation.loop import run_loop
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.run import DECISION
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job

TABLE = constant(0.0).table(8.0)
JOBS = [Job(1, 5.0, 2, 1.0, 0.5, 10.0), Job(2, 6.0, 1, 1.0, 0.5, 10.0)]


@dataclass
class Answers:
    """A policy that always gives the same decision."""

    task_node: list[int]
    yield_frac: list[float]
    name: str = "answers"
    needs_estimates: bool = False
    period_s: float | None = None

    def can_ever_run(self, tasks, mem_req_frac, nodes):
        return True

    def decide(self, view, event):
        return Decision(np.array(self.task_node), np.array(self.yield_frac))


@pytest.mark.parametrize(
    ("task_node", "yield_frac", "message"),
    [
        ([0, 1, 1], [1.0], "a decision for 3 tasks and 1 jobs: expected one for the 2 tasks and 1 jobs of the view"),
        ([0, 1], [1.0, 1.0], "a decision for 2 tasks and 2 jobs: expected one for the 2 tasks and 1 jobs of the view"),
        ([0, -1], [1.0], "job 1 runs, but one of its tasks has no node, or one that is not available"),
        ([0, 2], [1.0], "job 1 runs, but one of its tasks has no node, or one that is not available"),
        ([-2, 1], [1.0], "job 1 runs, but one of its tasks has no node, or one that is not available"),
    ],
)
def test_an_answer_in_a_wrong_form_is_told_without_debug_as_well(task_node, yield_frac, message) -> None:
    with pytest.raises(RunError, match=f"policy 'answers' at 5 s: {message}"):
        simulate(JOBS, 2, Answers(task_node, yield_frac))


def test_only_the_policy_is_timed(monkeypatch) -> None:
    clock_ns = iter(range(0, 10**6, 7))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(clock_ns))
    run = simulate([JOBS[0]], 2, Answers([0, 1], [1.0]))
    assert (run.decisions, run.decide_total_s, run.decide_max_s) == (1, 7e-9, 7e-9)


@st.composite
def batch_traces(draw):
    rows, submit_s = [], 0.0
    for number in range(draw(st.integers(1, 14))):
        submit_s += draw(st.sampled_from([0.0, 0.0, 1.0, 7.0]))
        run_s, told_s = draw(st.integers(1, 12)), draw(st.one_of(st.none(), st.integers(1, 12).map(float)))
        rows.append(Job(number + 1, submit_s, draw(st.integers(1, 4)), 1.0, 1.0, float(run_s), estimate_s=told_s))
    return rows


@settings(max_examples=60)
@given(batch_traces(), st.sampled_from(["FCFS", "EASY", "EASY/2011"]))
def test_the_loop_of_batch_policies_is_a_short_way_to_the_same_results(jobs, name) -> None:
    policy = parse(name)
    short = simulate(jobs, 4, policy, constant(0.0), compiling=NEVER, record=True)
    shown = run_loop(jobs, 4, policy, TABLE, debug=True, record=True, views=True)
    for field in ("start_s", "end_s", "virtual_time_s", "penalty_s", "preemptions", "migrations", "tasks_moved"):
        np.testing.assert_array_equal(getattr(short, field), getattr(shown, field), err_msg=field)
    # Without jobs in the system, the event loop asks for no decision; without a penalty, none ends.
    decided = {time_s: [(each.row, each.nodes, each.yield_frac) for each in found] for time_s, found in short.decided()}
    for time_s, found in shown.decided():
        assert decided.pop(time_s) == [(each.row, each.nodes, each.yield_frac) for each in found]
    assert not any(decided.values())


def test_a_recording_has_every_decision_and_all_that_it_changed() -> None:
    jobs = [Job(1, 0.0, 1, 1.0, 0.6, 100.0), Job(2, 50.0, 1, 0.5, 0.6, 10.0)]
    run = simulate(jobs, 1, parse("GreedyP */OPT=MIN"), constant(30.0), compiling=NEVER, record=True, debug=True)
    found = [
        (time_s, [(each.row, each.nodes, each.yield_frac, each.free_at_s) for each in changes])
        for time_s, changes in run.decided()
    ]
    assert found == [
        (0.0, [(0, (0,), 1.0, -np.inf)]),
        (50.0, [(0, (), 0.0, -np.inf), (1, (0,), 1.0, -np.inf)]),
        (60.0, [(0, (0,), 1.0, 90.0)]),
    ]
    assert run.recording is not None
    assert (run.recording.kind == DECISION).sum() == run.decisions
    with pytest.raises(ValueError, match="was not recorded"):
        list(simulate(jobs, 1, parse("FCFS"), compiling=NEVER).decided())


def test_a_view_says_what_a_policy_may_know() -> None:
    seen = []

    class Watched(Answers):
        def decide(self, view, event):
            seen.append((view.time_s, view.state.tolist(), view.start_time_s.tolist(), view.estimate_s.tolist(), event))
            return Decision(np.array([0, 1, 1][: view.task_node.size]), np.array([1.0, 0.0][: view.tasks.size]))

    policy = Watched([], [], needs_estimates=True)
    assert run_loop(JOBS, 2, policy, TABLE).end_s.tolist() == [15.0, 25.0]
    assert seen[1][1] == [JobState.RUNNING, JobState.WAITING]
    assert seen[1][2][0] == 5.0
    assert seen[1][3] == [10.0, 10.0]
    assert (seen[0][4].submitted, seen[1][4].submitted, seen[2][4].completed) == ((1,), (2,), (1,))
