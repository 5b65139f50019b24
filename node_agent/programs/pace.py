"""Time accounting of a program's iterations; testbed/host/guest_sources/life.c counts the same."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self


class Pace:
    """Seconds of computing and of communicating, and the longest iteration since the last report.

    Time for which the program stood still because it was held is left out: a member of a job may be held while it
    waits for a message, and that time belongs to the rescheduling, not to the iteration.
    """

    def __init__(self, compute_s: float = 0.0, comm_s: float = 0.0, longest_ns: int = 0) -> None:
        self._compute_s = compute_s
        self._comm_s = comm_s
        self._longest_ns = longest_ns
        self._stood_ns = 0  # in this iteration
        self._since_ns: int | None = None  # since when the program stands still

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Self:
        """Continue from an image; an image of an earlier version lacks the longest iteration."""
        return cls(header["compute_s"], header["comm_s"], header.get("longest_ns", 0))

    def keep(self) -> dict[str, float | int]:
        """Return the fields for an image."""
        return {"compute_s": self._compute_s, "comm_s": self._comm_s, "longest_ns": self._longest_ns}

    def stand(self, stands: bool) -> None:
        """Note, within an iteration, whether the program stands still because it is held."""
        if stands and self._since_ns is None:
            self._since_ns = time.monotonic_ns()
        elif not stands and self._since_ns is not None:
            self._stood_ns += time.monotonic_ns() - self._since_ns
            self._since_ns = None

    def step(self, begin_ns: int, computed_ns: int, end_ns: int) -> None:
        """Count one finished iteration."""
        if self._since_ns is not None:
            self._stood_ns += max(0, end_ns - self._since_ns)
            self._since_ns = None
        comm_ns = end_ns - computed_ns - self._stood_ns
        self._stood_ns = 0
        self._compute_s += (computed_ns - begin_ns) / 1e9
        self._comm_s += comm_ns / 1e9
        self._longest_ns = max(self._longest_ns, computed_ns - begin_ns + comm_ns)

    def tell(self, steps: int) -> dict[str, float | int]:
        """Return the fields of a report, and reset the longest iteration."""
        longest_s, self._longest_ns = self._longest_ns / 1e9, 0
        return {"steps": steps, "longest_s": longest_s, "compute_s": self._compute_s, "comm_s": self._comm_s}
