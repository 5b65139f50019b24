"""Verdicts on measured figures by comparison of one or two runs with a reference band.

A run is the median of one figure over fresh guests with its interval. A figure regressed only if the interval of the
median lies wholly outside the reference band on the worse side, in the first run and in a confirming second run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from testbed.study.checks.interval import MedianInterval


class Better(StrEnum):
    """The direction in which a figure is better."""

    HIGHER = "higher"
    LOWER = "lower"


class Side(StrEnum):
    """The position of a run relative to the band.

    Its median is within the band; or the median is outside and the interval reaches into the band (maybe); or the
    whole interval is outside.
    """

    WITHIN = "within"
    MAYBE_WORSE = "maybe worse"
    WORSE = "worse"
    MAYBE_BETTER = "maybe better"
    BETTER = "better"


class Verdict(StrEnum):
    """The outcome of a figure's runs. Only `REGRESSED` fails a check."""

    HELD = "held"
    REGRESSED = "regressed"
    UNCONFIRMED = "unconfirmed"
    IMPROVED = "improved"
    NO_REFERENCE = "no reference"


@dataclass(frozen=True, slots=True)
class Reference:
    """The expected values of a figure: the band [value (1 - lower_frac) - slack, value (1 + upper_frac) + slack].

    `slack` is in the unit of the value. Figures near zero need it, because a fraction of zero is zero.
    """

    value: float
    lower_frac: float
    upper_frac: float
    unit: str
    better: Better
    slack: float = 0.0

    @property
    def low(self) -> float:
        """The band's lower end, in `unit`."""
        return self.value * (1.0 - self.lower_frac) - self.slack

    @property
    def high(self) -> float:
        """The band's upper end, in `unit`."""
        return self.value * (1.0 + self.upper_frac) + self.slack

    def side_of(self, run: MedianInterval) -> Side:
        """Return the position of a run relative to the band."""
        if self.low <= run.value <= self.high:
            return Side.WITHIN
        wholly = run.high < self.low or run.low > self.high
        if (run.value > self.high) == (self.better is Better.HIGHER):
            return Side.BETTER if wholly else Side.MAYBE_BETTER
        return Side.WORSE if wholly else Side.MAYBE_WORSE


def judge(reference: Reference | None, runs: Sequence[MedianInterval]) -> Verdict | None:
    """Return the verdict on up to two runs, or None if a second run is needed.

    A second run is needed if the first lies wholly outside the band; both then have to agree. If the median is outside
    the band but the interval reaches into it, the run proves nothing, and a second run is not needed: a worse median
    is unconfirmed, and a better one counts as held. Raises `ValueError` for more runs than were needed.
    """
    if not runs:
        return None
    if reference is None:
        verdict, needed = Verdict.NO_REFERENCE, 1
    else:
        sides = [reference.side_of(run) for run in runs]
        needed = 2 if sides[0] in {Side.WORSE, Side.BETTER} else 1
        if len(runs) < needed:
            return None
        verdict = _of_sides(sides)
    if len(runs) > needed:
        raise ValueError(f"{len(runs)} runs: {needed} decided already")
    return verdict


def _of_sides(sides: Sequence[Side]) -> Verdict:
    match sides:
        case [Side.WORSE, Side.WORSE]:
            return Verdict.REGRESSED
        case [Side.BETTER, Side.BETTER]:
            return Verdict.IMPROVED
        case [Side.WORSE | Side.MAYBE_WORSE, *_]:
            return Verdict.UNCONFIRMED
        case _:
            return Verdict.HELD
