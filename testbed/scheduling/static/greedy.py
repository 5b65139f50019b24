"""Greedy placement: each task goes to the node with the least CPU load and enough free memory [PHD V.A].

GR takes tasks in the given order, SG those with the largest memory requirement first, as memory may not suffice; of
tasks with equal memory, the one with the highest CPU need is first. [PHD] does not give this order. GB and SGB also
backtrack when a task does not fit: the previous task takes its next best node, up to a total number of attempts.
"""

from __future__ import annotations

import numpy as np

from testbed.scheduling.policies.capacity import CAPACITY_FRAC
from testbed.scheduling.static.problem import Floats, Ints, StaticProblem

ATTEMPTS = 500_000  # of placing a task, with backtracking


def greedy(problem: StaticProblem, *, by_memory: bool, attempts: int = 0) -> Ints | None:
    """Return the node of each task (T,), None if one does not fit; with `attempts` 0 without backtracking."""
    order = _order(problem, by_memory=by_memory)
    return _once(problem, order) if attempts == 0 else _backtracking(problem, order, attempts)


def _order(problem: StaticProblem, *, by_memory: bool) -> Ints:
    if not by_memory:
        return np.arange(problem.tasks, dtype=np.int64)
    return np.lexsort((-problem.cpu_need_frac, -problem.mem_req_frac)).astype(np.int64)


def _once(problem: StaticProblem, order: Ints) -> Ints | None:
    load, memory = np.zeros(problem.nodes), np.zeros(problem.nodes)
    node = np.full(problem.tasks, -1, dtype=np.int64)
    for task in order:
        fits = memory + problem.mem_req_frac[task] <= CAPACITY_FRAC
        if not fits.any():
            return None
        best = int(np.where(fits, load, np.inf).argmin())
        _put(problem, int(task), best, load, memory)
        node[task] = best
    return node


def _backtracking(problem: StaticProblem, order: Ints, attempts: int) -> Ints | None:
    """Search depth-first; only one of several nodes with equal use is tried."""
    load, memory = np.zeros(problem.nodes), np.zeros(problem.nodes)
    node = np.full(problem.tasks, -1, dtype=np.int64)
    choices: list[list[int]] = [_choices(problem, int(order[0]), load, memory)]
    before: list[tuple[float, float]] = []  # use of the chosen node before each placed task, in the order of tasks
    while choices:
        depth = len(choices) - 1
        task = int(order[depth])
        if node[task] >= 0:  # back from a deeper task: this one takes another node
            load[node[task]], memory[node[task]] = before.pop()  # a subtraction would leave rounding errors
            node[task] = -1
        if not choices[-1]:
            choices.pop()
            continue
        if attempts <= 0:
            return None
        attempts -= 1
        chosen = choices[-1].pop()
        before.append((float(load[chosen]), float(memory[chosen])))
        _put(problem, task, chosen, load, memory)
        node[task] = chosen
        if depth + 1 == problem.tasks:
            return node
        choices.append(_choices(problem, int(order[depth + 1]), load, memory))
    return None


def _choices(problem: StaticProblem, task: int, load: Floats, memory: Floats) -> list[int]:
    """Return the nodes that a task fits on, the best last; of nodes with equal use only the first."""
    fitting = np.flatnonzero(memory + problem.mem_req_frac[task] <= CAPACITY_FRAC)
    fitting = fitting[np.argsort(load[fitting], kind="stable")]
    found: dict[tuple[float, float], int] = {}
    uses = zip(load[fitting].tolist(), memory[fitting].tolist(), strict=True)
    for use, each in zip(uses, fitting.tolist(), strict=True):
        found.setdefault(use, each)
    return list(found.values())[::-1]


def _put(problem: StaticProblem, task: int, node: int, load: Floats, memory: Floats) -> None:
    load[node] += problem.cpu_need_frac[task]
    memory[node] += problem.mem_req_frac[task]
