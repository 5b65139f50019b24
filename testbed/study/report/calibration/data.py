"""Observations of a calibration as rows for figures: each with its trial, its condition and the observed values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite

import numpy as np

from testbed.measure.robust import Interval
from testbed.study.calibration.fits import Floats, Ints, median_interval
from testbed.study.calibration.model import Calibration
from testbed.study.calibration.quantities import number
from testbed.study.calibration.trials import Trials
from testbed.study.calibration.values import Value
from testbed.study.report.page.style import Absent, Headline

_GOLDEN = 0.6180339887498949
_MOST_LISTED = 6


@dataclass(frozen=True, slots=True)
class Row:
    """One observation: the number of its trial, and the values of its condition and of itself by name."""

    trial: int
    values: Mapping[str, Value]

    def number(self, name: str) -> float | None:
        """Return a value by its name if it is a finite number, else None."""
        return number(self.values, name)

    def at(self, *names: str) -> tuple[Value, ...]:
        """Return values by their names, with an empty text for a missing value."""
        return tuple(self.values.get(name, "") for name in names)


@dataclass(frozen=True, slots=True)
class Measured:
    """The data for one experiment's figures: all trials, and the calibration from them."""

    experiment: str
    trials: Trials
    calibration: Calibration

    def rows(self, *names: str) -> list[Row]:
        """Return the observations of this experiment in which all these values are finite numbers."""
        return having(rows_of(self.trials, self.experiment), *names)

    def absent(self, name: str, title: str, reason: str = "") -> Absent:
        """Return the placeholder of a figure that cannot be drawn; the default reason is from the trials."""
        return Absent(name, title, reason or self.why_not())

    def why_not(self) -> str:
        """Return the reason why this experiment has no data for a figure, in one line."""
        skipped = self.trials.begin.get("skipped")
        if isinstance(skipped, dict) and self.experiment in skipped:
            return f"Not measured: {self.experiment} was left out on this lab: {skipped[self.experiment]}."
        if self.trials.of(self.experiment):
            return f"Not measured: the trials of {self.experiment} lack the values that this figure needs."
        failed = [outcome for outcome in self.trials.outcomes if outcome.experiment == self.experiment]
        if failed:
            last = failed[-1].error
            return f"Not measured: all {len(failed)} trials of {self.experiment} failed, the last with: {last}."
        return f"Not measured: no trial of {self.experiment} was done."


def rows_of(trials: Trials, experiment: str) -> list[Row]:
    """Return the observations of an experiment's successful trials."""
    return [
        Row(outcome.trial, {**outcome.condition, **observation})
        for outcome in trials.of(experiment)
        for observation in outcome.observations
    ]


def having(rows: Iterable[Row], *names: str) -> list[Row]:
    """Return the rows in which all these values are finite numbers."""
    return [row for row in rows if all(row.number(name) is not None for name in names)]


def wholly_touched(rows: Sequence[Row]) -> list[Row]:
    """Return the observations of guests that touched all of their memory; all observations if there are none."""
    return [row for row in rows if row.number("touched_frac") in {None, 1.0}] or list(rows)


def values_of(rows: Iterable[Row], name: str) -> Floats:
    """Return a value of all rows (n,); every row must have it (see `having`)."""
    return np.array([row.number(name) for row in rows], dtype=np.float64)


def trials_of(rows: Iterable[Row]) -> Ints:
    """Return the trial of each row (n,)."""
    return np.array([row.trial for row in rows], dtype=np.int64)


def groups(rows: Iterable[Row], *names: str) -> dict[tuple[Value, ...], list[Row]]:
    """Return rows grouped by the values of these names, sorted with numbers before texts."""
    found: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(row.at(*names), []).append(row)
    return dict(sorted(found.items(), key=lambda item: [_rank(value) for value in item[0]]))


def usual(rows: Iterable[Row], *names: str) -> tuple[Value, ...]:
    """Return the most frequent values of these names over trials; ties go to the first ones."""
    conditions = Counter(row.at(*names) for row in {(row.trial, row.at(*names)): row for row in rows}.values())
    return max(conditions, key=lambda values: conditions[values]) if conditions else ()


def median_headline(rows: Sequence[Row], name: str, label: str) -> tuple[Headline, ...]:
    """Return the median of a duration in seconds as a headline, none without rows."""
    if not rows:
        return ()
    value_s = float(np.median(values_of(rows, name)))
    small = abs(value_s) < 0.1
    return (Headline(f"{value_s * (1e3 if small else 1.0):.3g}", "ms" if small else "s", label),)


def middle(rows: Sequence[Row], name: str) -> Interval:
    """Return the median of a value with its 95 % interval over trials; NaN bounds for a single trial."""
    return _median(tuple(values_of(rows, name).tolist()), tuple(trials_of(rows).tolist()))


@lru_cache(maxsize=4096)  # figures are drawn twice, for wide and for narrow screens
def _median(values: tuple[float, ...], trials: tuple[int, ...]) -> Interval:
    return median_interval(values, trials)


@dataclass(frozen=True, slots=True)
class Series:
    """Observations of one value under a label, drawn with one mark; `factor` converts values to another unit."""

    label: str
    rows: Sequence[Row]
    name: str
    mark: int = 0
    factor: float = 1.0

    @property
    def values(self) -> Floats:
        """Return the values (n,)."""
        return self.factor * values_of(self.rows, self.name)

    @property
    def middle(self) -> Interval:
        """Return the median with its 95 % interval over trials."""
        return scaled(middle(self.rows, self.name), self.factor)


@dataclass(frozen=True, slots=True)
class Clocks:
    """Durations `x_s` (n,) and `y_s` (n,) of the same operations by two clocks, and the observations (n,)."""

    title: str
    x_label: str
    y_label: str
    x_s: Floats
    y_s: Floats
    rows: Sequence[Row]


def scaled(found: Interval, factor: float) -> Interval:
    """Return an interval multiplied by a factor."""
    return Interval(found.value * factor, found.low * factor, found.high * factor)


def spread(count: int) -> Floats:
    """Return `count` deterministic offsets in -0.5 to 0.5 that separate neighbouring dots."""
    return np.asarray((np.arange(count) * _GOLDEN + 0.5) % 1.0 - 0.5, dtype=np.float64)


def count_words(rows: Sequence[Row]) -> str:
    """Return the numbers of observations and trials as text."""
    trials = len({row.trial for row in rows})
    own = "observation" if len(rows) == 1 else "observations"
    return f"n = {trials:,} trial{'s' * (trials != 1)}" + (f", {len(rows):,} {own}" if len(rows) != trials else "")


def interval_words(found: Interval, unit: str, digits: int = 3) -> str:
    """Return a value with its interval and unit as text."""
    value = figure_words(found.value, digits)
    if not (isfinite(found.low) and isfinite(found.high)):
        return f"{value} {unit}".strip()
    return f"{value} ({figure_words(found.low, digits)} to {figure_words(found.high, digits)}) {unit}".strip()


def figure_words(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, without an exponent below 1e9."""
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text and abs(value) < 1e9 else text


def listed(series: Sequence[Series], unit: str) -> str:
    """Return the medians of series as text; of many series only the least and the greatest, as a table has all."""
    chosen = [(one.label, one.middle) for one in series]
    if len(chosen) > _MOST_LISTED:
        ranked = sorted(chosen, key=lambda one: one[1].value)
        chosen = [ranked[0], ranked[-1]]
    return "; ".join(f"{label}: {interval_words(found, unit)}" for label, found in chosen)


def percent(value: Value | float) -> str:
    """Return a fraction as a percentage."""
    return f"{100.0 * float(value):.3g} %" if isinstance(value, (int, float)) else str(value)


def _rank(value: Value) -> tuple[int, float, str]:
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")
