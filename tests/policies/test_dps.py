"""Policies that book shares: the jobs that start, and their nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.policies.policy_views import Row, node_usage, places_of, view_of, views

from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import Decision, Event, SharingPolicy, can_ever_run
from testbed.scheduling.workload.jobs import Job

BANK = parse("DPS/bank")


def placed(rows, nodes, down=()):
    view = view_of(rows, nodes, time_s=1000.0, down=down)
    return places_of(BANK.decide(view, Event()), view)


def test_each_task_goes_to_the_node_with_the_least_booked_cpu():
    eaters = [Row(1, nodes=(node,), cpu=0.5, mem=0.1, start=0.0) for node in range(4)]
    assert placed([*eaters, Row(4, cpu=0.4, mem=0.1)], 4)[-1] == [0, 1, 2, 3]
    assert placed([*eaters[:2], Row(4, cpu=0.4, mem=0.1)], 4)[-1] == [2, 3, 2, 3]


def test_shares_are_never_booked_twice_and_nobody_goes_ahead():
    rows = [Row(1, nodes=(0,), cpu=0.7, mem=0.1, start=0.0), Row(1, cpu=0.4, mem=0.1), Row(1, cpu=0.1, mem=0.1)]
    assert placed(rows, 1) == [[0], [], []]
    assert placed([rows[0], Row(1, cpu=0.3, mem=0.1)], 1) == [[0], [0]]


def test_a_task_needs_memory_too():
    assert placed([Row(1, nodes=(0,), cpu=0.1, mem=0.9, start=0.0), Row(1, cpu=0.1, mem=0.2)], 2)[-1] == [1]


def test_a_job_whose_node_is_lost_goes_back_to_its_place_in_the_queue():
    rows = [Row(2, nodes=(0, 1), cpu=0.6, mem=0.1, start=0.0), Row(1, nodes=(2,), cpu=0.6, mem=0.1, start=0.0)]
    assert placed(rows, 3, down=(0,)) == [[], [2]]
    assert placed(rows, 4, down=(0,)) == [[1, 3], [2]]


@given(views())
def test_no_share_is_booked_twice_and_running_jobs_stay(found):
    view, event = found
    decision = BANK.decide(view, event)
    before, after = places_of(Decision(view.task_node, np.zeros(view.tasks.size)), view), places_of(decision, view)
    for was, now in zip(before, after, strict=True):
        assert not was or now == (was if view.node_available[was].all() else now)
    assert view.node_available[decision.task_node[decision.task_node >= 0]].all()
    began = np.array([not was and bool(now) for was, now in zip(before, after, strict=True)], dtype=np.bool_)
    new = np.repeat(began, view.tasks)
    for amount in (view.cpu_need_frac, view.mem_req_frac):
        used = node_usage(decision.task_node, view.tasks, amount, view.node_available.size)
        assert (used[decision.task_node[new]] <= 1 + 1e-6).all()


@pytest.mark.parametrize("mode", ["none", "distributed", "bank"])
def test_a_name_says_how_shares_move(mode):
    policy = parse(f" dps/{mode.upper()} ")
    assert policy.name == f"DPS/{mode}"
    assert isinstance(policy, SharingPolicy)
    assert policy.exchange == mode
    assert not isinstance(parse("FCFS"), SharingPolicy)


FRACS = st.integers(1, 50).map(lambda part: part / 50)


@given(st.integers(1, 24), FRACS, FRACS, st.integers(1, 6))
def test_a_job_can_run_if_an_empty_cluster_has_room_for_its_shares_and_memory(tasks, cpu, mem, nodes):
    job = Job(1, 0.0, tasks, cpu, mem, 1.0)
    assert can_ever_run(BANK, job, nodes) == bool(placed([Row(tasks, cpu=cpu, mem=mem)], nodes)[0])
    assert BANK.can_ever_run(tasks, mem, nodes) >= can_ever_run(BANK, job, nodes)


def test_several_tasks_of_a_job_may_share_a_node():
    assert can_ever_run(BANK, Job(1, 0.0, 8, 0.1, 0.1, 90.0), 2)
    assert not can_ever_run(BANK, Job(1, 0.0, 8, 0.3, 0.1, 90.0), 2)
