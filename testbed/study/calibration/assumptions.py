"""Verdicts on assumptions of the papers, by one rule over 95 % intervals; each experiment judges its own assumptions.

The deviation of a condition is relative to the assumed value (or as the assumption defines it). The verdict uses all
measured conditions:

* "held": every interval lies within ± `HELD_FRAC`;
* "within": every interval lies within ± `WITHIN_FRAC`; the verdict states the least bound that holds for all;
* "broken": the interval of at least one condition lies wholly outside ± `WITHIN_FRAC`;
* "undecided": none of these holds at 95 %, so more trials are needed;
* "not measured": no trial tests the assumption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from operator import attrgetter

from testbed.measure.robust import Interval
from testbed.study.calibration.model import Assumption, Quantity, Verdict

HELD_FRAC = 0.02  # twice the accuracy of 0.01 to which MCB8 finds a yield [RR 4.3]: decisions resolve nothing smaller
WITHIN_FRAC = 0.10  # the accuracy of predictions of migration times in the field; policies differ by far more [RR 6.1]
PENALTY_S = 300.0  # [RR 5.1]: "5 minutes of wall clock time, whatever the job's characteristics"


@dataclass(frozen=True, slots=True)
class Deviation:
    """The deviation of one condition from the assumption, and a text with the measured value."""

    off: Interval
    words: str

    @property
    def bound(self) -> float:
        """The least bound on the absolute deviation that the interval supports."""
        return max(abs(self.off.low), abs(self.off.high))

    @property
    def at_least(self) -> float:
        """The least absolute deviation within the interval."""
        return 0.0 if self.off.low <= 0.0 <= self.off.high else min(abs(self.off.low), abs(self.off.high))


def verdict_on(offs: Sequence[Interval]) -> tuple[Verdict, float]:
    """Return the verdict on deviations by the rule of this module, and their common bound (NaN if unknown)."""
    if not offs:
        return "not measured", nan
    known = [Deviation(off, "") for off in offs if isfinite(off.low) and isfinite(off.high)]
    if not known:
        return "undecided", nan
    bound = max(deviation.bound for deviation in known)
    if any(deviation.at_least > WITHIN_FRAC for deviation in known):
        return "broken", bound
    if len(known) < len(offs) or bound > WITHIN_FRAC:
        return "undecided", bound
    return ("held" if bound <= HELD_FRAC else "within"), bound


def judged(statement: str, source: str, deviations: Sequence[Deviation]) -> Assumption:
    """Return the verdict on a statement from `source`, by the deviations of the measured conditions."""
    verdict, bound = verdict_on([deviation.off for deviation in deviations])
    if not deviations:
        return Assumption(verdict, bound, statement, "No trial of this calibration tests it.", source)
    sized = [deviation for deviation in deviations if isfinite(deviation.bound)]
    if not sized:
        found = f"Too few trials for an interval: {deviations[0].words}."
    else:
        key = attrgetter("at_least" if verdict == "broken" else "bound")
        furthest, nearest = max(sized, key=key), min(sized, key=key)
        found = f"Largest deviation at 95 %: {furthest.words}"
        if nearest is not furthest:
            found += f"; smallest: {nearest.words}"
        found += f"; {len(deviations)} condition{'s' * (len(deviations) > 1)}."
    return Assumption(verdict, bound, statement, found, source)


def relative(quantity: Quantity, assumed: float) -> Interval:
    """Return the deviation of a quantity from an assumed value, relative to that value."""
    return Interval(*(value / assumed - 1.0 for value in (quantity.value, quantity.low, quantity.high)))


def bounds_words(interval: Interval | Quantity, unit: str) -> str:
    """Return a value with its interval as text; `unit` follows the value."""
    known = f" ({interval.low:.3g} to {interval.high:.3g})" if isfinite(interval.low) else ""
    return f"{interval.value:.3g}{unit}{known}"
