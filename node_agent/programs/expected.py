"""The expected checksum of a task, computed without doing the task's work.

A unit is an affine map modulo 2**64, so any number of units is one map again; messages are known to their receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from node_agent.programs.kernel import ELEMENTS, LCG_A, LCG_C
from node_agent.programs.task import Task, part_of
from node_agent.programs.words import MASK, Words, fold, mix64, mixed, seed_of, stream
from testbed.bus.imbalance import parts_of
from testbed.bus.need_profile import WHOLE, phases, scaled
from testbed.bus.topology import children, neighbours, parent, subtree

_WORDS_AT_ONCE = 1 << 16  # half a megabyte: it fits in a core's cache


def work_checksum(task: Task, given_up: Callable[[], bool] = lambda: False) -> int | None:
    """Return the checksum of a `Kernel` that has done all of a task's work; None as soon as `given_up()` is true."""
    if given_up():
        return None
    totals = [0] * task.workers
    last = task.iterations - 1
    # all iterations but the last have the same number of units
    counts = [
        (times, part_of(part_of(units, divisor), task.counted_part))
        for units, alike in _alike(task, last)
        for divisor, times in parts_of(task.imbalance, task.rank, task.ranks, alike)
    ]
    for times, units in (*counts, (1, task.counted(last))):
        each, more = divmod(units, task.workers)
        for worker in range(task.workers):
            totals[worker] += times * (each + (worker < more))
    return seed_of(
        *(
            fold(_advanced(stream(seed_of(task.seed, task.rank, worker), ELEMENTS), total))
            for worker, total in enumerate(totals)
        )
    )


def _alike(task: Task, iterations: int) -> list[tuple[int, int]]:
    """Return units per iteration and number of iterations of each phase of the first `iterations`.

    Parts that drift have no profile.
    """
    begins = phases(task.profile, task.iterations)
    ends = [*(begin for begin, _ in begins[1:]), iterations]
    units = task.units_after(1)
    return [
        (units if task.profile == WHOLE else scaled(units, factor), min(end, iterations) - min(begin, iterations))
        for (begin, factor), end in zip(begins, ends, strict=True)
    ]


def message_digest(task: Task, given_up: Callable[[], bool] = lambda: False) -> int | None:
    """Return the digest of every message of every iteration, in order; None as soon as `given_up()` is true.

    Takes 1 to 3 µs per message of 4 KiB. `given_up` is called for every 64 Ki words of messages.
    """
    if task.ranks == 1:
        return 0
    digest = 0
    messages = _Messages(task)
    for first in range(0, task.iterations, messages.at_once):
        if given_up():
            return None
        for content in messages.received(first, min(first + messages.at_once, task.iterations)):
            digest = mix64(digest ^ content)
    return digest


def expected_checksum(
    task: Task,
    given_up: Callable[[], bool] = lambda: False,
    work: Callable[[Task, Callable[[], bool]], int | None] = work_checksum,
) -> str:
    """Return the checksum of work and messages that `done` must report; empty as soon as `given_up()` is true."""
    done = work(task, given_up)
    digest = None if done is None else message_digest(task, given_up)
    return "" if done is None or digest is None else f"{seed_of(done, digest):016x}"


def _advanced(words: Words, times: int) -> Words:
    """Do `times` units at once, by repeated squaring of their map."""
    factor, term = 1, 0
    a, c = LCG_A, LCG_C
    while times:
        if times & 1:
            factor, term = factor * a & MASK, (term * a + c) & MASK
        a, c = a * a & MASK, (c * a + c) & MASK
        times >>= 1
    return words * np.uint64(factor) + np.uint64(term)


class _Messages:
    """The messages that one rank receives, each as the exclusive or of its words; see `exchange`."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._base = stream(seed_of(task.seed, 3), -(-task.message_bytes // 8))
        rest = task.message_bytes % 8
        self._last = np.uint64((1 << 8 * rest) - 1 if rest else MASK)  # bytes of the last word that are sent
        self.at_once = max(1, _WORDS_AT_ONCE // self._base.size)  # iterations
        self._words = np.empty((self.at_once, self._base.size), np.uint64)
        if task.topology == "tree":
            above = parent(task.rank)
            self._from = [(child, subtree(child, task.ranks)) for child in children(task.rank, task.ranks)]
            if above is not None:
                self._from.append((above, tuple(range(task.ranks))))
        else:
            self._from = [(rank, ()) for rank in neighbours(task.topology, task.rank, task.ranks)]

    def received(self, first: int, end: int) -> Iterator[int]:
        """Yield the messages of the iterations from `first` to before `end`, in the order of their verification."""
        iterations = np.arange(first, end, dtype=np.uint64)
        contents = np.empty((iterations.size, len(self._from)), np.uint64)
        for place, (source, summed) in enumerate(self._from):
            seeds = self._seeds(iterations, source, self._task.rank)
            words = np.add(self._base, seeds[:, np.newaxis], out=self._words[: iterations.size])
            if summed:
                words[:, 0] = sum(self._seeds(iterations, rank) for rank in summed)
            words[:, -1] &= self._last
            contents[:, place] = np.bitwise_xor.reduce(words, axis=1)
        yield from contents.ravel().tolist()

    def _seeds(self, iterations: Words, *parts: int) -> Words:
        """Return `seed_of(seed of the task, *parts, iteration)` for each iteration."""
        return mixed(iterations ^ np.uint64(seed_of(self._task.seed, *parts)))
