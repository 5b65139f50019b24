"""Reconnection delays of a client: short at first, and longer if its connections do not last.

A broker accepts only the latest client of one name. Two agents of one name would therefore disconnect each other as
fast as they connect. So the delay is reset only by a connection that lasted, not by a new one.
"""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_S, LAST_S, LAST_DOUBTFUL_S = 0.05, 5.0, 60.0
STEADY_S = 30.0  # a connection that lasted that long resets the delay
FREE = 5  # short connections in a row that are attributed to the network


class Comebacks:
    """Counts connections that did not last, and computes the delay before the next; `now_s` is the clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._made_s = now_s()
        self._short = 0
        self._backoff_s = FIRST_S

    @property
    def doubtful(self) -> bool:
        """Whether too many connections in a row did not last."""
        return self._short > FREE

    def made(self) -> None:
        """Record a new connection."""
        self._made_s = self._now_s()
        if not self.doubtful:
            self._backoff_s = FIRST_S

    def lost(self, client_id: str, *, taken_over: bool = False) -> str:
        """Record the loss of the connection; return a message for the user, or an empty string."""
        lasted_s = self._now_s() - self._made_s
        if lasted_s >= max(STEADY_S, 3 * self._backoff_s):
            self._short, self._backoff_s = 0, FIRST_S
        self._short += 1
        if taken_over:
            self._short = max(self._short, FREE + 1)
        if not self.doubtful:
            return ""
        why = (
            "the broker gave its session to another client" if taken_over
            else f"{self._short} connections in a row were lost, this one {lasted_s:.1f} s after it was made"
        )  # fmt: skip
        return (
            f"{why}: does another client called {client_id!r} run (a forgotten agent, a copied folder)? "
            f"The next try is in about {self._backoff_s:.3g} s"
        )

    def wait_s(self) -> float:
        """Return the seconds until the next try, and increase the delay for the one after it."""
        wait_s = self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, LAST_DOUBTFUL_S if self.doubtful else LAST_S)
        return wait_s * random.uniform(0.5, 1.5)  # noqa: S311  spreads agents, hides nothing
