"""Load imbalance: each rank's part of the work in an iteration, shared by programs, expected results and models.

* `uniform`: all ranks have the same work.
* `1/i`: rank i, counted from 1, has 1/i of the work of rank 1.
* `drift:N`: the same parts, shifted by one rank after every N iterations. In iteration k, counted from 0, rank k // N
  modulo the number of ranks has the most work, and the next rank half of that. The sum over all ranks is that of `1/i`.
"""

from __future__ import annotations

from collections.abc import Iterator

PATTERN = r"uniform|1/i|drift:[1-9][0-9]{0,8}"
_DRIFT = "drift:"


def drift_of(imbalance: str) -> int | None:
    """Return the number of iterations after which the work shifts by one rank, None if it does not shift."""
    return int(imbalance.removeprefix(_DRIFT)) if imbalance.startswith(_DRIFT) else None


def part(imbalance: str, rank: int, ranks: int, moves: int = 0) -> int:
    """Return the i of the part 1/i of a rank, counted from 0, after `moves` shifts."""
    if imbalance == "uniform":
        return 1
    return (rank - (moves if drift_of(imbalance) else 0)) % ranks + 1


def parts_of(imbalance: str, rank: int, ranks: int, iterations: int) -> Iterator[tuple[int, int]]:
    """Yield (i, number of iterations) for each part 1/i that a rank has in the first `iterations`."""
    every = drift_of(imbalance)
    if every is None:
        yield part(imbalance, rank, ranks), iterations
        return
    rounds, rest = divmod(iterations, every * ranks)
    for moves in range(ranks if rounds else min(ranks, -(-rest // every))):
        yield part(imbalance, rank, ranks, moves), rounds * every + min(every, max(rest - moves * every, 0))
