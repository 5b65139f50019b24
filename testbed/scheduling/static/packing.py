"""MCB8 on the static problem: the highest yield at which its packing places all tasks [RR 4.3] [PHD V.A]."""

from __future__ import annotations

import numpy as np

from testbed.scheduling.compiler import can_compile, compiled, is_cached
from testbed.scheduling.policies.capacity import CAPACITY_FRAC
from testbed.scheduling.policies.mcb8 import mcb8
from testbed.scheduling.policies.packing import Runs, new_lists, new_patterns, pack, set_lists
from testbed.scheduling.policies.state import Cluster, Jobs, Rules
from testbed.scheduling.policies.view import NOT_PLACED
from testbed.scheduling.static.problem import Ints, StaticProblem

_RULES = Rules(0, 0, 0, 0, 0, 0.0, 0.0, 0.0, clamps_yields=False, backs_off=False)


def packed(problem: StaticProblem, *, compiles: bool = True) -> Ints | None:
    """Return the node of each task (T,) at the highest yield found; None if no yield of 0.01 or more places all tasks.

    Machine code that is not cached is only compiled with `compiles`.
    """
    jobs, cluster = _arrays(problem)
    search = compiled(mcb8) if can_compile() and (compiles or is_cached(mcb8)) else mcb8
    search(np.arange(problem.tasks), jobs, cluster, _RULES, 0.0, False)
    return cluster.task_node if cluster.running.all() else None


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


def packs_at(problem: StaticProblem, yield_frac: float) -> bool:
    """Whether one packing places all tasks at a yield: a step of the search, for measurements."""
    tasks = problem.tasks
    cpu = problem.cpu_need_frac * yield_frac
    memory = problem.mem_req_frac
    if float(cpu.sum()) > problem.nodes * CAPACITY_FRAC:
        return False
    lists, patterns = new_lists(tasks), new_patterns(problem.nodes, tasks)
    by_cpu = np.lexsort((-memory, -cpu)).astype(np.int64)
    by_mem = np.lexsort((-cpu, -memory)).astype(np.int64)
    runs = Runs(np.array([problem.nodes]), np.zeros(1), np.zeros(1), np.ones(1, dtype=np.int64))
    fill, place = (compiled(set_lists), compiled(pack)) if can_compile() else (set_lists, pack)
    fill(lists, cpu, memory, np.ones(tasks, dtype=np.int64), by_cpu, by_mem)
    return bool(place(lists, tasks, tasks, runs, patterns))
