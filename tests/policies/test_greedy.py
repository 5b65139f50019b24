"""Greedy placement and the choice of victims against references in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.policies.policy_views import Row, state_of, view_of

from testbed.scheduling.policies.capacity import node_memory, node_usage
from testbed.scheduling.policies.greedy import fits, make_room, place, place_all
from testbed.scheduling.policies.priority import by_decreasing_priority
from testbed.scheduling.policies.view import NOT_PLACED

TENTHS = st.integers(1, 10)
# A task: CPU need and memory in tenths. A node: the tasks on it, as far as memory permits.
TASK = st.tuples(TENTHS, TENTHS)


@st.composite
def loaded_nodes(draw):
    nodes = []
    for _ in range(draw(st.integers(1, 5))):
        held, mem = [], 0
        for cpu, need in draw(st.lists(TASK, max_size=5)):
            if mem + need <= 10:
                held.append((cpu, need))
                mem += need
        nodes.append(held)
    return nodes


def reference_place(nodes, cpu, mem, tasks):
    """Place each task on the least loaded node with memory for it, in fractions; None if a task has none."""
    load = [sum((Fraction(c, 10) for c, _ in node), Fraction(0)) for node in nodes]
    used = [sum((Fraction(m, 10) for _, m in node), Fraction(0)) for node in nodes]
    out = []
    for _ in range(tasks):
        able = [n for n in range(len(nodes)) if used[n] + Fraction(mem, 10) <= 1]
        if not able:
            return None
        best = min(able, key=lambda n: (load[n], n))
        load[best] += Fraction(cpu, 10)
        used[best] += Fraction(mem, 10)
        out.append(best)
    return out


@given(loaded_nodes(), TASK, st.integers(1, 12))
def test_place_is_greedy_in_exact_arithmetic(nodes, task, tasks):
    cpu = np.array([sum(c / 10 for c, _ in node) for node in nodes], dtype=np.float64)
    mem = np.array([sum(m / 10 for _, m in node) for node in nodes], dtype=np.float64)
    before = cpu.copy(), mem.copy()
    out = np.zeros(tasks, dtype=np.int64)
    expected = reference_place(nodes, *task, tasks)

    assert fits(tasks, task[1] / 10, mem) == (expected is not None)
    assert place(task[0] / 10, task[1] / 10, cpu, mem, out) == (expected is not None)
    if expected is None:
        assert (out == NOT_PLACED).all()
        assert (cpu == before[0]).all()
        assert (mem == before[1]).all()
    else:
        assert out.tolist() == expected
        added = np.bincount(expected, minlength=len(nodes))
        assert np.allclose(cpu - before[0], added * task[0] / 10)
        assert np.allclose(mem - before[1], added * task[1] / 10)


@given(st.lists(st.floats(0, 3), min_size=1, max_size=6), st.integers(1, 12), st.sampled_from([1e-10, 1e-9, 0.3]))
def test_place_task_by_task_whatever_the_loads(loads, tasks, need):
    """Loads that nearly tie, and needs below the tolerance, give the same result as placing task after task."""
    loads += [loads[0] + nudge for nudge in (9e-10, 1.8e-9, -1.5e-9)]
    cpu, out = np.array(loads), np.zeros(tasks, dtype=np.int64)
    expected = []
    for _ in range(tasks):
        node = next(n for n, load in enumerate(loads) if load <= min(loads) + 1e-9)
        loads[node] += need
        expected.append(node)
    assert place(need, 0.01, cpu, np.zeros(cpu.size), out)
    assert out.tolist() == expected
    assert cpu.tolist() == loads


@given(loaded_nodes(), st.lists(st.tuples(TASK, st.integers(1, 12)), max_size=8))
def test_jobs_that_are_tried_in_turn_are_placed_one_by_one(nodes, asked):
    rows = [Row(1, cpu=c / 10, mem=m / 10, nodes=(n,)) for n, held in enumerate(nodes) for c, m in held]
    first = len(rows)
    rows += [Row(tasks, cpu=c / 10, mem=m / 10) for (c, m), tasks in asked]
    jobs, cluster = state_of(view_of(rows, len(nodes)))
    everybody = np.arange(len(rows))
    cpu = node_usage(everybody, jobs, cluster, jobs.cpu_need_frac)
    place_all(everybody[first:], jobs, cluster, cpu, node_memory(everybody, jobs, cluster))
    for row, ((c, m), tasks) in enumerate(asked, start=first):
        expected = reference_place(nodes, c, m, tasks)
        for node in expected or ():
            nodes[node].append((c, m))
        got = cluster.task_node[jobs.offset[row] : jobs.offset[row + 1]].tolist()
        assert got == (expected or [NOT_PLACED] * tasks)
        assert cluster.running[row] == (expected is not None)


def test_nodes_that_may_not_be_used_are_full():
    jobs, cluster = state_of(view_of([Row(1, mem=0.5, nodes=(1,))], 2, down=[0]))
    mem = node_memory(np.array([0]), jobs, cluster)
    assert mem.tolist() == [np.inf, 0.5]
    assert not fits(2, 0.5, mem)
    assert fits(1, 0.5, mem)


@st.composite
def running_jobs(draw):
    """Running jobs (list of nodes per job, memory in tenths), least important first, and a newcomer."""
    nodes = draw(st.integers(1, 4))
    used = [0] * nodes
    jobs = []
    for _ in range(draw(st.integers(0, 7))):
        mem = draw(TENTHS)
        wanted = draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=4))
        if all(used[n] + mem * wanted.count(n) <= 10 for n in wanted):
            for n in wanted:
                used[n] += mem
            jobs.append((wanted, mem))
    return nodes, jobs, (draw(st.integers(1, 6)), draw(TENTHS))


def room_for(nodes, kept, newcomer):
    """Whether the newcomer fits beside the kept jobs: whole tasks per node, in integers."""
    used = [sum(places.count(n) * mem for places, mem in kept) for n in range(nodes)]
    return sum((10 - u) // newcomer[1] for u in used) >= newcomer[0]


@given(running_jobs())
def test_victims_are_marked_upwards_and_unmarked_downwards(case):
    nodes, jobs, newcomer = case
    marked = []
    while not room_for(nodes, [j for i, j in enumerate(jobs) if i not in marked], newcomer):
        if len(marked) == len(jobs):
            marked = None
            break
        marked.append(len(marked))
    for index in sorted(marked or (), reverse=True):
        kept = [j for i, j in enumerate(jobs) if i not in marked or i == index]
        if room_for(nodes, kept, newcomer):
            marked.remove(index)

    rows = [Row(len(places), mem=m / 10, nodes=tuple(places)) for places, m in jobs]
    table, cluster = state_of(view_of([*rows, Row(newcomer[0], mem=newcomer[1] / 10)], nodes))
    mem = node_memory(np.arange(len(rows)), table, cluster)
    before = mem.copy()
    marks = np.ones(len(jobs), dtype=np.bool_)
    possible = make_room(len(jobs), np.arange(len(jobs)), table, cluster, mem, marks)

    assert possible == (marked is not None)
    assert np.flatnonzero(marks).tolist() == (marked or [])
    released = np.zeros(nodes)
    for index in marked or ():
        np.add.at(released, jobs[index][0], jobs[index][1] / 10)
    assert np.allclose(mem, before - released)
    assert not possible or fits(newcomer[0], newcomer[1] / 10, mem)


@given(st.lists(st.tuples(st.integers(0, 900), st.sampled_from([0.0, 1.0, 2.0, 30.0])), max_size=8), st.booleans())
def test_priority_is_flow_over_virtual_time_squared_and_ties_go_to_the_first(jobs, bounded):
    jobs.sort(key=lambda job: job[0])
    table, cluster = state_of(view_of([Row(1, submit=float(s), vt=v) for s, v in jobs], 1))
    least_s = 300 if bounded else 0
    got = by_decreasing_priority(np.arange(len(jobs)), table, cluster, 1000.0, float(least_s)).tolist()
    exact = [Fraction(10**12) if v == 0 else Fraction(max(1000 - s, least_s)) / Fraction(v) ** 2 for s, v in jobs]
    assert got == sorted(range(len(jobs)), key=lambda j: (-exact[j], j))


def test_the_more_important_victim_is_kept():
    # A job of .5 arrives at a full node: .2, .2 and .4 are marked; then one of the first two may stay: the second.
    rows = [Row(1, mem=mem, nodes=(0,)) for mem in (0.2, 0.2, 0.4)]
    jobs, cluster = state_of(view_of([*rows, Row(1, mem=0.5)], 1))
    marks, mem = np.zeros(3, dtype=np.bool_), np.array([1.0])
    assert make_room(3, np.arange(3), jobs, cluster, mem, marks)
    assert marks.tolist() == [True, False, True]
    assert np.allclose(mem, 1.0 - 0.2 - 0.4)


def test_loads_that_are_equal_but_for_rounding_tie():
    cpu, out = np.array([0.1 + 0.2, 0.3]), np.zeros(1, dtype=np.int64)
    assert cpu[0] > cpu[1]
    assert place(0.1, 0.1, cpu, np.zeros(2), out)
    assert out.tolist() == [0]
