"""The upstream ranks of a rank, from the seconds for which it has waited for each."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_OF_WAITS, LEAST_OF_PERIOD = 0.1, 0.01  # thresholds: shorter waits do not count


def upstream_ranks(before_s: Sequence[float], after_s: Sequence[float], period_s: float) -> list[int]:
    """Return the upstream ranks of a period, from the waits (R,) for each rank since the waiting rank began.

    If the number of ranks differs, `before_s` is from another life of the job, and counts as 0. A wait that has fallen
    was counted from 0 again: its part in this period is unknown, and counts as 0.
    """
    if len(before_s) != len(after_s):
        before_s = [0.0] * len(after_s)
    waited_s = [max(after - before, 0.0) for before, after in zip(before_s, after_s, strict=True)]
    least_s = max(LEAST_OF_WAITS * sum(waited_s), LEAST_OF_PERIOD * period_s)
    return [rank for rank, each_s in enumerate(waited_s) if each_s > least_s]
