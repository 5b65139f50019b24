"""Barriers of one MPI job: which ranks have entered the next one, and what each publishes in it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from testbed.bus.messages import RankKeys
from testbed.bus.mpi_keys import MOST_KEYS, BadKeysError, check_keys

MOST_BARRIERS = 32  # in the life of a job's processes: MPI has one at its start and one at its end
MOST_REPEATS = 8  # of one barrier by one rank: a guest that was moved enters again what it had entered


class BadBarrierError(BadKeysError):
    """A rank enters a barrier that is not the next one, or one more time than a rank would."""


class Entered(Enum):
    """What entering a barrier leads to."""

    WAITS = "waits"  # for other ranks
    ALL = "all"  # every rank may pass
    AGAIN = "again"  # this rank may pass: all had entered before


class Barriers:
    """From the start of a job's processes to their end. `keys` is what the ranks published in the last full barrier.

    The caller hands on what `keys` says once `enter` returns something else than `WAITS`.
    """

    def __init__(self, ranks: int) -> None:
        self.released = 0
        self.keys: tuple[RankKeys, ...] = ()
        self._ranks = ranks
        self._inside: dict[int, dict[str, str]] = {}
        self._sizes: dict[str, tuple[int, int]] = {}  # by gathering: bytes, and the rank that said so first
        self._published = [0] * ranks
        self._repeats = [0] * ranks

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that have not entered the next barrier."""
        return tuple(rank for rank in range(self._ranks) if rank not in self._inside)

    def enter(self, rank: int, number: int, keys: Mapping[str, str]) -> Entered:
        """Let a rank enter a barrier, numbered from 1, with what it publishes; raises `BadKeysError`."""
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
        for gather, size in check_keys(rank, keys).items():
            first_size, first = self._sizes.setdefault(gather, (size, rank))
            if size != first_size:
                raise BadKeysError(
                    f"MPI key {gather}-{rank} of {size} bytes: expected {first_size} bytes as of rank {first}"
                )
