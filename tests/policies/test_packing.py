"""MCB8 against a naive reading of its text, brute force, and cases by hand."""

from __future__ import annotations

from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.policies.policy_views import Row, node_usage, state_of, view_of

from testbed.scheduling.policies import mcb8 as search
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.mcb8 import mcb8
from testbed.scheduling.policies.view import NOT_PLACED

EPS = 1e-9


def run(jobs, nodes, *, order=None, pinned=(), held=None, down=()):
    """Pack jobs of (tasks, CPU need, memory); return the nodes of each job, None for a dropped job.

    Virtual times make the priorities: 1 for the first of `order`, and so on. Pinned jobs have a time below MINVT, so
    they come first in the order.
    """
    rank = {row: place for place, row in enumerate(range(len(jobs)) if order is None else order)}
    rows = [
        Row(tasks, cpu, mem, vt=1.0 + rank[row], nodes=tuple((held or {}).get(row, ())))
        for row, (tasks, cpu, mem) in enumerate(jobs)
    ]
    view = view_of(rows, nodes, down=down)
    table, cluster = state_of(view)
    # A job is pinned by its state alone: jobs that have places and are not pinned have stopped.
    cluster.running[:] = [row in pinned for row in range(len(jobs))]
    rules = parse("/per/OPT=MIN/MINVT=1000").rules
    mcb8(np.arange(len(jobs)), table, cluster, rules, view.time_s, False)
    offset = table.offset
    split = [cluster.task_node[offset[j] : offset[j + 1]].tolist() for j in range(len(jobs))]
    assert cluster.running.tolist() == [NOT_PLACED not in places for places in split]
    return [None if NOT_PLACED in places else places for places in split]


# --- the algorithm to the letter: no shortcuts, the lists searched from the start for every task ------------


def naive_pack(jobs, rows, levels, nodes, pinned):
    cpu, mem = [0.0] * nodes, [0.0] * nodes
    places = {row: [] for row in rows}
    if any(levels[row] is None for row in rows):
        return None
    for row in rows:
        for node in pinned.get(row, ()):
            cpu[node] += jobs[row][1] * levels[row]
            mem[node] += jobs[row][2]
            places[row].append(node)
    if max(cpu) > 1 + EPS or max(mem) > 1 + EPS:
        return None
    need = {row: (jobs[row][1] * levels[row], jobs[row][2]) for row in rows}
    order = sorted((r for r in rows if r not in pinned), key=lambda r: (-max(need[r]), -min(need[r]), r))
    heavy = [r for r in order if need[r][0] > need[r][1]]
    others = [r for r in order if r not in heavy]
    for node in range(nodes):
        while True:
            lists = (others, heavy) if cpu[node] > mem[node] + EPS else (heavy, others)
            for row in lists[0] + lists[1]:
                if (
                    len(places[row]) < jobs[row][0]
                    and cpu[node] + need[row][0] <= 1 + EPS
                    and mem[node] + need[row][1] <= 1 + EPS
                ):
                    cpu[node] += need[row][0]
                    mem[node] += need[row][1]
                    places[row].append(node)
                    break
            else:
                break
    return places if all(len(places[row]) == jobs[row][0] for row in rows) else None


def naive_mcb8(jobs, order, nodes, pinned, level=lambda _, target: target):
    """Search the target; `level` returns the yield that a row needs for it, None if that is impossible."""
    for kept in range(len(jobs), 0, -1):
        rows = sorted(order[:kept])
        pins = {row: places for row, places in pinned.items() if row in rows}

        def feasible(target, rows=rows, pins=pins):
            return naive_pack(jobs, rows, {row: level(row, target) for row in rows}, nodes, pins)

        if best := feasible(1.0):
            return best
        if best := feasible(0.01):
            low, high = 0.01, 1.0
            while high - low > 0.01:
                middle = (low + high) / 2
                if found := feasible(middle):
                    low, best = middle, found
                else:
                    high = middle
            return best
    return {}


JOB_NEEDS = st.sampled_from([0.1, 0.25, 0.3, 0.5, 1.0]), st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.5, 0.7, 1.0])
JOB = st.tuples(st.integers(1, 4), *JOB_NEEDS)


@st.composite
def packings(draw):
    jobs = draw(st.lists(JOB, min_size=1, max_size=8))
    nodes = draw(st.integers(1, 4))
    order = draw(st.permutations(range(len(jobs))))
    pinned, used = {}, [0.0] * nodes
    for row, (tasks, _, mem) in enumerate(jobs):
        places = draw(st.lists(st.integers(0, nodes - 1), min_size=tasks, max_size=tasks))
        if draw(st.booleans()) and all(used[n] + mem * places.count(n) <= 1 for n in places):
            pinned[row] = places
            for n in places:
                used[n] += mem
    return jobs, nodes, order, pinned


@settings(max_examples=300)
@given(packings())
def test_mcb8_is_what_its_text_says(case):
    jobs, nodes, order, pinned = case
    expected = naive_mcb8(jobs, order, nodes, pinned)
    assert run(jobs, nodes, order=order, pinned=pinned, held=pinned) == [expected.get(row) for row in range(len(jobs))]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 25), *JOB_NEEDS), min_size=1, max_size=5), st.integers(1, 16), st.data())
def test_many_equal_tasks_on_many_nodes(jobs, nodes, data):
    """Patterns that are repeated, and equal jobs that are packed as one, make no difference."""
    copies = data.draw(st.lists(st.integers(0, len(jobs) - 1), max_size=4))
    jobs += [(data.draw(st.integers(1, 25)), *jobs[copy][1:]) for copy in copies]
    order = data.draw(st.permutations(range(len(jobs))))
    down = data.draw(st.sets(st.integers(0, nodes - 1), max_size=2))
    up = [node for node in range(nodes) if node not in down]
    expected = naive_mcb8(jobs, order, len(up), {}) if up else {}
    named = {row: [up[node] for node in places] for row, places in expected.items()}
    assert run(jobs, nodes, order=order, down=down) == [named.get(row) for row in range(len(jobs))]


@st.composite
def histories(draw):
    jobs, nodes, _, pinned = draw(packings())
    time_s = draw(st.sampled_from([1.0, 600.0, 5000.0, 90_000.0]))
    flow_s = sorted((draw(st.integers(0, 1000)) * time_s / 1000 for _ in jobs), reverse=True)
    return jobs, nodes, pinned, time_s, [(flow, draw(st.sampled_from([0.0, 0.3, 1.0])) * flow) for flow in flow_s]


@settings(max_examples=200)
@given(histories(), st.booleans())
def test_packing_for_the_stretch_is_what_its_text_says(case, clamps):
    """[RR 4.7]: the yield that brings each job to the stretch; [IPDPS]: 0.01 below 0, 1 above 1."""
    jobs, nodes, pinned, time_s, history = case
    pinned = {row: places for row, places in pinned.items() if 0 < history[row][1] < 500}
    rows = [
        Row(tasks, cpu, mem, vt=history[row][1], submit=time_s - history[row][0], nodes=tuple(pinned.get(row, ())))
        for row, (tasks, cpu, mem) in enumerate(jobs)
    ]

    def level(row, target):
        flow_s = time_s - rows[row].submit
        yield_ = ((flow_s + 600) * target - rows[row].vt) / 600
        if clamps and yield_ <= 0:
            return 0.01
        if not clamps and yield_ > 1 + EPS and target > 0.01:
            return None
        return min(max(yield_, 0.0), 1.0)

    def rank(row):
        flow_s = time_s - rows[row].submit
        return (-np.inf if rows[row].vt == 0 else -flow_s / rows[row].vt ** 2), row

    table, cluster = state_of(view_of(rows, nodes, time_s=time_s))
    rules = parse("/stretch-per/OPT=MAX/MINVT=500").rules._replace(clamps_yields=clamps)
    mcb8(np.arange(len(jobs)), table, cluster, rules, time_s, True)
    expected = naive_mcb8(jobs, sorted(range(len(jobs)), key=rank), nodes, pinned, level)
    for row in range(len(jobs)):
        got = cluster.task_node[table.offset[row] : table.offset[row + 1]].tolist()
        assert got == expected.get(row, [NOT_PLACED] * jobs[row][0])


@settings(max_examples=60)
@given(st.lists(JOB, min_size=1, max_size=4), st.integers(1, 3))
def test_against_all_maps(jobs, nodes):
    """No map beats the best one; memory suffices; dropped jobs are the last in the priority order."""
    got = run(jobs, nodes)
    kept = [row for row, places in enumerate(got) if places is not None]
    assert kept == list(range(len(kept)))
    tasks = np.array([jobs[row][0] for row in kept], dtype=np.int64)
    flat = np.array([*chain(*(got[row] for row in kept))], dtype=np.int64)
    mem = np.array([jobs[row][2] for row in kept])
    cpu = np.array([jobs[row][1] for row in kept])
    assert node_usage(flat, tasks, mem, nodes).max(initial=0.0) <= 1 + EPS
    reached = 1 / max(1.0, node_usage(flat, tasks, cpu, nodes).max(initial=0.0))

    def best_of_all(count):
        sizes = np.array([jobs[row][0] for row in range(count)], dtype=np.int64)
        if sizes.sum() > 7:
            return None
        need, req = (np.array([jobs[row][k] for row in range(count)]) for k in (1, 2))
        best = 0.0
        for candidate in product(range(nodes), repeat=int(sizes.sum())):
            places = np.array(candidate, dtype=np.int64)
            if node_usage(places, sizes, req, nodes).max() <= 1 + EPS:
                best = max(best, 1 / max(1.0, node_usage(places, sizes, need, nodes).max()))
        return best

    if kept and (best := best_of_all(len(kept))) is not None:
        assert reached <= best + 1e-12
        assert best > 0
    if best_of_all(len(jobs)) == 0.0:
        assert len(kept) < len(jobs)


# --- by hand -------------------------------------------------------------------------------------------------


def test_a_balanced_node_takes_from_the_cpu_list_then_against_the_imbalance():
    # CPU list: job 1 (.8, .1), job 2 (.2, .1); memory list: job 0 (.1, .9). Node 0: 1, then 0, which fills it.
    assert run([(1, 0.1, 0.9), (1, 0.8, 0.1), (1, 0.2, 0.1)], 2) == [[0], [0], [1]]


def test_equal_requirements_are_no_cpu_heavy_job():
    # Job 0 is in the memory list, so the smaller CPU-heavy job comes first on the empty node 0.
    assert run([(1, 0.9, 0.9), (1, 0.2, 0.1)], 2) == [[1], [0]]


def test_ties_go_by_the_other_dimension_then_submission():
    jobs = [(1, 0.6, 0.1), (1, 0.6, 0.3), (1, 0.6, 0.3)]
    assert run(jobs, 3) == [[2], [0], [1]]


def test_the_lowest_priority_is_dropped_until_memory_suffices():
    jobs = [(1, 1.0, 0.6), (1, 1.0, 0.6), (1, 1.0, 0.6)]
    assert run(jobs, 2, order=[2, 0, 1]) == [[0], None, [1]]
    assert run(jobs, 2, order=[2, 0, 1], down=[0]) == [None, None, [1]]
    assert run(jobs, 2, down=[0, 1]) == [None, None, None]


def test_a_pinned_job_keeps_its_nodes_or_is_dropped():
    jobs = [(1, 0.5, 0.6), (2, 0.5, 0.6)]
    assert run(jobs, 3, pinned=[0], held={0: [1]}) == [[1], [0, 2]]
    assert run(jobs, 2, order=[1, 0], pinned=[0], held={0: [1]}) == [None, [0, 1]]


@pytest.mark.parametrize(("count", "together"), [(100, True), (101, False)])
def test_the_least_yield_is_a_hundredth(count, together):
    got = run([(1, 1.0, 0.001)] * count, 1)
    assert (None not in got) == together


def test_the_search_tries_the_least_yield_then_halves_to_a_hundredth(monkeypatch):
    """Two jobs of need 1 share a node, so 0.5 is the maximum; demands above the whole cluster are not even packed."""
    tried = []

    def noting(lists, *rest):
        tried.append(float(lists.key[0] if lists.border[0] else lists.other[1]))
        return pack(lists, *rest)

    pack = search.pack
    monkeypatch.setattr(search, "pack", noting)
    assert run([(1, 1.0, 0.1), (1, 1.0, 0.1)], 1) == [[0], [0]]
    assert tried == pytest.approx([0.01, 0.2575, 0.38125, 0.443125, 0.4740625, 0.48953125, 0.497265625])
    tried.clear()
    assert run([(2, 0.5, 0.1)], 1) == [[0, 0]]
    assert tried == [0.5]  # a yield of 1, and no other
