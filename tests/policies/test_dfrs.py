"""Decisions of DFRS: invariants, and the order of operations in cases by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.policies.policy_views import Row, node_usage, places_of, view_of, views

from testbed.scheduling.policies.catalogue import available, parse
from testbed.scheduling.policies.view import NOT_PLACED, Event, JobState

NAMES = [name for name in available() if "OPT=" in name]


@settings(max_examples=400)
@given(views(), st.sampled_from(NAMES))
def test_every_decision_keeps_the_rules(case, name):
    view, event = case
    decision = parse(name).decide(view, event)
    again = parse(name).decide(view, event)
    assert decision.task_node.tobytes() == again.task_node.tobytes()
    assert decision.yield_frac.tobytes() == again.yield_frac.tobytes()

    places = places_of(decision, view)
    placed = decision.task_node != NOT_PLACED
    nodes = view.node_available.size
    assert decision.task_node.shape == view.task_node.shape
    assert placed.sum() == sum(map(len, places)), "all tasks of a job run or none"
    assert view.node_available[decision.task_node[placed]].all()
    runs = np.array([bool(place) for place in places], dtype=np.bool_)
    assert (decision.yield_frac[~runs] == 0).all()
    assert (decision.yield_frac[runs] > 0).all()
    assert (decision.yield_frac <= 1).all()
    memory = node_usage(decision.task_node, view.tasks, view.mem_req_frac, nodes)
    cpu = node_usage(decision.task_node, view.tasks, view.cpu_need_frac * decision.yield_frac, nodes)
    assert (memory <= 1 + 1e-9).all()
    assert (cpu <= 1 + 1e-9).all()
    old = places_of(replace_map(decision, view.task_node), view)
    for before, after in zip(old, places, strict=True):
        if before and after and Counter(before) == Counter(after):
            assert before == after


def replace_map(decision, task_node):
    return replace(decision, task_node=task_node)


@settings(max_examples=100)
@given(views(), st.sampled_from([name for name in NAMES if "MINVT=600" in name or "MINFT=600" in name]))
def test_protected_jobs_are_not_moved_by_a_periodic_packing(case, name):
    view, _ = case
    decision = parse(name).decide(view, Event(periodic=True))
    clock_s = view.virtual_time_s if "MINVT" in name else view.time_s - view.submit_time_s
    old = places_of(replace_map(decision, view.task_node), view)
    for row, (before, after) in enumerate(zip(old, places_of(decision, view), strict=True)):
        whole = before and view.node_available[before].all()
        if "/per" in name and whole and clock_s[row] < 600 and after:
            assert before == after


@given(views())
def test_without_an_action_the_map_stays(case):
    view, event = case
    event = replace(event, periodic=False, submitted=())
    decision = parse("GreedyPM/per/OPT=MIN").decide(view, event)
    old = places_of(replace_map(decision, view.task_node), view)
    expected = [place if place and view.node_available[place].all() else [] for place in old]
    assert places_of(decision, view) == expected


def decide(name, rows, nodes, event, **how):
    view = view_of(rows, nodes, **how)
    decision = parse(name).decide(view, event)
    return places_of(decision, view), decision.yield_frac.round(9).tolist()


def test_greedy_starts_what_fits_and_shares_the_cpu():
    rows = [Row(1, mem=0.6, nodes=(0,), vt=9.0), Row(1, cpu=0.5, mem=0.4), Row(2, mem=0.5)]
    got = decide("Greedy */OPT=MIN", rows, 2, Event(submitted=(101, 102)))
    assert got == ([[0], [1], []], [1.0, 1.0, 0.0])
    got = decide("Greedy */OPT=MIN", rows, 1, Event(submitted=(101, 102)))
    assert got == ([[0], [0], []], [round(1 / 1.5, 9)] * 2 + [0.0])


@pytest.mark.parametrize(("name", "places"), [("Greedy", []), ("GreedyP", []), ("GreedyPM", [1])])
def test_a_newcomer_pauses_or_moves_the_least_important(name, places):
    # The newcomer needs a whole node. Job 2, the least important, leaves node 1; it would fit on node 0.
    rows = [
        Row(1, mem=0.5, vt=900.0, nodes=(0,)),
        Row(1, mem=0.3, vt=5.0, nodes=(0,)),
        Row(1, mem=0.2, vt=990.0, nodes=(1,)),
        Row(1, mem=1.0, submit=1000.0),
    ]
    got, _ = decide(f"{name} */OPT=MIN", rows, 2, Event(submitted=(103,)))
    if name == "Greedy":
        assert got == [[0], [0], [1], []]
    else:
        assert got == [[0], [0], [0] if places else [], [1]]


def test_the_most_important_victim_is_moved_first():
    rows = [
        Row(1, mem=0.5, vt=900.0, nodes=(0,)),
        Row(1, mem=0.5, vt=800.0, nodes=(0,)),
        Row(1, mem=0.5, vt=1.0, nodes=(1,)),
        Row(1, mem=1.0, submit=1000.0),
    ]
    assert decide("GreedyPM */OPT=MIN", rows, 2, Event(submitted=(103,)))[0] == [[], [1], [1], [0]]


def test_the_load_of_a_victim_is_gone_when_the_newcomer_is_placed():
    rows = [
        Row(1, mem=0.9, cpu=1.0, vt=900.0, nodes=(0,)),
        Row(1, mem=0.5, cpu=0.5, vt=1.0, nodes=(1,)),
        Row(2, mem=0.5, cpu=0.2, submit=1000.0),
    ]
    assert decide("GreedyP */OPT=MIN", rows, 2, Event(submitted=(102,)))[0] == [[], [1], [0, 0]]


def test_submissions_are_handled_one_by_one():
    # Both fit only alone. The second pauses the first: equal (infinite) priority, but submitted later: the
    # victim of the second is the first only if it is the only one that runs.
    rows = [Row(1, mem=0.6, submit=1000.0), Row(1, mem=0.6, submit=1000.0)]
    assert decide("Greedy */OPT=MIN", rows, 1, Event(submitted=(100, 101)))[0] == [[0], []]
    assert decide("GreedyP */OPT=MIN", rows, 1, Event(submitted=(100, 101)))[0] == [[], [0]]
    assert decide("GreedyP */OPT=MIN", rows, 1, Event(submitted=(101, 100)))[0] == [[0], []]


def test_a_completion_is_handled_before_a_submission_and_does_not_see_it():
    # The paused job would lose to the newcomer, whose priority is infinite, if both were considered together.
    rows = [Row(1, mem=0.6, vt=50.0, paused=True), Row(1, mem=0.6, submit=1000.0)]
    both = Event(completed=(7,), submitted=(101,))
    assert decide("Greedy */OPT=MIN", rows, 1, both)[0] == [[0], []]
    assert decide("Greedy/per/OPT=MIN", rows, 1, both)[0] == [[], [0]]
    assert decide("GreedyP */OPT=MIN", rows, 1, both)[0] == [[], [0]]


def test_a_completion_tries_waiting_and_paused_jobs_by_priority():
    rows = [
        Row(1, mem=0.6, vt=50.0, submit=0.0, paused=True),
        Row(1, mem=0.6, vt=10.0, submit=500.0, paused=True),
        Row(1, mem=0.5, submit=900.0),
        Row(1, mem=0.1, submit=950.0),
    ]
    assert decide("Greedy */OPT=MIN", rows, 1, Event(completed=(7,)))[0] == [[], [], [0], [0]]
    assert decide("Greedy */OPT=MIN", rows[:2], 1, Event(completed=(7,)))[0] == [[], [0]]
    assert decide("Greedy */OPT=MIN", rows, 1, Event())[0] == [[], [], [], []]
    assert decide("Greedy */OPT=MIN", rows, 1, Event(periodic=True))[0] == [[], [], [], []]


def test_a_periodic_packing_takes_all_and_mcb8_acts_on_submissions():
    rows = [Row(1, mem=0.6, vt=50.0, nodes=(1,)), Row(1, mem=0.6), Row(1, mem=0.6, submit=1000.0)]
    new = Event(submitted=(102,))
    assert decide("/per/OPT=MIN", rows, 2, new)[0] == [[1], [], []]
    assert decide("/per/OPT=MIN", rows, 2, replace(new, periodic=True))[0] == [[], [0], [1]]
    assert decide("MCB8 */OPT=MIN", rows, 2, new)[0] == [[], [0], [1]]
    assert decide("MCB8 */OPT=MIN", rows, 2, Event(completed=(7,)))[0] == [[], [0], [1]]
    assert decide("MCB8/per/OPT=MIN", rows, 2, Event(completed=(7,)))[0] == [[1], [], []]


@pytest.mark.parametrize(
    ("name", "vt", "moves"),
    [("", 599.0, True), ("/MINVT=600", 599.0, False), ("/MINVT=600", 600.0, True), ("/MINFT=600", 1.0, True)],
)
def test_a_pinned_job_stays_where_a_free_one_would_move(name, vt, moves):
    # MCB8 puts the greater job on the first node; the other one runs there. Its flow time is 1000 s.
    rows = [Row(1, cpu=0.3, mem=0.1, vt=vt, nodes=(0,)), Row(1, cpu=1.0, mem=0.8)]
    got, _ = decide(f"/per/OPT=MIN{name}", rows, 2, Event(periodic=True))
    assert got == ([[1], [0]] if moves else [[0], [1]])


def test_the_marks_of_a_lost_node():
    rows = [
        Row(2, mem=0.5, vt=700.0, nodes=(0, 1)),
        Row(1, mem=0.5, vt=1.0, nodes=(2,)),
        Row(1, mem=0.6, vt=50.0, paused=True),
    ]
    lost = Event(changed=True)
    # Placed again if there is an action: the task on node 1 stays; without an action, the job is paused.
    assert decide("Greedy */OPT=MIN", rows[:2], 4, lost, down=[0])[0] == [[3, 1], [2]]
    assert decide("GreedyP/per/OPT=MIN", rows, 4, lost, down=[0])[0] == [[], [2], []]
    # Its memory on node 1 is free for others, which come first by priority.
    assert decide("Greedy */OPT=MIN", rows, 3, lost, down=[0])[0] == [[], [2], [1]]


def test_an_unknown_submission_is_refused():
    with pytest.raises(ValueError, match="submitted job 555"):
        decide("Greedy */OPT=MIN", [Row(1)], 1, Event(submitted=(555,)))


def test_what_can_ever_run():
    policy = parse("GreedyPM */per/OPT=MIN")
    assert policy.can_ever_run(40, 0.1, 4)
    assert not policy.can_ever_run(41, 0.1, 4)
    assert policy.can_ever_run(4, 1.0, 4)
    assert not policy.can_ever_run(5, 0.51, 4)


def test_views_of_these_tests_cannot_be_written():
    view = view_of([Row(1, nodes=(0,))], 1)
    columns = [getattr(view, field.name) for field in fields(view) if field.name != "time_s"]
    arrays = [column for column in columns if column is not None]
    assert len(arrays) > 10
    assert not any(array.flags.writeable for array in arrays)
    assert view.state.tolist() == [JobState.RUNNING]
