"""Barriers of one MPI job: the ranks that have entered the next barrier, and the keys that each publishes in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import Enum

from testbed.bus.messages import RankKeys
from testbed.bus.mpi_keys import MOST_KEYS, BadKeysError, check_keys

MOST_BARRIERS = 32  # in the life of a job's processes: MPI has one at its start and one at its end
MOST_REPEATS = 8  # of one barrier by one rank, as a guest that was moved enters its barrier again


class BadBarrierError(BadKeysError):
    """A rank enters a barrier that is not the next one, or enters a barrier too often."""


class UnequalKeysError(BadKeysError):
    """The gathered keys of `ranks` differ in name or size from those of `others`, the largest group of equal ranks."""

    def __init__(self, message: str, ranks: tuple[int, ...], others: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.others = others
        super().__init__(message)


class Entered(Enum):
    """The result of entering a barrier."""

    WAITS = "waits"  # for other ranks
    ALL = "all"  # every rank may pass
    AGAIN = "again"  # this rank may pass: all had entered before


class Barriers:
    """The barriers of a job from the start of its processes to their end. `keys` are those of the last full barrier.

    The caller forwards `keys` once `enter` returns another value than `WAITS`.
    """

    def __init__(self, ranks: int) -> None:
        self.released = 0
        self.keys: tuple[RankKeys, ...] = ()
        self._ranks = ranks
        self._inside: dict[int, dict[str, str]] = {}
        self._sizes: dict[int, dict[str, int]] = {}  # bytes of each gathering, by rank
        self._published = [0] * ranks
        self._repeats = [0] * ranks

    @property
    def inside(self) -> tuple[int, ...]:
        """Ranks that wait in the next barrier."""
        return tuple(sorted(self._inside))

    def go_on_at(self, number: int) -> None:
        """Continue at this barrier: an earlier controller has released those before it."""
        if 0 < number <= MOST_BARRIERS:
            self.released = number - 1

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have not entered the next barrier."""
        return tuple(rank for rank in range(self._ranks) if rank not in self._inside)

    def enter(self, rank: int, number: int, keys: Mapping[str, str]) -> Entered:
        """Let a rank enter a barrier, numbered from 1, with its keys; raises `BadKeysError`."""
        if number == self.released > 0 and rank not in self._inside:
            self._repeat(rank, number)
            return Entered.AGAIN
        if number != self.released + 1 or number > MOST_BARRIERS:
            last = min(self.released + 1, MOST_BARRIERS)
            raise BadBarrierError(f"MPI barrier {number} of rank {rank}: expected barrier {last}")
        if rank in self._inside:
            self._repeat(rank, number)
            if dict(keys) != self._inside[rank]:
                raise BadBarrierError(f"MPI barrier {number} of rank {rank}, again with other keys: expected the same")
            return Entered.WAITS
        self._check(rank, keys)
        self._compare()
        self._inside[rank] = dict(keys)
        if len(self._inside) < self._ranks:
            return Entered.WAITS
        self.keys = tuple(RankKeys(rank=one, keys=given) for one, given in sorted(self._inside.items()) if given)
        self.released, self._inside, self._sizes = number, {}, {}
        self._repeats = [0] * self._ranks
        return Entered.ALL

    def _repeat(self, rank: int, number: int) -> None:
        self._repeats[rank] += 1
        if self._repeats[rank] > MOST_REPEATS:
            raise BadBarrierError(f"MPI barrier {number} of rank {rank}, again: expected at most {MOST_REPEATS} times")

    def _check(self, rank: int, keys: Mapping[str, str]) -> None:
        self._published[rank] += len(keys)
        if self._published[rank] > MOST_KEYS:
            raise BadKeysError(f"{self._published[rank]} MPI keys of rank {rank}: expected at most {MOST_KEYS}")
        self._sizes[rank] = check_keys(rank, keys)

    def _compare(self) -> None:
        """Check that all ranks gather the same sizes, once all have entered; the majority is unknown before."""
        if len(self._sizes) < self._ranks:
            return
        shapes = {rank: tuple(sorted(self._sizes[rank].items())) for rank in sorted(self._sizes)}
        ((usual, count), *_) = Counter(shapes.values()).most_common(1)
        if count == self._ranks:
            return
        odd = max(rank for rank, shape in shapes.items() if shape != usual)
        others = tuple(sorted(rank for rank, shape in shapes.items() if shape == usual))
        ours, theirs = self._sizes.pop(odd), self._sizes[others[0]]
        gather = min(name for name in {**ours, **theirs} if ours.get(name, 0) != theirs.get(name, 0))
        raise UnequalKeysError(
            f"MPI key {gather}-{odd} of {ours.get(gather, 0)} bytes: expected {theirs.get(gather, 0)} bytes as of "
            f"rank {others[0]}",
            (odd,),
            others,
        )
