"""Pseudo-random numbers that are defined exactly, so that programs in other languages reach the same checksums.

All arithmetic is modulo 2**64. `mix64` is the finaliser of SplitMix64; element i of `stream(seed, n)` is
`mix64(seed + i * GOLDEN)`; `seed_of(a, b, ...)` is `mix64(... mix64(mix64(0 ^ a) ^ b) ...)`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def mix64(value: int) -> int:
    """Return 64 bits that depend on every bit of `value`."""
    z = (value + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * _M1) & MASK
    z = ((z ^ (z >> 27)) * _M2) & MASK
    return z ^ (z >> 31)


def mixed(words: Words) -> Words:
    """Return `mix64` of each word; the words are overwritten."""
    words += np.uint64(GOLDEN)
    words ^= words >> np.uint64(30)
    words *= np.uint64(_M1)
    words ^= words >> np.uint64(27)
    words *= np.uint64(_M2)
    words ^= words >> np.uint64(31)
    return words


def seed_of(*parts: int) -> int:
    """Return one seed for a sequence of integers."""
    seed = 0
    for part in parts:
        seed = mix64(seed ^ (part & MASK))
    return seed


def stream(seed: int, count: int) -> Words:
    """Return `count` words that follow from the seed."""
    z = np.arange(count, dtype=np.uint64)
    z *= np.uint64(GOLDEN)
    z += np.uint64(seed)
    return mixed(z)


def fold(words: Words) -> int:
    """Return the sum over i of `(w_i ^ w_i >> 32) * (2 i + 1)`: a checksum in which position counts."""
    odd = np.arange(1, 2 * len(words), 2, dtype=np.uint64)
    return int(np.sum((words ^ (words >> np.uint64(32))) * odd, dtype=np.uint64))
