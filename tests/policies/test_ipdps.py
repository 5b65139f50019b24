"""Differences of the algorithms of 2010: retries, paused jobs at every event, yields raised cheapest first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.policies.policy_views import Row, places_of, view_of

from testbed.scheduling.policies.batch import BatchPolicy
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.ipdps import is_retried, next_retry_s
from testbed.scheduling.policies.view import Event, WakingPolicy


def decide(name, rows, nodes, event, **how):
    view = view_of(rows, nodes, **how)
    decision = parse(name).decide(view, event)
    return places_of(decision, view), decision.yield_frac.round(9).tolist()


@given(st.floats(0, 1e6), st.integers(0, 300), st.floats(0, 4096))
@example(10.0, 0, 0.0)
def test_retries_are_doubled_and_then_every_4096_s(submit_s, count, later_s):
    """After attempt number `count`, the next attempt is at the first instant that has not passed, at any time."""
    waits = [float(min(2**12, 2**n)) for n in range(1, count + 3)]
    instants = [submit_s + sum(waits[:n]) for n in range(count + 3)]
    assert next_retry_s(submit_s, instants[count]) == instants[count + 1]
    assert is_retried(submit_s, instants[count]) == (count > 0)
    now_s = instants[count] + later_s
    if now_s < instants[count + 2]:
        expected = instants[count + 1] if now_s < instants[count + 1] else instants[count + 2]
        assert next_retry_s(submit_s, now_s) == expected
        assert is_retried(submit_s, now_s) == (now_s in instants[1:])


def test_greedy_tries_again_at_its_instants_only():
    rows = [Row(1, mem=0.6, submit=0.0), Row(1, mem=0.6, submit=8.0)]
    assert decide("GREEDY", rows, 1, Event(completed=(7,)), time_s=13.0)[0] == [[], []]
    assert decide("GREEDY", rows, 1, Event(completed=(7,)), time_s=14.0)[0] == [[0], []]  # 0 + 2 + 4 + 8 = 8 + 2 + 4
    assert decide("GREEDY", rows, 2, Event(), time_s=14.0)[0] == [[0], [1]]
    assert decide("GREEDY", rows, 2, Event(), time_s=10.0)[0] == [[], [0]]
    assert decide("GREEDY", rows, 2, Event(submitted=(100,)), time_s=13.5)[0] == [[0], []]
    assert decide("Greedy/per/OPT=MIN", rows, 2, Event(), time_s=14.0)[0] == [[], []]


def test_greedy_says_when_it_wants_to_be_woken_and_for_whom():
    policy = parse("GREEDY")
    assert isinstance(policy, WakingPolicy)
    assert not isinstance(BatchPolicy("FCFS", backfill=False), WakingPolicy)
    rows = [Row(1, submit=0.0), Row(1, submit=5.0), Row(1, submit=0.0, nodes=(0,))]
    view = view_of(rows, 1, time_s=12.0)
    assert policy.next_wake_s(view) == 14.0
    assert policy.next_wake_s(view_of(rows, 1, time_s=14.0)) == 19.0
    assert policy.next_wake_s(view_of(rows[2:], 1, time_s=14.0)) is None
    assert policy.retried(view, 10.0) == (101,)  # 5 + 2 + 4 = 11
    assert policy.retried(view, 11.0) == ()
    assert policy.retried(view, 5.0) == (100, 101)
    assert parse("GREEDY-PMTN").next_wake_s(view) is None
    assert parse("GREEDY-PMTN").retried(view, 0.0) == ()


@pytest.mark.parametrize(("name", "moved"), [("GREEDY-PMTN", []), ("GREEDY-PMTN-MIGR", [1])])
def test_paused_jobs_are_tried_at_every_event(name, moved):
    # Job 0 leaves node 0 to the newcomer; job 2 was paused before and matters more than job 0.
    rows = [
        Row(1, mem=0.7, vt=500.0, nodes=(0,)),
        Row(1, mem=0.2, vt=1.0, nodes=(1,)),
        Row(1, mem=0.1, vt=100.0, paused=True),
        Row(1, mem=0.95, submit=1000.0),
    ]
    got, _ = decide(name, rows, 2, Event(submitted=(103,)))
    assert got == [moved, [1], [1], [0]]
    # With more memory job 2 leaves no room beside it: it comes first.
    rows[2].mem = 0.8
    assert decide(name, rows, 2, Event(submitted=(103,)))[0] == [[], [1], [1], [0]]
    # At the next event, here a completion, both are tried.
    rows[0] = Row(1, mem=0.7, vt=500.0, paused=True)
    assert decide(name, rows[:3], 2, Event(completed=(7,)))[0] == [[1], [1], [0]]


def test_a_young_job_has_the_priority_of_thirty_seconds():
    # 30 / 1 beats 20 / 1 only where ages below 30 s count as 30 s: a tie, and the first submitted wins it.
    rows = [Row(1, mem=0.6, submit=980.0, vt=1.0, paused=True), Row(1, mem=0.6, submit=990.0, vt=0.9, paused=True)]
    event = Event(completed=(7,))
    assert decide("GREEDY-PMTN", rows, 1, event)[0] == [[], [0]]  # 30 / 1 < 30 / 0.81
    assert decide("GreedyP */OPT=MIN", rows, 1, event)[0] == [[0], []]  # 20 / 1 > 10 / 0.81


def test_what_is_left_goes_to_the_lowest_total_need_first():
    # Node 0: A (1 task, need 1) and B (2 tasks, need 1, the other on node 1 alone). Λ = 2; nothing is left on node 0.
    rows = [Row(1, cpu=0.6, nodes=(0,)), Row(2, cpu=0.6, nodes=(0, 1)), Row(1, cpu=0.9, nodes=(1,))]
    # Λ = 1.5: yields 2/3; node 0 keeps .2 for A, which needs least: A at 1; then no other job on it can grow.
    _, yields = decide("DYNMCB8-PER", rows, 2, Event())
    assert np.allclose(yields, [1.0, 2 / 3, 2 / 3])


def test_the_families_act_when_their_names_say():
    rows = [Row(1, mem=0.6, vt=50.0, nodes=(1,)), Row(1, mem=0.6), Row(1, mem=0.3, submit=1000.0)]
    new = Event(submitted=(102,))
    assert decide("DYNMCB8-PER", rows, 2, new)[0] == [[1], [], []]
    assert decide("DYNMCB8-ASAP-PER", rows, 2, new)[0] == [[1], [], [0]]
    assert decide("DYNMCB8", rows, 2, new)[0] == [[0], [1], [0]]
    for name in ("DYNMCB8-PER", "DYNMCB8-ASAP-PER"):
        assert decide(name, rows[:2], 2, Event(completed=(7,)))[0] == [[1], []]
        assert decide(name, rows[:2], 2, Event(periodic=True))[0] == [[0], [1]]
