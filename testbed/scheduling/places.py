"""Matching of two multisets of nodes so that as few tasks as possible move: tasks of a job are interchangeable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from testbed.scheduling.compiler import lean_kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_NOWHERE = -1


@lean_kernel
def match_nodes(current: Ints, wanted: Ints, counts: Ints, out: Ints) -> int:
    """Write the nodes of `wanted` to `out`, by task, so that as few tasks as possible leave `current`; count these.

    All arrays are (T,) except `counts` (N,), which is 0 before and after. Tasks stay where they can, the first of
    several on a node; the others take the remaining nodes, the lowest first. A `wanted` that is a permutation of
    `current` moves no task. With an empty `out`, tasks that move are only counted.
    """
    writes = out.size > 0
    lowest = wanted[0]
    for task in range(current.size):
        counts[wanted[task]] += 1
        lowest = min(lowest, wanted[task])
    moved = 0
    for task in range(current.size):
        node = current[task]
        stays = counts[node] > 0
        if stays:
            counts[node] -= 1
        else:
            moved += 1
        if writes:
            out[task] = node if stays else _NOWHERE
    for task in range(current.size):
        if not writes:
            counts[wanted[task]] = 0
        elif out[task] == _NOWHERE:
            while counts[lowest] == 0:
                lowest += 1
            counts[lowest] -= 1
            out[task] = lowest
    return moved


def stable_nodes(current: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """Return `wanted`, permuted so that as few tasks as possible leave their node in `current`.

    Only the multiset of nodes matters to a decision.
    """
    import numpy as np  # noqa: PLC0415  # commands that match no tasks start sooner

    nodes, places = np.unique([*current, *wanted], return_inverse=True)
    out = np.empty(len(wanted), dtype=np.int64)
    match_nodes(places[: out.size], places[out.size :], np.zeros(nodes.size, dtype=np.int64), out)
    return tuple(nodes[out].tolist())
