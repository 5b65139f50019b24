"""Static placement as a policy: arrivals place all services again, ends do not; a service that does not fit waits."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compare.compared_runs import dry_run

from testbed.control.replay_decisions import replay_decisions
from testbed.errors import UserError
from testbed.run.events import Decision
from testbed.run.journal import read_events
from testbed.scheduling.policies.catalogue import PLUGIN_GROUP
from testbed.scheduling.policies.view import ClusterView, Event, JobState
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.static.algorithms import Result, Settings, place
from testbed.scheduling.static.policy import NAMES, StaticPolicy, named
from testbed.scheduling.static.problem import StaticProblem
from testbed.scheduling.workload.jobs import Job


def view(jobs: list[tuple[float, float, int | None]], available: list[bool]) -> ClusterView:
    """Return services of one task, of (CPU need, memory, node or None)."""
    count = len(jobs)
    return ClusterView(
        time_s=10.0, node_available=np.array(available), job_id=np.arange(1, count + 1), submit_time_s=np.zeros(count),
        tasks=np.ones(count, dtype=np.int64), cpu_need_frac=np.array([need for need, _, _ in jobs]),
        mem_req_frac=np.array([memory for _, memory, _ in jobs]), virtual_time_s=np.zeros(count),
        state=np.array([JobState.WAITING if node is None else JobState.RUNNING for _, _, node in jobs], dtype=np.int8),
        task_node=np.array([-1 if node is None else node for _, _, node in jobs]), start_time_s=np.zeros(count),
        estimate_s=np.full(count, np.nan), urgent=np.zeros(count, dtype=np.bool_),
    )  # fmt: skip


def test_an_arrival_places_all_anew_and_an_end_does_not() -> None:
    crowded = [(1.0, 0.3, 0), (1.0, 0.3, 0), (0.2, 0.3, None)]
    found = StaticPolicy("SG").decide(view(crowded, [True, True]), Event(submitted=(3,)))
    assert found.task_node[0] != found.task_node[1], "the two services that need a whole node are apart now"
    assert found.yield_frac[:2].max() == 1.0
    stays = StaticPolicy("SG").decide(view(crowded[:2], [True, True]), Event(completed=(3,)))
    assert stays.task_node.tolist() == [0, 0]
    assert stays.yield_frac.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("name", NAMES)
def test_a_controller_places_services_and_its_decisions_can_be_repeated(tmp_path: Path, name: str) -> None:
    jobs = [Job(n, 40.0 * n, 1 + n % 2, 0.3 + 0.1 * n, 0.2, 4000.0) for n in range(1, 6)]
    run = dry_run(tmp_path / "r", f"static/{name}", jobs, time_scale=50)
    decisions = [event for event in read_events(run / "events.jsonl") if isinstance(event, Decision)]
    assert replay_decisions(run) == (len(decisions), [])
    (last,) = [event for event in decisions if 5 in event.event.submitted]
    assert len(last.view.job_id) == 5
    assert min(last.decision.task_node) >= 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["done"] == 5


def test_nodes_are_renamed_so_that_services_stay() -> None:
    apart = [(0.9, 0.5, 2), (0.8, 0.5, 1), (0.7, 0.5, 0), (0.1, 0.4, None)]
    for name in NAMES:
        found = StaticPolicy(name).decide(view(apart, [True] * 3), Event(submitted=(4,)))
        assert found.task_node.tolist()[:3] == [2, 1, 0], name


def test_who_runs_stays_where_there_is_no_room_and_lost_nodes_are_left() -> None:
    wide = [(0.5, 0.6, 0), (0.5, 0.6, 1), (0.5, 0.6, None)]
    for name in NAMES:
        policy = StaticPolicy(name)
        assert policy.decide(view(wide, [True, True]), Event(submitted=(3,))).task_node.tolist() == [0, 1, -1]
        lost = policy.decide(view(wide, [False, True]), Event(changed=True))
        assert lost.task_node.tolist() == [-1, 1, -1]
        nowhere = policy.decide(view(wide, [False, False]), Event(changed=True))
        assert nowhere.task_node.tolist() == [-1, -1, -1]
        assert nowhere.yield_frac.tolist() == [0.0] * 3


def test_a_service_that_fits_nowhere_stops_no_other_and_keeps_none_waiting() -> None:
    """The oldest needs two nodes, of which one is lost: younger ones run on, and one that arrives starts."""
    jobs = [(0.5, 0.6, 0), (0.5, 0.3, 1), (0.5, 0.3, 1), (0.5, 0.3, None)]
    seen = view(jobs, [False, True])
    seen = replace(
        seen, tasks=np.array([2, 1, 1, 1]), task_node=np.array([0, 1, 1, 1, -1]),
        mem_req_frac=np.array([0.4, 0.3, 0.3, 0.3]),
    )  # fmt: skip
    for name in NAMES:
        found = StaticPolicy(name).decide(seen, Event(submitted=(4,), changed=True))
        assert found.task_node.tolist() == [-1, -1, 1, 1, 1], name


def test_a_service_that_fits_on_the_present_map_starts_where_the_algorithm_finds_no_new_one() -> None:
    running = [(0.2, 0.4, 0), (0.1, 0.4, 0), (0.1, 0.65, 1), (0.1, 0.3, None)]
    found = StaticPolicy("GR").decide(view(running, [True, True]), Event(submitted=(4,)))
    assert found.task_node.tolist() == [0, 0, 1, 1]


def test_nodes_may_change_while_there_is_no_service() -> None:
    for name in NAMES:
        found = StaticPolicy(name).decide(view([], [True, False]), Event(changed=True))
        assert found.task_node.size == found.yield_frac.size == 0


def test_services_that_run_stay_where_they_are_if_the_algorithm_finds_no_new_map(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def placed(problem: StaticProblem, algorithm: str, settings: Settings) -> Result:
        return Result(algorithm, None, 0.0, problem.bound, problem.bound, 0.0)

    monkeypatch.setattr("testbed.scheduling.static.policy.place", placed)
    jobs = [(0.5, 0.6, 1), (0.5, 0.3, 0), (0.5, 0.8, None)]
    found = StaticPolicy("GR").decide(view(jobs, [True, True]), Event(submitted=(3,)))
    assert found.task_node.tolist() == [1, 0, -1]
    assert found.yield_frac.tolist() == [1.0, 1.0, 0.0]


SERVICES = st.lists(
    st.tuples(
        st.integers(0, 500), st.integers(1, 3), st.sampled_from((0.2, 0.5, 1.0)), st.sampled_from((0.1, 0.3, 0.5))
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@given(SERVICES, st.sampled_from(NAMES))
def test_simulated_services_are_placed_as_well_as_the_algorithm_can(rows: list, name: str) -> None:
    jobs = [
        Job(number, float(submit), tasks, need, memory, 1e5)
        for number, (submit, tasks, need, memory) in enumerate(sorted(rows))
    ]
    policy = StaticPolicy(name)
    answers: list[tuple[ClusterView, Decision]] = []

    class Asked(StaticPolicy):
        def decide(self, view: ClusterView, event: Event) -> Decision:
            answers.append((view, policy.decide(view, event)))
            return answers[-1][1]

    run = simulate(jobs, 3, Asked(name), constant(0.0), debug=True)
    assert np.isfinite(run.end_s).all()
    seen, answer = answers[0]
    if (answer.yield_frac > 0.0).all():
        problem = StaticProblem(
            np.repeat(seen.cpu_need_frac, seen.tasks), np.repeat(seen.mem_req_frac, seen.tasks), 3
        )  # fmt: skip
        assert answer.yield_frac.min() == pytest.approx(place(problem, name).minimum_yield)


def test_names_are_those_of_the_installed_policies_and_others_are_refused() -> None:
    installed = {point.name for point in entry_points(group=PLUGIN_GROUP) if point.name.startswith("static/")}
    assert installed == {f"static/{name}" for name in NAMES}
    assert named("Static / mcb8", 600.0).name == "static/MCB8"
    with pytest.raises(UserError, match=r"policy 'static/MILP': expected after static/ one of MCB8, "):
        named("static/MILP", 600.0)
    with pytest.raises(UserError, match="expected after static/ one of MCB8, "):
        named("static/RRND", 600.0)
