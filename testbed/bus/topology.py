"""Communication topologies of bulk-synchronous jobs: the neighbours of each rank."""

from __future__ import annotations

import math


def grid(ranks: int) -> tuple[int, int]:
    """Return rows and columns of the full grid nearest to a square; rank r is at (r // columns, r % columns).

    There are at most as many rows as columns.
    """
    rows = max(divisor for divisor in range(1, math.isqrt(ranks) + 1) if ranks % divisor == 0)
    return rows, ranks // rows


def parent(rank: int) -> int | None:
    """Return the parent in the binary reduction tree with root 0."""
    return (rank - 1) // 2 if rank else None


def children(rank: int, ranks: int) -> tuple[int, ...]:
    """Return the children in the binary reduction tree."""
    return tuple(child for child in (2 * rank + 1, 2 * rank + 2) if child < ranks)


def subtree(rank: int, ranks: int) -> tuple[int, ...]:
    """Return a rank and all its descendants in the reduction tree."""
    found = [rank]
    for member in found:
        found.extend(children(member, ranks))
    return tuple(found)


def neighbours(topology: str, rank: int, ranks: int) -> tuple[int, ...]:
    """Return the sorted ranks with which `rank` exchanges messages in each iteration, without itself.

    The relation is symmetric.
    """
    if topology == "all-to-all":
        near = set(range(ranks))
    elif topology == "tree":
        up = parent(rank)
        near = {*children(rank, ranks), *(() if up is None else (up,))}
    elif topology in ("linear", "ring"):
        near = _steps(rank, ranks, wraps=topology == "ring")
    else:
        rows, columns = grid(ranks)
        row, column = divmod(rank, columns)
        wraps = topology == "torus"
        near = {row * columns + step for step in _steps(column, columns, wraps=wraps)}
        near |= {step * columns + column for step in _steps(row, rows, wraps=wraps)}
    return tuple(sorted(near - {rank}))


def _steps(place: int, length: int, *, wraps: bool) -> set[int]:
    """Return the positions one step away on a line or, if it `wraps`, on a ring."""
    both = {place - 1, place + 1}
    return {other % length for other in both} if wraps else {other for other in both if 0 <= other < length}
