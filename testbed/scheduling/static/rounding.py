"""Randomised rounding of the relaxation [PHD V.A]: a task goes to a node with the probability in its solution.

Under RRND a probability of 0 excludes the node. Under RRNZ every probability is at least 0.01: a task can then be
placed on further nodes if its own are full. Nodes without enough free memory are excluded, and the probabilities of
the other nodes are scaled to the sum 1.
"""

from __future__ import annotations

import numpy as np

from testbed.scheduling.policies.capacity import CAPACITY_FRAC
from testbed.scheduling.static.problem import Floats, Ints, StaticProblem

LEAST_PROBABILITY = 0.01  # of RRNZ


def rounded(problem: StaticProblem, relaxed: Floats, seed: int, *, non_zero: bool) -> Ints | None:
    """Return the node of each task (T,) by probabilities `relaxed` (T, N); None if a task does not fit."""
    draw = np.random.default_rng(seed)
    chances = np.maximum(relaxed, LEAST_PROBABILITY) if non_zero else relaxed
    memory = np.zeros(problem.nodes)
    node = np.full(problem.tasks, -1, dtype=np.int64)
    for task in range(problem.tasks):
        own = np.where(memory + problem.mem_req_frac[task] <= CAPACITY_FRAC, chances[task], 0.0)
        total = float(own.sum())
        if total <= 0.0:
            return None
        node[task] = draw.choice(problem.nodes, p=own / total)
        memory[node[task]] += problem.mem_req_frac[task]
    return node
