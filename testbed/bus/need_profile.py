"""Profile of a task's CPU need over its work, shared by programs, expected results and models.

A profile is a text such as `1,0.25@0.5,0.8@0.75`: the whole need at first, a quarter of it from half of the work on,
and 0.8 of it from three quarters on. Both numbers are exact to four decimals, so that all users compute the same
iterations. Work is counted in time on dedicated nodes: there, an iteration takes the same time whatever its CPU need.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import pairwise

WHOLE = "1"
MOST_PARTS = 8
_FRAC = r"0\.(?!0{1,4}\b)[0-9]{1,4}"
PATTERN = rf"(?:1|{_FRAC})(?:,(?:1|{_FRAC})@{_FRAC}){{0,{MOST_PARTS - 1}}}"
EXPECTED = "a profile such as 1,0.25@0.5: parts of the need, each but the first from a part of the work on, in order"
WHOLE_PARTS = 10_000


def parts_of(profile: str) -> tuple[tuple[int, int], ...]:
    """Return the phases of a profile as (beginning in the work, need), both in parts of 10,000.

    Raises ValueError for a text that is not a profile.
    """
    if re.fullmatch(PATTERN, profile, re.ASCII) is None:
        raise ValueError(f"{profile!r}: expected {EXPECTED}")
    first, *later = profile.split(",")
    found = [(0, _exact(first))]
    for text in later:
        factor, _, begins = text.partition("@")
        found.append((_exact(begins), _exact(factor)))
    if any(after <= before for (before, _), (after, _) in pairwise(found)):
        raise ValueError(f"{profile!r}: expected {EXPECTED}")
    return tuple(found)


def _exact(text: str) -> int:
    return WHOLE_PARTS if text == "1" else int(text.removeprefix("0.").ljust(4, "0"))


def phases(profile: str, iterations: int) -> list[tuple[int, int]]:
    """Return the phases of `iterations` as (first iteration, need in parts of 10,000)."""
    return [(-(-begins * iterations // WHOLE_PARTS), factor) for begins, factor in parts_of(profile)]


def mean_factor(profile: str, iterations: int) -> float:
    """Return the mean of a profile over `iterations`, a fraction of the whole need."""
    found = phases(profile, iterations)
    ends = [*(begin for begin, _ in found[1:]), iterations]
    return sum((end - begin) * factor for (begin, factor), end in zip(found, ends, strict=True)) / (
        iterations * WHOLE_PARTS
    )


class Profile:
    """A profile applied to a given number of iterations."""

    def __init__(self, profile: str, iterations: int) -> None:
        self._phases = phases(profile, iterations)
        self._begins = [begin for begin, _ in self._phases]

    def units(self, units: int, iteration: int) -> int:
        """Return the units to do in an iteration whose full need takes `units`; at least one."""
        factor = self._phases[bisect_right(self._begins, iteration) - 1][1]
        return scaled(units, factor)


def scaled(units: int, factor: int) -> int:
    """Return `factor` parts of 10,000 of `units`, rounded, at least one."""
    return max(1, (units * factor + WHOLE_PARTS // 2) // WHOLE_PARTS)
