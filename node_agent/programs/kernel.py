"""The work unit: one sweep of a linear congruential generator over an array that fits in a core's L2 cache.

A unit replaces each of `ELEMENTS` 64-bit words by `x * LCG_A + LCG_C` modulo 2**64: integer work without branches,
which a compiler of another language cannot skip and whose result is defined to the bit. Worker w of rank r begins
with `stream(seed_of(seed, r, w), ELEMENTS)`; the checksum of a kernel is `seed_of(fold(w_0), fold(w_1), ...)`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from node_agent.programs.words import Words, fold, seed_of, stream

LCG_A = 6364136223846793005
LCG_C = 1442695040888963407
ELEMENTS = 32768


def sweep(words: Words, times: int) -> None:
    """Do `times` units on one array, in place; numpy lets other threads run meanwhile."""
    multiply, add, a, c = np.multiply, np.add, np.uint64(LCG_A), np.uint64(LCG_C)
    for _ in range(times):
        multiply(words, a, words)
        add(words, c, words)


class Kernel:
    """The compute state of one rank: one array per worker. The workers share the units and run in parallel."""

    def __init__(self, seed: int, rank: int, workers: int) -> None:
        self.arrays = [stream(seed_of(seed, rank, worker), ELEMENTS) for worker in range(workers)]
        self._all: Callable[[list[int]], None] = self._alone
        if workers > 1:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # 10 ms that a single worker can save

            pool = ThreadPoolExecutor(workers - 1, thread_name_prefix="worker")

            def side_by_side(times: list[int]) -> None:
                others = [pool.submit(sweep, *pair) for pair in zip(self.arrays[1:], times[1:], strict=True)]
                sweep(self.arrays[0], times[0])
                for other in others:
                    other.result()

            self._all = side_by_side

    def _alone(self, times: list[int]) -> None:
        sweep(self.arrays[0], times[0])

    def run(self, units: int) -> None:
        """Do `units` units, divided among the workers."""
        workers = len(self.arrays)
        each, more = divmod(units, workers)
        self._all([each + (worker < more) for worker in range(workers)])

    def checksum(self) -> int:
        """Return 64 bits that depend on every element of every worker."""
        return seed_of(*(fold(array) for array in self.arrays))
