"""Verdicts on what the papers assume, by one written rule over 95 % intervals.

A deviation is how far a condition is from what is assumed, relative to it (or as each assumption says); an assumption
is judged by all conditions that were measured:

* "held": every interval lies within ± `HELD_FRAC`;
* "within": every interval lies within ± `WITHIN_FRAC`; the bound that they support is told;
* "broken": the interval of at least one condition lies wholly outside ± `WITHIN_FRAC`;
* "undecided": neither can be said at 95 %, more trials would tell; "not measured": no trial bears on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from operator import attrgetter

from testbed.calibration.experiment import Value
from testbed.calibration.fits import median_interval, ratio_interval
from testbed.calibration.found import WHOLE, Found, by_condition, column
from testbed.calibration.model import Assumption, Quantity, Verdict, condition_words
from testbed.calibration.moving_times import SAVE_RESTORE, START
from testbed.calibration.trials import Trials
from testbed.measure.robust import Interval

HELD_FRAC = 0.02  # twice the accuracy of 0.01 to which MCB8 finds a yield [RR 4.3]: no decision can tell
WITHIN_FRAC = 0.10  # the accuracy of predictions of migration times in the field; policies differ by far more [RR 6.1]
PENALTY_S = 300.0  # [RR 5.1]: "5 minutes of wall clock time, whatever the job's characteristics"
STRETCH_THRESHOLD_S = 10.0  # [RR 2.2]: shorter turn-around times count as this; a start is felt against it

_STATEMENTS: Mapping[str, tuple[str, str]] = {
    "penalty": ("A preemption or a migration costs a job 300 s of wall clock time.", "[RR 5.1]"),
    "memory_independence": ("That cost is one constant, whatever the memory of a job.", "[RR 5.1]"),
    "linearity": ("A job progresses in proportion to its yield.", "[RR 2.2]"),
    "isolation": ("The share of one task does not depend on what its neighbours on the node do.", "[RR 2.1]"),
    "cap_accuracy": ("A task gets the fraction of a node's CPU that was allocated to it.", "[RR 2.1]"),
    "free_start": ("Starting a job costs nothing.", "[RR 5.1]"),
}


@dataclass(frozen=True, slots=True)
class _Deviation:
    """How far one condition is from what is assumed, and the words for what was measured there."""

    off: Interval
    words: str

    @property
    def bound(self) -> float:
        """The least bound that the interval supports."""
        return max(abs(self.off.low), abs(self.off.high))

    @property
    def at_least(self) -> float:
        """How far off it is at least."""
        return 0.0 if self.off.low <= 0.0 <= self.off.high else min(abs(self.off.low), abs(self.off.high))


def judge(trials: Trials, found: Found) -> dict[str, Assumption]:
    """Return the verdict on each assumption, by its name."""
    deviations: Mapping[str, Callable[[], list[_Deviation]]] = {
        "penalty": lambda: _penalty(found),
        "memory_independence": lambda: _memory_independence(trials),
        "linearity": lambda: _linearity(found),
        "isolation": lambda: _isolation(found),
        "cap_accuracy": lambda: _cap_accuracy(found),
        "free_start": lambda: _free_start(trials),
    }
    return {name: _assumption(name, deviations[name]()) for name in _STATEMENTS}


def verdict_on(offs: Sequence[Interval]) -> tuple[Verdict, float]:
    """Return the verdict on deviations by the rule of this module, and the bound on all of them (NaN if unknown)."""
    if not offs:
        return "not measured", nan
    known = [_Deviation(off, "") for off in offs if isfinite(off.low) and isfinite(off.high)]
    if not known:
        return "undecided", nan
    bound = max(deviation.bound for deviation in known)
    if any(deviation.at_least > WITHIN_FRAC for deviation in known):
        return "broken", bound
    if len(known) < len(offs) or bound > WITHIN_FRAC:
        return "undecided", bound
    return ("held" if bound <= HELD_FRAC else "within"), bound


def _assumption(name: str, deviations: list[_Deviation]) -> Assumption:
    statement, source = _STATEMENTS[name]
    verdict, bound = verdict_on([deviation.off for deviation in deviations])
    if not deviations:
        return Assumption(verdict, bound, statement, "No trial of this calibration bears on it.", source)
    sized = [deviation for deviation in deviations if isfinite(deviation.bound)]
    if not sized:
        found = f"Too few trials for an interval: {deviations[0].words}."
    else:
        key = attrgetter("at_least" if verdict == "broken" else "bound")
        furthest, nearest = max(sized, key=key), min(sized, key=key)
        found = f"Furthest off: {furthest.words}"
        if nearest is not furthest:
            found += f"; nearest: {nearest.words}"
        found += f"; {len(deviations)} condition{'s' * (len(deviations) > 1)}."
    return Assumption(verdict, bound, statement, found, source)


def _penalty(found: Found) -> list[_Deviation]:
    deviations = []
    for quantity in found.quantities:
        if quantity.name == "penalty_at_s":
            times = f", 1/{PENALTY_S / quantity.value:.3g} of 300 s" if 0 < quantity.value < PENALTY_S else ""
            words = f"{_seconds(quantity)}{times} ({condition_words(quantity.condition)})"
            deviations.append(_Deviation(_relative(quantity, PENALTY_S), words))
    return deviations


def _memory_independence(trials: Trials) -> list[_Deviation]:
    """The penalty of the largest guests relative to that of the smallest ones, both with all memory filled."""
    whole = [o for o in trials.of(SAVE_RESTORE) if o.condition.get("touched_frac", WHOLE) == WHOLE]
    deviations = []
    for condition, outcomes in by_condition(whole, "storage", "cache", "concurrent"):
        sizes = [(kind["memory_mib"], column(some, "penalty_s")) for kind, some in by_condition(outcomes, "memory_mib")]
        if len(sizes) < 2:
            continue
        (least_mib, least), (most_mib, most) = sizes[0], sizes[-1]
        if not least.values or not most.values or min(*least.values, *most.values) <= 0.0:
            continue
        ratio = ratio_interval(most.values, most.trials, least.values, least.trials)
        words = f"{most_mib} MiB cost {_bounds(ratio, '')} times what {least_mib} MiB do ({condition_words(condition)})"
        deviations.append(_Deviation(Interval(ratio.value - 1.0, ratio.low - 1.0, ratio.high - 1.0), words))
    return deviations


def _linearity(found: Found) -> list[_Deviation]:
    """Relative to the yield: a job that is given half but progresses at 0.55 ends 10 % earlier than assumed."""
    deviations = []
    for quantity in found.quantities:
        if quantity.name == "relative_progress" and (at := float(quantity.condition["yield_frac"])) < 1.0:
            where = {key: value for key, value in quantity.condition.items() if key != "yield_frac"}
            words = f"progress {_bounds(quantity, '')} at yield {at:g} ({condition_words(where)})"
            deviations.append(_Deviation(_relative(quantity, at), words))
    return deviations


def _isolation(found: Found) -> list[_Deviation]:
    return [
        _Deviation(
            _relative(quantity, 1.0),
            f"{_bounds(quantity, '')} of the rate alone ({condition_words(quantity.condition)})",
        )
        for quantity in found.quantities
        if quantity.name == "isolated_rate" and quantity.condition.get("neighbours")
    ]


def _cap_accuracy(found: Found) -> list[_Deviation]:
    """In fractions of the guest's CPUs, over the longest window of each cap: decisions of a policy last for seconds."""
    longest: dict[tuple[Value | None, Value | None], Quantity] = {}
    for quantity in found.quantities:
        if quantity.name == "cap_error_points":  # windows come from the shortest to the longest
            longest[quantity.condition.get("vcpus"), quantity.condition.get("cap_frac")] = quantity
    return [
        _Deviation(
            Interval(quantity.value / 100.0, quantity.low / 100.0, quantity.high / 100.0),
            f"off by {_bounds(quantity, ' points')} ({condition_words(quantity.condition)})",
        )
        for quantity in longest.values()
    ]


def _free_start(trials: Trials) -> list[_Deviation]:
    """Relative to the shortest turn-around time that the bounded stretch tells from others."""
    deviations = []
    for condition, outcomes in by_condition(trials.of(START), "memory_mib", "tasks", "concurrent"):
        ready = column(outcomes, "ready_s")
        if ready.values:
            took = median_interval(ready.values, ready.trials)
            off = Interval(*(value / STRETCH_THRESHOLD_S for value in (took.value, took.low, took.high)))
            deviations.append(
                _Deviation(off, f"{_bounds(took, ' s')} to first progress ({condition_words(condition)})")
            )
    return deviations


def _relative(quantity: Quantity, assumed: float) -> Interval:
    return Interval(*(value / assumed - 1.0 for value in (quantity.value, quantity.low, quantity.high)))


def _bounds(interval: Interval | Quantity, unit: str) -> str:
    known = f" ({interval.low:.3g} to {interval.high:.3g})" if isfinite(interval.low) else ""
    return f"{interval.value:.3g}{unit}{known}"


def _seconds(quantity: Quantity) -> str:
    return _bounds(quantity, " s")
