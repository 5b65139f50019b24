"""The generator of the C library's `drand48`, bit for bit, so that the same seed gives the same trace."""

from __future__ import annotations

_MULTIPLIER = 0x5DEECE66D
_INCREMENT = 0xB
_MASK = 2**48 - 1
_UNIT = 2.0**-48
MAX_SEED = 2**32 - 1


class Drand48:
    """x <- (0x5DEECE66D x + 0xB) mod 2^48 from x = seed * 2^16 + 0x330E; numbers are x / 2^48, in [0, 1).

    `seed` is from 0 to 2^32 - 1, as `srand48` uses 32 bits.
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        if not 0 <= seed <= MAX_SEED:
            raise ValueError(f"seed {seed}: expected 0 to {MAX_SEED}")
        self._state = (seed << 16) + 0x330E

    def __call__(self) -> float:
        """Return the next number."""
        self._state = (_MULTIPLIER * self._state + _INCREMENT) & _MASK
        return self._state * _UNIT
