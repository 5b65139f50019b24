"""Which ranks another one waits for, from the seconds that it has waited for each."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_OF_WAITS, LEAST_OF_PERIOD = 0.1, 0.01  # for less nobody is waited for


def upstream_ranks(before_s: Sequence[float], after_s: Sequence[float], period_s: float) -> list[int]:
    """Return the ranks that were waited for in a period, from the waits for each since the rank began.

    Another number of ranks at the begin of the period is that of another life. Waits that fell have begun again: those
    of this period are not known, and count for nothing.
    """
    if len(before_s) != len(after_s):
        before_s = [0.0] * len(after_s)
    waited_s = [max(after - before, 0.0) for before, after in zip(before_s, after_s, strict=True)]
    least_s = max(LEAST_OF_WAITS * sum(waited_s), LEAST_OF_PERIOD * period_s)
    return [rank for rank, each_s in enumerate(waited_s) if each_s > least_s]
