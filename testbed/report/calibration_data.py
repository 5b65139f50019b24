"""Observations of a calibration as rows to draw: each knows its trial, its condition and what was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite

import numpy as np

from testbed.calibration.experiment import Value
from testbed.calibration.fits import Floats, Ints, median_interval
from testbed.calibration.trials import Trials
from testbed.measure.robust import Interval

_GOLDEN = 0.6180339887498949
_MOST_LISTED = 6


@dataclass(frozen=True, slots=True)
class Row:
    """One observation: the number of its trial, and condition and observation by their names."""

    trial: int
    values: Mapping[str, Value]

    def number(self, name: str) -> float | None:
        """Return a value that is a finite number, else None."""
        value = self.values.get(name)
        return float(value) if isinstance(value, (int, float)) and isfinite(value) else None

    def at(self, *names: str) -> tuple[Value, ...]:
        """Return values by their names, an empty text for one that is not there."""
        return tuple(self.values.get(name, "") for name in names)


def rows_of(trials: Trials, experiment: str) -> list[Row]:
    """Return the observations of an experiment's trials that did not fail."""
    return [
        Row(outcome.trial, {**outcome.condition, **observation})
        for outcome in trials.of(experiment)
        for observation in outcome.observations
    ]


def having(rows: Iterable[Row], *names: str) -> list[Row]:
    """Return the rows in which all these are finite numbers."""
    return [row for row in rows if all(row.number(name) is not None for name in names)]


def column(rows: Iterable[Row], name: str) -> Floats:
    """Return a value of all rows (n,); each must have it (see `having`)."""
    return np.array([row.number(name) for row in rows], dtype=np.float64)


def trials_of(rows: Iterable[Row]) -> Ints:
    """Return the trial of each row (n,)."""
    return np.array([row.trial for row in rows], dtype=np.int64)


def groups(rows: Iterable[Row], *names: str) -> dict[tuple[Value, ...], list[Row]]:
    """Return rows by the values of these names, in their order: numbers before words."""
    found: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(row.at(*names), []).append(row)
    return dict(sorted(found.items(), key=lambda item: [_rank(value) for value in item[0]]))


def usual(rows: Iterable[Row], *names: str) -> tuple[Value, ...]:
    """Return the values of these names that most conditions share; ties go to the first ones met."""
    conditions = Counter(row.at(*names) for row in {(row.trial, row.at(*names)): row for row in rows}.values())
    return max(conditions, key=lambda values: conditions[values]) if conditions else ()


def middle(rows: Sequence[Row], name: str) -> Interval:
    """Return the median of a value with its 95 % interval over trials; NaN bounds where one trial supports none."""
    return _median(tuple(column(rows, name).tolist()), tuple(trials_of(rows).tolist()))


@lru_cache(maxsize=4096)  # figures are drawn twice, for wide and for narrow screens
def _median(values: tuple[float, ...], trials: tuple[int, ...]) -> Interval:
    return median_interval(values, trials)


def spread(count: int) -> Floats:
    """Return `count` offsets in -0.5 to 0.5, the same every time, that keep dots apart from their neighbours."""
    return np.asarray((np.arange(count) * _GOLDEN + 0.5) % 1.0 - 0.5, dtype=np.float64)


def count_words(rows: Sequence[Row]) -> str:
    """Say how many observations of how many trials there are."""
    trials = len({row.trial for row in rows})
    own = "observation" if len(rows) == 1 else "observations"
    return f"n = {trials:,} trial{'s' * (trials != 1)}" + (f", {len(rows):,} {own}" if len(rows) != trials else "")


def interval_words(found: Interval, unit: str, digits: int = 3) -> str:
    """Say a value with its interval and unit."""
    value = figure_words(found.value, digits)
    if not (isfinite(found.low) and isfinite(found.high)):
        return f"{value} {unit}".strip()
    return f"{value} ({figure_words(found.low, digits)} to {figure_words(found.high, digits)}) {unit}".strip()


def figure_words(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, without an exponent where a person would use none."""
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text and abs(value) < 1e9 else text


def listed(words: Sequence[tuple[str, Interval]], unit: str) -> str:
    """Say medians of groups, of many only the least and the greatest one: the table of quantities has them all."""
    chosen = list(words)
    if len(chosen) > _MOST_LISTED:
        ranked = sorted(chosen, key=lambda one: one[1].value)
        chosen = [ranked[0], ranked[-1]]
    return "; ".join(f"{label}: {interval_words(found, unit)}" for label, found in chosen)


def percent(value: Value | float) -> str:
    """Say a fraction in percent."""
    return f"{100.0 * float(value):.3g} %" if isinstance(value, (int, float)) else str(value)


def _rank(value: Value) -> tuple[int, float, str]:
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")
