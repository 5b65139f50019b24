"""The communication phase of one iteration: messages to and from the neighbours, every byte of them verified.

A message is the first `message_bytes` bytes of `stream(seed_of(seed, 3), n) + seed_of(seed, source, destination,
iteration)` (an addition modulo 2**64 in each 64-bit word, little endian). In the reduction tree its first word is a
partial sum on the way up, and the sum over all ranks on the way down; rank r adds `seed_of(seed, r, iteration)`.
"""

from __future__ import annotations

import numpy as np

from node_agent.programs.fabric import Fabric, Idle
from node_agent.programs.task import Task
from node_agent.programs.words import MASK, Words, mix64, seed_of, stream
from testbed.bus.topology import children, neighbours, parent, subtree
from testbed.errors import TestbedError


class CorruptMessageError(TestbedError):
    """A message differs from what its sender must have sent."""


class Exchange:
    """Messages of one rank. `digest` and `messages` (received) are part of a checkpoint."""

    def __init__(self, task: Task, fabric: Fabric, idle: Idle) -> None:
        self._task = task
        self._fabric = fabric
        self._idle = idle
        self._near = neighbours(task.topology, task.rank, task.ranks)
        self._base = stream(seed_of(task.seed, 3), -(-task.message_bytes // 8))
        self._out = {rank: np.zeros_like(self._base) for rank in self._near}
        self._in = {rank: np.zeros_like(self._base) for rank in self._near}
        self._expected = np.empty_like(self._base)
        self.digest = 0
        self.messages = 0

    def run(self, iteration: int) -> None:
        """Do the communication of one iteration; raises `CorruptMessageError`."""
        if self._task.topology == "tree":
            self._reduce(iteration)
        else:
            self._swap(iteration)

    def _swap(self, iteration: int) -> None:
        requests = [self._receive(rank, iteration) for rank in self._near]
        requests += [self._send(rank, iteration) for rank in self._near]
        self._fabric.wait(requests, self._idle)
        for rank in self._near:
            self._verify(rank, iteration)

    def _reduce(self, iteration: int) -> None:
        task = self._task
        below, above = children(task.rank, task.ranks), parent(task.rank)
        self._fabric.wait([self._receive(child, iteration) for child in below], self._idle)
        total = self._sum((task.rank,), iteration)
        for child in below:
            self._verify(child, iteration, self._sum(subtree(child, task.ranks), iteration))
            total = (total + int(self._in[child][0])) & MASK
        if above is not None:
            requests = [self._send(above, iteration, total), self._receive(above, iteration)]
            self._fabric.wait(requests, self._idle, place=1)
            self._verify(above, iteration, self._sum(range(task.ranks), iteration))
            total = int(self._in[above][0])
        self._fabric.wait([self._send(child, iteration, total) for child in below], self._idle, place=2)

    def _sum(self, ranks: tuple[int, ...] | range, iteration: int) -> int:
        return sum(seed_of(self._task.seed, rank, iteration) for rank in ranks) & MASK

    def _content(self, source: int, target: int, iteration: int, first: int | None, out: Words) -> None:
        np.add(self._base, np.uint64(seed_of(self._task.seed, source, target, iteration)), out=out)
        if first is not None:
            out[0] = first

    def _send(self, rank: int, iteration: int, first: int | None = None) -> object:
        words = self._out[rank]
        self._content(self._task.rank, rank, iteration, first, words)
        return self._fabric.send(words, self._task.message_bytes, rank, iteration)

    def _receive(self, rank: int, iteration: int) -> object:
        return self._fabric.receive(self._in[rank], self._task.message_bytes, rank, iteration)

    def _verify(self, rank: int, iteration: int, first: int | None = None) -> None:
        length = self._task.message_bytes
        self._content(rank, self._task.rank, iteration, first, self._expected)
        found, expected = self._in[rank].view("u1")[:length], self._expected.view("u1")[:length]
        if not np.array_equal(found, expected):
            place = int(np.flatnonzero(found != expected)[0])
            raise CorruptMessageError(
                f"message from rank {rank} to {self._task.rank}, iteration {iteration}: byte {place} of {length} is "
                f"{found[place]}, expected {expected[place]}"
            )
        self.messages += 1
        self.digest = mix64(self.digest ^ int(np.bitwise_xor.reduce(self._in[rank])))
