"""The results of the Python twins of the guests' programs: the expected checksums, without MPI."""

from __future__ import annotations

from functools import reduce

import numpy as np

from node_agent.programs.kernel import Kernel
from node_agent.programs.task import Task
from node_agent.programs.words import MASK, mix64, seed_of, stream
from testbed.bus.topology import children, neighbours, parent, subtree


def task(**changes) -> Task:
    fields = {
        "guest": "a", "run": "r", "job": 7, "task": 0, "memory_mib": 64, "name": "eatcpu", "work_units": 60,
        "units_per_iteration": 7, "seed": 11, "workers": 1, "rank": 0, "ranks": 1, "topology": "ring",
        "imbalance": "uniform", "message_bytes": 100,
    }  # fmt: skip
    made = Task(**{**fields, **changes})
    made.check()
    return made


def expected(one: Task) -> tuple[str, int]:
    """Return the final checksum of a task, and the number of messages that it receives."""
    kernel = Kernel(one.seed, one.rank, one.workers)
    digest = messages = 0
    for iteration in range(one.iterations):
        kernel.run(one.share(iteration))
        for source, first in _received(one, iteration) if one.ranks > 1 else ():
            words = stream(seed_of(one.seed, 3), -(-one.message_bytes // 8))
            words += np.uint64(seed_of(one.seed, source, one.rank, iteration))
            if first is not None:
                words[0] = first
            content = words.view("u1")
            content[one.message_bytes :] = 0
            digest = mix64(digest ^ int(np.bitwise_xor.reduce(words)))
            messages += 1
    return f"{seed_of(kernel.checksum(), digest):016x}", messages


def _received(one: Task, iteration: int) -> list[tuple[int, int | None]]:
    """Return the ranks that send to this rank in an iteration, in order, and the sums in messages of a tree."""
    if one.topology != "tree":
        return [(rank, None) for rank in neighbours(one.topology, one.rank, one.ranks)]

    def total(ranks) -> int:
        return reduce(lambda sum_, rank: (sum_ + seed_of(one.seed, rank, iteration)) & MASK, ranks, 0)

    got = [(child, total(subtree(child, one.ranks))) for child in children(one.rank, one.ranks)]
    above = parent(one.rank)
    return got if above is None else [*got, (above, total(range(one.ranks)))]
