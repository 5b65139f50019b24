"""Placement helpers: their placements, no changes if a placement is impossible, and their decisions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.policies.policy_views import Row, node_usage, places_of, state_of, view_of, views

from testbed.scheduling.policies import placing
from testbed.scheduling.policies.draft import Draft
from testbed.scheduling.policies.view import JobState


def test_each_way_to_place() -> None:
    rows = [Row(1, cpu=0.5, mem=0.6, nodes=(1,)), Row(3, cpu=0.5, mem=0.3), Row(1, mem=0.5), Row(2, mem=0.9)]
    draft = Draft(view_of(rows, 3))
    running, three, one, two = draft.jobs
    assert (draft.running, draft.waiting) == ([running], [three, one, two])
    assert draft.nodes_by_load.tolist() == [0, 2, 1]
    assert draft.idle_nodes.tolist() == [0, 2]
    assert draft.first_fit(three)
    assert draft.nodes_of(three) == [0, 0, 0]
    assert draft.memory_left_frac == pytest.approx([0.1, 0.4, 1.0])
    assert not draft.place(one, np.array([1]))
    assert not draft.place(one, np.array([0, 2]))
    assert draft.least_loaded(one)
    assert draft.nodes_of(one) == [2]
    assert not draft.least_loaded(two)
    assert not draft.first_fit(two)
    assert not draft.place(two, np.array([2, 2]))
    draft.pause(running)
    draft.pause(one)
    assert draft.nodes_of(running) == []
    assert draft.place(two, draft.idle_nodes)
    decision = draft.decision()
    assert places_of(decision, view_of(rows, 3)) == [[], [0, 0, 0], [], [1, 2]]
    assert decision.yield_frac == pytest.approx([0.0, 2 / 3, 0.0, 1.0])
    with pytest.raises(ValueError, match="job 101 runs already"):
        draft.first_fit(three)
    with pytest.raises(ValueError, match="job 100 does not run"):
        draft.pause(running)


def test_a_job_on_a_node_that_went_waits_and_nothing_is_placed_there() -> None:
    view = view_of([Row(2, nodes=(0, 1)), Row(1, cpu=0.5, nodes=(2,))], 3, down=(1,))
    draft = Draft(view)
    lost, other = draft.jobs
    assert (draft.waiting, draft.running) == ([lost], [other])
    assert lost.state is JobState.RUNNING
    assert draft.memory_left_frac.tolist() == [1.0, 0.0, 0.9]
    assert draft.nodes_by_load.tolist() == [0, 2]
    assert draft.idle_nodes.tolist() == [0]
    assert not draft.place(lost, np.array([0, 1]))
    assert draft.least_loaded(lost)
    assert places_of(draft.decision(), view) == [[0, 2], [2]]


@given(views(), st.data())
def test_what_is_drafted_is_what_nodes_hold(case, data) -> None:
    view, _ = case
    nodes = view.node_available.size
    draft = Draft(view)
    for _ in range(data.draw(st.integers(0, 6))):
        before = [draft.nodes_of(job) for job in draft.jobs], draft.memory_left_frac.tobytes()
        if draft.running and data.draw(st.booleans()):
            draft.pause(data.draw(st.sampled_from(draft.running)))
        elif draft.waiting:
            job = data.draw(st.sampled_from(draft.waiting))
            somewhere = data.draw(st.lists(st.integers(0, nodes - 1), min_size=job.tasks, max_size=job.tasks))
            way = data.draw(st.sampled_from(["first_fit", "least_loaded", "place"]))
            arguments = (job, np.array(somewhere)) if way == "place" else (job,)
            if getattr(draft, way)(*arguments):
                assert len(draft.nodes_of(job)) == job.tasks
            else:
                assert ([draft.nodes_of(job) for job in draft.jobs], draft.memory_left_frac.tobytes()) == before
    decision = draft.decision()
    places = places_of(decision, view)
    for job in draft.jobs:
        assert Counter(places[job.row]) == Counter(draft.nodes_of(job))
        assert (decision.yield_frac[job.row] > 0.0) == bool(draft.nodes_of(job))
    memory = node_usage(decision.task_node, view.tasks, view.mem_req_frac, nodes)
    cpu = node_usage(decision.task_node, view.tasks, view.cpu_need_frac * decision.yield_frac, nodes)
    assert (memory <= 1 + 1e-9).all()
    assert (cpu <= 1 + 1e-9).all()
    assert draft.memory_left_frac == pytest.approx(
        np.where(view.node_available, np.maximum(1 - memory, 0), 0), abs=1e-9
    )
    assert not memory[~view.node_available].any()


@given(views(), st.integers(1, 6), st.sampled_from([0.1, 0.3, 0.5, 1.0]))
def test_first_fit_takes_the_first_nodes_with_memory(case, tasks, mem) -> None:
    view, _ = case
    view = view_of([*_rows(view), Row(tasks, cpu=0.25, mem=mem)], view.node_available.size)
    jobs, cluster = state_of(view)
    cpu_frac, mem_frac = placing.usage(np.arange(view.tasks.size), jobs, cluster)
    used, expected = mem_frac.copy(), []
    for node in range(used.size):
        while len(expected) < tasks and used[node] + mem <= 1 + 1e-9:
            used[node] += mem
            expected.append(node)
    row = view.tasks.size - 1
    placed = placing.first_fit(row, jobs, cluster, cpu_frac, mem_frac)
    assert placed == (len(expected) == tasks) == cluster.running[row]
    nodes = cluster.task_node[jobs.offset[row] :].tolist()
    assert nodes == (expected if placed else [-1] * tasks)
    again = placing.usage(np.arange(view.tasks.size), jobs, cluster)
    assert cpu_frac == pytest.approx(again[0])
    assert mem_frac == pytest.approx(again[1])


def _rows(view) -> list[Row]:
    """Return the running jobs of a view as rows."""
    ends = np.cumsum(view.tasks).tolist()
    places = [view.task_node[end - tasks : end].tolist() for end, tasks in zip(ends, view.tasks.tolist(), strict=True)]
    columns = zip(view.tasks.tolist(), view.cpu_need_frac.tolist(), view.mem_req_frac.tolist(), places, strict=True)
    return [Row(tasks, cpu=cpu, mem=mem, nodes=tuple(nodes)) for tasks, cpu, mem, nodes in columns if nodes[0] >= 0]
