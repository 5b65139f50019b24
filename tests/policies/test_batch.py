"""FCFS and EASY on queues worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.policies.policy_views import Row, places_of, view_of, views

from testbed.scheduling.policies.backfill import BatchJobs, insert, remove, reservation
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import Event

FCFS, EASY, EASY_2011 = parse("FCFS"), parse("EASY"), parse("EASY/2011")
NOW = 1000.0


def running(nodes, ends_s):
    return Row(len(nodes), nodes=nodes, start=0.0, estimate=ends_s, mem=1.0, vt=1.0)


def waiting(tasks, estimate=100.0):
    return Row(tasks, estimate=estimate, submit=NOW)


def started(policy, rows, nodes, time_s=NOW, down=()):
    """Return the places of all jobs that were not running before."""
    view = view_of(rows, nodes, time_s=time_s, down=down)
    decision = policy.decide(view, Event())
    places = places_of(decision, view)
    for row, before, frac in zip(rows, places, decision.yield_frac, strict=True):
        if row.nodes and not set(row.nodes) & set(down):
            assert tuple(before) == row.nodes
        assert frac == (1.0 if before else 0.0)
    return [place for place, row in zip(places, rows, strict=True) if not row.nodes]


def test_fcfs_stops_at_the_first_that_does_not_fit():
    rows = [running((1,), 2000.0), waiting(2), waiting(3), waiting(1)]
    assert started(FCFS, rows, 4) == [[0, 2], [], []]


def test_easy_starts_heads_while_they_fit_then_backfills_what_ends_by_the_shadow():
    # 4 nodes: 2 busy until 1500. Head A needs 1 and starts; B needs 3: shadow 1500, then 3 are free, extra 0.
    rows = [running((0, 1), 1500.0), waiting(1, 9000.0), waiting(3), waiting(1, 501.0), waiting(1, 500.0)]
    assert started(EASY, rows, 4) == [[2], [], [], [3]]
    assert started(EASY_2011, rows, 4) == [[2], [], [], []]
    assert started(FCFS, rows, 4) == [[2], [], [], []]


def test_jobs_that_are_too_long_go_into_the_extra_nodes_and_use_them_up():
    # 6 nodes: 3 busy until 1200. Head needs 4: shadow 1200, then 6 are free, extra 2.
    rows = [running((0, 1, 2), 1200.0), waiting(4), waiting(1, 9000.0), waiting(2, 9000.0), waiting(1, 9000.0)]
    assert started(EASY, rows, 6) == [[], [3], [], [4]]
    assert started(EASY_2011, rows, 6) == [[], [3], [], [4]]


def test_a_job_that_ends_by_the_shadow_leaves_the_extra_nodes():
    # As above, but the first ends at exactly the shadow time: two extra nodes remain for the next.
    rows = [running((0, 1, 2), 1200.0), waiting(4), waiting(1, 200.0), waiting(2, 9000.0)]
    assert started(EASY, rows, 6) == [[], [3], [4, 5]]
    assert started(EASY_2011, rows, 6) == [[], [3], []]  # under EASY/2011 it occupies one of them


def test_all_that_end_at_exactly_the_shadow_time_count():
    ends = np.array([1500.0, 1500.0, 1400.0, 1600.0])
    jobs = BatchJobs(tasks=np.array([2, 3, 1, 9]), estimate_s=ends, start_time_s=np.zeros(4), expected_end_s=ends)
    ending = np.array([3, 1, 0, 2])
    assert reservation(3, 1, NOW, ending, 4, jobs) == (1500.0, 4)
    assert reservation(2, 1, NOW, ending, 4, jobs) == (1400.0, 0)
    assert reservation(8, 1, NOW, ending, 4, jobs) == (1600.0, 8)
    assert reservation(17, 1, NOW, ending, 4, jobs) == (np.inf, 0)
    assert reservation(2, 1, 1550.0, ending, 4, jobs) == (1550.0, 5)  # three are overdue: expected to end now


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_an_order_by_end_survives_coming_and_going(ends, random):
    end_s = np.array(ends, dtype=np.float64)
    order, inside = np.full(len(ends), -1), []
    for row in random.sample(range(2 * len(ends)), 2 * len(ends)):
        if row < len(ends):
            insert(order, len(inside), end_s, row)
            inside.append(row)
        elif inside:
            gone = inside.pop(row % len(inside))
            remove(order, len(inside) + 1, end_s, gone)
        now = order[: len(inside)]
        assert sorted(now.tolist()) == sorted(inside)
        assert (np.diff(end_s[now]) <= 0).all()


def test_jobs_that_start_now_count_for_the_shadow():
    # A starts on two nodes until 1050, which gives B its nodes before the long job ends.
    rows = [running((0,), 5000.0), waiting(2, 50.0), waiting(3), waiting(1, 51.0), waiting(1, 50.0)]
    assert started(EASY, rows, 4) == [[1, 2], [], [], [3]]


def test_an_overdue_job_is_expected_to_end_now():
    rows = [running((0, 1), 900.0), waiting(3), waiting(1, 1.0)]
    assert started(EASY, rows, 3) == [[], []]
    rows = [running((0, 1), 900.0), waiting(2), waiting(1, 1.0)]
    assert started(EASY, rows, 4) == [[2, 3], []]
    # Two overdue jobs are expected to end now, together, so the head of 3 leaves one node.
    rows = [running((0, 1), 900.0), running((2,), 950.0), waiting(3), waiting(1, 9000.0)]
    assert started(EASY, rows, 4) == [[], [3]]


def test_a_job_that_lost_a_node_queues_again_in_its_place():
    rows = [running((0, 1), 5000.0), running((2,), 5000.0), waiting(2)]
    view = view_of(rows, 5, down=[1])
    for policy in (FCFS, EASY, EASY_2011):
        decision = policy.decide(view, Event(changed=True))
        assert places_of(decision, view) == [[0, 3], [2], []]  # the task on node 0 stays


@pytest.mark.parametrize(("estimate_s", "place"), [(500.0, [3]), (501.0, [])])
def test_a_job_that_starts_again_is_expected_to_end_as_at_its_first_start(estimate_s, place):
    # A began at 0 for 1500 s, loses node 0 at 1000 and starts again at once; the head of 3 still looks at 1500.
    rows = [running((0, 1), 1500.0), waiting(3), waiting(1, estimate_s)]
    view = view_of(rows, 4, down=[0])
    assert places_of(EASY.decide(view, Event(changed=True)), view) == [[2, 1], [], place]


@pytest.mark.parametrize("policy", [FCFS, EASY, EASY_2011])
def test_whole_nodes_bound_what_can_run(policy):
    assert policy.can_ever_run(4, 1.0, 4)
    assert not policy.can_ever_run(5, 0.1, 4)


@given(views(whole_nodes=True))
def test_no_node_is_shared_and_nobody_passes_an_fcfs_queue(case):
    view, event = case
    for policy in (FCFS, EASY, EASY_2011):
        decision = policy.decide(view, event)
        places = places_of(decision, view)
        flat = [node for place in places for node in place]
        assert len(flat) == len(set(flat))
        assert all(view.node_available[node] for node in flat)
        assert decision.yield_frac.tolist() == [1.0 if place else 0.0 for place in places]
        free = int(view.node_available.sum()) - len(flat)
        idle = [int(view.tasks[row]) for row, place in enumerate(places) if not place]
        assert not idle or idle[0] > free
    assert FCFS.decide(view, event).yield_frac.sum() <= EASY.decide(view, event).yield_frac.sum()
