"""Log lines that a remote party can cause: a few of each kind, then their number."""

from __future__ import annotations

from collections.abc import Callable

MOST_LINES = 5
EVERY_S = 10.0


class FewLines:
    """Passes on `MOST_LINES` lines in `EVERY_S` seconds; the number of omitted lines precedes the next ones."""

    def __init__(self, log: Callable[[str], None], now_s: Callable[[], float]) -> None:
        self._log = log
        self._now_s = now_s
        self._begin_s: float | None = None
        self._logged = 0
        self._left_out = 0

    def __call__(self, line: str) -> None:
        """Log a line, or count it."""
        now_s = self._now_s()
        if self._begin_s is None or now_s - self._begin_s >= EVERY_S:
            if self._left_out:
                self._log(f"{self._left_out} more such lines were left out")
            self._begin_s, self._logged, self._left_out = now_s, 0, 0
        if self._logged < MOST_LINES:
            self._logged += 1
            self._log(line)
        else:
            self._left_out += 1
