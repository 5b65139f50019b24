"""How much of an iteration's work each rank of a parallel job has: the same for programs, expected results and models.

* `uniform`: all have the same.
* `1/i`: rank i, counted from 1, has a part 1/i of what rank 1 has.
* `drift:N`: the same parts, but they move on by one rank after every N iterations: in iteration k, counted from 0, rank
  k // N modulo the ranks has the most, and the one after it half of that. All ranks together do in each iteration what
  they do with `1/i`.
"""

from __future__ import annotations

from collections.abc import Iterator

PATTERN = r"uniform|1/i|drift:[1-9][0-9]{0,8}"
_DRIFT = "drift:"


def drift_of(imbalance: str) -> int | None:
    """Return after how many iterations the work moves on, None if it stays."""
    return int(imbalance.removeprefix(_DRIFT)) if imbalance.startswith(_DRIFT) else None


def part(imbalance: str, rank: int, ranks: int, moves: int = 0) -> int:
    """Return the i of the part 1/i that a rank, from 0, has after so many moves."""
    if imbalance == "uniform":
        return 1
    return (rank - (moves if drift_of(imbalance) else 0)) % ranks + 1


def parts_of(imbalance: str, rank: int, ranks: int, iterations: int) -> Iterator[tuple[int, int]]:
    """Yield each part 1/i that a rank has in the first `iterations`, as i, and in how many of them."""
    every = drift_of(imbalance)
    if every is None:
        yield part(imbalance, rank, ranks), iterations
        return
    rounds, rest = divmod(iterations, every * ranks)
    for moves in range(ranks if rounds else min(ranks, -(-rest // every))):
        yield part(imbalance, rank, ranks, moves), rounds * every + min(every, max(rest - moves * every, 0))
