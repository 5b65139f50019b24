"""FCFS and EASY over whole traces: schedules by hand, an independent reference, and the live policy itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.policies.virtual_cluster import VirtualCluster  # among the tests of live policies, which it runs

from testbed.errors import UserError
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.batch import schedule_batch, simulate_batch
from testbed.scheduling.simulation.compiling import AT_ONCE, NEVER
from testbed.scheduling.workload.jobs import Job

FCFS, EASY, EASY_2011 = POLICIES = parse("FCFS"), parse("EASY"), parse("EASY/2011")


def trace(*rows):
    """Jobs from (submission, tasks, run time[, estimate])."""
    return [
        Job(number, float(submit), tasks, 1.0, 1.0, float(run), estimate_s=float(rest[0]) if rest else None)
        for number, (submit, tasks, run, *rest) in enumerate(rows, start=1)
    ]


def starts(policy, jobs, nodes):
    return schedule_batch(jobs, nodes, policy).start_s.tolist()


def places(done, jobs):
    return [part.tolist() for part in np.split(done.task_node, np.cumsum([job.tasks for job in jobs])[:-1])]


def test_the_reservation_of_the_head_by_hand():
    # B is the head from 1 on: shadow 10, extra 1. C would end at 11; D ends at exactly 10; E fits beside B for ever.
    jobs = trace((0, 2, 10), (1, 3, 5), (2, 2, 9), (3, 2, 7), (4, 1, 100))
    done = schedule_batch(jobs, 4, EASY)
    assert done.start_s.tolist() == [0, 10, 15, 3, 10]
    assert done.end_s.tolist() == [10, 15, 24, 10, 110]
    assert places(done, jobs) == [[0, 1], [0, 1, 2], [0, 1], [2, 3], [3]]
    # Without "ends by the shadow time" D waits until it is the head, and E takes the extra node at 4.
    done = schedule_batch(jobs, 4, EASY_2011)
    assert done.start_s.tolist() == [0, 10, 15, 24, 4]
    assert places(done, jobs) == [[0, 1], [0, 1, 3], [0, 1], [0, 1], [2]]
    assert starts(FCFS, jobs, 4) == [0, 10, 15, 15, 22]


def test_jobs_that_end_at_exactly_the_shadow_time_give_extra_nodes():
    # Both first jobs end at 10, so the head of 2 leaves 3 of 5 nodes: the last job fits beside it.
    jobs = trace((0, 2, 10), (0, 2, 10), (1, 2, 5), (2, 1, 50))
    assert starts(EASY, jobs, 5) == starts(EASY_2011, jobs, 5) == [0, 0, 10, 2]
    # A second later for one of them, and the shadow is still 10, with nothing beside the head but the idle node.
    jobs = trace((0, 2, 10), (0, 2, 11), (1, 3, 5), (2, 1, 50))
    assert starts(EASY, jobs, 5) == [0, 0, 10, 11]


@pytest.mark.parametrize("first_s", [9, 10])
def test_jobs_of_one_instant_go_in_file_order(first_s):
    # One node is free beside the first job, and each of the last two fits there, but not both in sequence.
    second_s = 19 - first_s
    jobs = trace((0, 1, 10), (0, 2, 5), (0, 1, first_s), (0, 1, second_s))
    assert starts(EASY, jobs, 2) == [0, 10, 0, 15]
    assert starts(FCFS, jobs, 2) == [0, 10, 15, 15]


def test_a_completion_frees_its_nodes_for_a_submission_of_the_same_instant():
    for policy in POLICIES:
        assert starts(policy, trace((0, 2, 10), (10, 2, 10)), 2) == [0, 10]


def test_wrong_estimates():
    # A runs over its estimate of 4. At 5 it is expected to end now, so C would delay B, which waits for it.
    assert starts(EASY, trace((0, 1, 10, 4), (1, 2, 5), (5, 1, 1)), 2) == [0, 10, 15]
    assert starts(EASY, trace((0, 1, 10), (1, 2, 5), (5, 1, 1)), 2) == [0, 10, 5]
    # A ends long before its estimate: C goes ahead of B, whose reservation was for 100, and B has to wait for it.
    assert starts(EASY, trace((0, 1, 10, 100), (1, 2, 5), (2, 1, 50)), 2) == [0, 52, 2]


def test_what_a_run_says_of_itself():
    jobs = trace((0, 2, 10), (1, 3, 5))
    run = simulate_batch(jobs, 4, EASY)
    assert (run.policy, run.nodes, run.decisions) == ("EASY", 4, 4)  # two submissions, two completions
    assert run.makespan_s == 15
    assert run.stretches().tolist() == [1.0, 1.4]
    assert not run.preemptions.any()
    assert 0 < run.decide_max_s <= run.decide_total_s
    assert schedule_batch([], 4, EASY).decisions == 0


def test_impossible_traces_are_refused():
    with pytest.raises(UserError, match=r"job 2: tasks = 5: expected at most one for each of 4 nodes"):
        simulate_batch(trace((0, 4, 1), (0, 5, 1)), 4, FCFS)
    with pytest.raises(UserError, match=r"job 2: submit_time_s = 3: expected"):
        simulate_batch(trace((4, 4, 1), (3, 4, 1)), 4, FCFS)
    with pytest.raises(UserError, match=r"nodes = 0"):
        simulate_batch(trace((4, 4, 1)), 0, FCFS)


def naive(jobs, nodes, *, backfill, before_shadow):
    """Return start times from a simple implementation with lists, which recomputes everything at every instant."""
    begun, ends = {}, {}

    def free_at(when, now):
        return nodes - sum(job.tasks for job in jobs if job in begun and ends[job] > now and expected(job, now) > when)

    def expected(job, now):
        return max(begun[job] + job.batch_estimate_s, now)

    def begin(job, now):
        begun[job], ends[job] = now, now + job.run_time_s

    now = -1.0
    while len(begun) < len(jobs):
        now = min(t for t in [job.submit_time_s for job in jobs] + list(ends.values()) if t > now)
        queue = [job for job in jobs if job.submit_time_s <= now and job not in begun]
        idle = nodes - sum(job.tasks for job in begun if ends[job] > now)
        while queue and queue[0].tasks <= idle:
            idle -= queue[0].tasks
            begin(queue.pop(0), now)
        if not queue or not backfill:
            continue
        candidates = sorted(expected(job, now) for job in begun if ends[job] > now)
        shadow = next(when for when in candidates if free_at(when, now) >= queue[0].tasks)
        extra = free_at(shadow, now) - queue[0].tasks
        for job in queue[1:]:
            short = before_shadow and now + job.batch_estimate_s <= shadow
            if job.tasks <= idle and (short or job.tasks <= extra):
                extra -= 0 if short else job.tasks
                idle -= job.tasks
                begin(job, now)
    return [begun[job] for job in jobs]


@st.composite
def traces(draw):
    """Few nodes and coarse times, so that instants, shadows and ends fall together."""
    nodes = draw(st.integers(1, 8))
    times = st.integers(1, 12)
    rows, submit = [], 0
    for _ in range(draw(st.integers(1, 25))):
        submit += draw(st.sampled_from([0, 0, 0, 1, 2, 7]))
        row = (submit, draw(st.integers(1, nodes)), draw(times))
        rows.append((*row, draw(times)) if draw(st.booleans()) else row)
    return trace(*rows), nodes


@given(traces())
@settings(max_examples=300)
def test_schedules_agree_with_an_independent_reference(case):
    jobs, nodes = case
    for policy in POLICIES:
        expected = naive(jobs, nodes, backfill=policy.backfill, before_shadow=policy.before_shadow)
        assert starts(policy, jobs, nodes) == expected


@given(traces())
@settings(max_examples=60)
def test_the_live_policy_makes_the_same_schedule_on_the_same_nodes(case):
    jobs, nodes = case
    for policy in POLICIES:
        live = VirtualCluster(jobs, nodes, policy)
        decisions = live.run().decisions
        for compiling in (AT_ONCE, NEVER):
            done = schedule_batch(jobs, nodes, policy, compiling)
            assert done.start_s.tolist() == live.start_s.tolist()
            assert done.end_s.tolist() == live.end_s.tolist()
            assert done.task_node.tolist() == live.task_node.tolist()
            assert done.decisions == decisions


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_long_trace_of_uneven_times(policy):
    random = np.random.default_rng(7)
    count, nodes = 400, 24
    tasks = np.minimum(2 ** random.integers(0, 6, count), nodes)
    run_s = random.lognormal(6, 2, count) + 1
    submit_s = np.cumsum(random.exponential(float((run_s * tasks).mean()) / nodes / 0.9, count))
    estimate_s = run_s * random.choice([0.5, 1.0, 1.0, 4.0], count)
    rows = zip(submit_s, tasks.tolist(), run_s, estimate_s, strict=True)
    jobs = trace(*rows)
    done, twin = schedule_batch(jobs, nodes, policy), schedule_batch(jobs, nodes, policy, NEVER)
    assert done.start_s.tobytes() == twin.start_s.tobytes()
    assert done.task_node.tobytes() == twin.task_node.tobytes()
    assert done.start_s.tolist() == naive(jobs, nodes, backfill=policy.backfill, before_shadow=policy.before_shadow)
    for node in range(nodes):
        there = np.unique(np.repeat(np.arange(count), tasks)[done.task_node == node])
        there = there[np.argsort(done.start_s[there])]
        assert (done.end_s[there][:-1] <= done.start_s[there][1:]).all()
