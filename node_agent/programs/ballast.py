"""The memory of a task: filled up with data that no host can compress or share."""

from __future__ import annotations

import math
import mmap
import resource
import time
from pathlib import Path

import numpy as np

from node_agent.programs.kernel import LCG_A, LCG_C
from node_agent.programs.task import Task, TaskError
from node_agent.programs.words import seed_of, stream

_MIB = 1 << 20
_LANES = 1 << 15  # words per block: 256 KiB stay in the cache while they are generated
_BLOCK_BYTES = 8 * _LANES


def resident_mib(pid: int | str = "self") -> float:
    """Return the resident memory of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / _MIB


def ballast_mib(task: Task, own_mib: float) -> int:
    """Return the MiB of ballast that bring the task to its memory; raises `TaskError` below the floor."""
    floor_mib = math.ceil(own_mib)
    if task.memory_mib < floor_mib:
        raise TaskError(
            f"memory_mib = {task.memory_mib}: expected at least {floor_mib}, which the program {task.name} needs itself"
        )
    return task.memory_mib - floor_mib


class Ballast:
    """Private anonymous memory of `mib` MiB, empty at first.

    `bytes` is the part that is ever touched: the first blocks of 256 KiB, `touched_frac` of all blocks rounded to a
    whole number, and at least one. The rest is only reserved.
    """

    def __init__(self, mib: int, touched_frac: float = 1.0) -> None:
        self.mib = mib
        self._map: mmap.mmap | None = None
        self.bytes = memoryview(b"")
        if mib:
            self._map = mmap.mmap(-1, mib * _MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._map.madvise(mmap.MADV_HUGEPAGE)  # fewer page faults: touching is twice as fast
            blocks = max(1, round(touched_frac * (mib * _MIB // _BLOCK_BYTES)))
            self.bytes = memoryview(self._map)[: blocks * _BLOCK_BYTES]

    def fill(self, task: Task) -> float:
        """Write every word that is ever touched once, by job and task; return the elapsed seconds.

        Block k holds `y ^ y >> 32` of the generator of the work unit at step k + 1, whose lanes begin with
        `stream(seed_of(seed, job, task, 2), 32768)`.
        """
        begin_s = time.monotonic()
        if self.mib:
            a, c, half = np.uint64(LCG_A), np.uint64(LCG_C), np.uint64(32)
            y = stream(seed_of(task.seed, task.job, task.task, 2), _LANES)
            high = np.empty_like(y)
            for block in np.frombuffer(self.bytes, dtype=np.uint64).reshape(-1, _LANES):
                np.multiply(y, a, y)
                np.add(y, c, y)
                np.right_shift(y, half, high)
                np.bitwise_xor(y, high, block)
        return time.monotonic() - begin_s

    def free(self) -> None:
        """Give the memory back."""
        self.bytes.release()
        self.bytes = memoryview(b"")
        if self._map is not None:
            self._map.close()
            self._map = None
