"""MCB8 on the static problem: the highest yield at which its packing places all tasks [RR 4.3] [PHD V.A].

The search of the on-line policy ends at a width of 0.01. Here it goes on to `ACCURACY_FRAC` of the yield, as otherwise
the width would be most of the gap to the bound; [PHD] does not say at which width it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from testbed.scheduling.compiler import can_compile, compiled, is_cached
from testbed.scheduling.policies.capacity import CAPACITY_FRAC
from testbed.scheduling.policies.mcb8 import mcb8
from testbed.scheduling.policies.packing import Runs, new_lists, new_patterns, pack, set_lists
from testbed.scheduling.policies.state import Cluster, Jobs, Rules
from testbed.scheduling.policies.view import NOT_PLACED
from testbed.scheduling.static.problem import Ints, StaticProblem, minimum_yield

F = TypeVar("F", bound=Callable[..., Any])

ACCURACY_FRAC = 0.001
_RULES = Rules(0, 0, 0, 0, 0, 0.0, 0.0, 0.0, clamps_yields=False, backs_off=False)


def packed(problem: StaticProblem, *, compiles: bool = True) -> Ints | None:
    """Return the node of each task (T,) at the highest yield found; None if no yield of 0.01 or more places all tasks.

    Machine code that is not cached is only compiled with `compiles`.
    """
    jobs, cluster = _arrays(problem)
    _form(mcb8, compiles=compiles)(np.arange(problem.tasks), jobs, cluster, _RULES, 0.0, False)
    if not cluster.running.all():
        return None
    best = cluster.task_node
    low, high = minimum_yield(problem, best), problem.bound
    while high - low > ACCURACY_FRAC * low:
        middle = (low + high) / 2.0
        found = packed_at(problem, middle, compiles=compiles)
        if found is None:
            high = middle
        else:
            best, low = found, max(middle, minimum_yield(problem, found))
    return best


def _form(kernel: F, *, compiles: bool) -> F:
    return compiled(kernel) if can_compile() and (compiles or is_cached(kernel)) else kernel


def _arrays(problem: StaticProblem) -> tuple[Jobs, Cluster]:
    """Return the problem as a cluster of jobs of one task."""
    tasks = problem.tasks
    jobs = Jobs(
        submit_time_s=np.zeros(tasks),
        offset=np.arange(tasks + 1, dtype=np.int64),
        cpu_need_frac=problem.cpu_need_frac,
        mem_req_frac=problem.mem_req_frac,
        weight=np.ones(tasks),
        least_yield_frac=np.zeros(tasks),
    )
    cluster = Cluster(
        node_available=np.ones(problem.nodes, dtype=np.bool_),
        virtual_time_s=np.zeros(tasks),
        running=np.zeros(tasks, dtype=np.bool_),
        task_node=np.full(tasks, NOT_PLACED, dtype=np.int64),
        yield_frac=np.zeros(tasks),
    )
    return jobs, cluster


def packed_at(problem: StaticProblem, yield_frac: float, *, compiles: bool = True) -> Ints | None:
    """Return the node of each task (T,) of one packing at a yield; None if it does not place all tasks."""
    tasks = problem.tasks
    cpu = problem.cpu_need_frac * yield_frac
    memory = problem.mem_req_frac
    if float(cpu.sum()) > problem.nodes * CAPACITY_FRAC:
        return None
    lists, patterns = new_lists(tasks), new_patterns(problem.nodes, tasks)
    by_cpu = np.lexsort((-memory, -cpu)).astype(np.int64)
    by_mem = np.lexsort((-cpu, -memory)).astype(np.int64)
    runs = Runs(np.array([problem.nodes]), np.zeros(1), np.zeros(1), np.ones(1, dtype=np.int64))
    _form(set_lists, compiles=compiles)(lists, cpu, memory, np.ones(tasks, dtype=np.int64), by_cpu, by_mem)
    if not _form(pack, compiles=compiles)(lists, tasks, tasks, runs, patterns):
        return None
    found = int(patterns.number[0])  # patterns of one node each, as each item is one task
    on_node = np.diff(patterns.end[:found], prepend=0)
    node = np.empty(tasks, dtype=np.int64)
    node[patterns.item[:tasks]] = np.repeat(patterns.first[:found], on_node)
    return node
