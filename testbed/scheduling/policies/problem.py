"""Input of MCB8's packing: items of jobs with equal requirements, and pinned jobs, which keep their nodes [RR 4.3]."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.fairness import relative_weights
from testbed.scheduling.policies.packing import Lists, Runs, new_lists
from testbed.scheduling.policies.state import FLOW_TIME, VIRTUAL_TIME, Cluster, Jobs, Mask, Rules
from testbed.scheduling.policies.view import NOT_PLACED, Floats, Ints


class Problem(NamedTuple):
    """K items of F free rows, P pinned rows, and scratch arrays; R rows in all, M of N nodes are available."""

    free: Ints  # (F,) rows by item, then submission; rows that are left out come last in their item
    begin: Ints  # (K + 1,): the rows of item k are free[begin[k]:begin[k + 1]]
    tasks: Ints  # (K,) to be placed
    mem_frac: Floats  # (K,)
    cpu_frac: Floats  # (K,) requirements at the target that is tried
    by_cpu: Ints  # (K,) and `by_mem`: see `testbed.scheduling.policies.packing.set_lists`
    by_mem: Ints  # (K,)
    pinned: Ints  # (P,) rows, NOT_PLACED for one that is left out
    dropped: Mask  # (R,) which rows are left out
    item: Ints  # (R,) the item of each row, NOT_PLACED for a pinned one
    nodes: Ints  # (M,)
    load_cpu: Floats  # (N,) use of the pinned rows
    load_mem: Floats  # (N,)
    lists: Lists
    runs: Runs
    ratio: Floats  # (J,) relative weights


@lean_kernel
def position_of(rows: Ints, row: int) -> int:
    """Return the index of `row` in the ascending `rows`, which must contain it."""
    low, high = 0, rows.size - 1
    while low < high:
        middle = (low + high) // 2
        if rows[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


@lean_kernel
def is_pinned(row: int, jobs: Jobs, cluster: Cluster, rules: Rules, time_s: float) -> bool:
    """Whether a running job keeps its nodes if it continues to run: its time is strictly below the limit [RR 4.3]."""
    if not cluster.running[row]:
        return False
    if rules.limit == VIRTUAL_TIME:
        return bool(cluster.virtual_time_s[row] < rules.limit_s)
    if rules.limit == FLOW_TIME:
        return bool(time_s - jobs.submit_time_s[row] < rules.limit_s)
    return False


@kernel
def new_problem(rows: Ints, jobs: Jobs, cluster: Cluster, rules: Rules, time_s: float, own: bool) -> Problem:
    """Return the problem of the ascending `rows`; with `own` each row is a separate item, as yields differ."""
    free = np.empty(rows.size, dtype=np.int64)
    pinned = np.empty(rows.size, dtype=np.int64)
    frees, pins = 0, 0
    for row in rows:
        if is_pinned(row, jobs, cluster, rules, time_s):
            pinned[pins] = row
            pins += 1
        else:
            free[frees] = row
            frees += 1
    free = free[:frees]
    item = np.full(rows.size, NOT_PLACED, dtype=np.int64)
    begin = np.empty(frees + 1, dtype=np.int64)
    items = 0
    if not own:
        free = _sorted(free, jobs)
    for index in range(frees):
        row = free[index]
        before = free[index - 1]
        if (
            own
            or index == 0
            or jobs.cpu_need_frac[row] != jobs.cpu_need_frac[before]
            or jobs.mem_req_frac[row] != jobs.mem_req_frac[before]
        ):
            begin[items] = index
            items += 1
        item[position_of(rows, row)] = items - 1
    begin[items] = frees
    tasks = np.zeros(items, dtype=np.int64)
    mem_frac = np.empty(items)
    for number in range(items):
        mem_frac[number] = jobs.mem_req_frac[free[begin[number]]]
        for index in range(begin[number], begin[number + 1]):
            tasks[number] += jobs.offset[free[index] + 1] - jobs.offset[free[index]]
    nodes = np.flatnonzero(cluster.node_available)
    problem = Problem(
        free,
        begin[: items + 1],
        tasks,
        mem_frac,
        np.empty(items),
        np.arange(items),
        np.argsort(-mem_frac, kind="mergesort"),
        pinned[:pins],
        np.zeros(rows.size, dtype=np.bool_),
        item,
        nodes,
        np.empty(cluster.node_available.size),
        np.empty(cluster.node_available.size),
        new_lists(items),
        Runs(
            np.empty(nodes.size, dtype=np.int64),
            np.empty(nodes.size),
            np.empty(nodes.size),
            np.zeros(1, dtype=np.int64),
        ),
        relative_weights(rows, jobs, cluster, rules),
    )
    return problem  # noqa: RET504


@kernel
def _sorted(free: Ints, jobs: Jobs) -> Ints:
    """Return rows by decreasing CPU need, then decreasing memory, then submission."""
    free = free[np.argsort(-jobs.mem_req_frac[free], kind="mergesort")]
    return free[np.argsort(-jobs.cpu_need_frac[free], kind="mergesort")]


@kernel
def sort_items(problem: Problem) -> None:
    """Set both orders of the items by their requirements at the target that is tried."""
    cpu_order = np.argsort(-problem.cpu_frac, kind="mergesort")
    by_mem = cpu_order[np.argsort(-problem.mem_frac[cpu_order], kind="mergesort")]
    mem_order = np.argsort(-problem.mem_frac, kind="mergesort")
    by_cpu = mem_order[np.argsort(-problem.cpu_frac[mem_order], kind="mergesort")]
    problem.by_cpu[:] = by_cpu
    problem.by_mem[:] = by_mem


@lean_kernel
def drop(problem: Problem, rows: Ints, row: int, jobs: Jobs) -> int:
    """Leave a row out; return the number of its tasks."""
    tasks = int(jobs.offset[row + 1] - jobs.offset[row])
    position = position_of(rows, row)
    problem.dropped[position] = True
    item = problem.item[position]
    if item == NOT_PLACED:
        for index in range(problem.pinned.size):
            if problem.pinned[index] == row:
                problem.pinned[index] = NOT_PLACED
        return tasks
    problem.tasks[item] -= tasks
    # Move the row behind the others, which keep their order.
    end = problem.begin[item + 1]
    index = problem.begin[item]
    while problem.free[index] != row:
        index += 1
    while index + 1 < end:
        problem.free[index] = problem.free[index + 1]
        index += 1
    problem.free[end - 1] = row
    return tasks
