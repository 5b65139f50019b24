"""Quantities of an experiment, computed from its trials; a condition without measurements has no quantity.

Names end in their unit. A time that was fitted over memory, such as `save`, gives `save_s` if it does not depend on
memory, else `save_fixed_s` and `save_mib_per_s`. If tasks at once share a rate, it also gives `save_total_mib_per_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite

import numpy as np

from testbed.measure.robust import Interval
from testbed.study.calibration.fits import (
    LEAST_TRIALS,
    OUTLIER_DEVIATIONS,
    Sample,
    TimeFit,
    deviations_of,
    fit_times,
    median_interval,
    ratio_interval,
)
from testbed.study.calibration.model import Outlier, Quantity
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Value

WHOLE = 1.0  # `touched_frac` of a guest that fills all of its memory, as jobs of a trace do


def by_condition(outcomes: Iterable[Outcome], *keys: str) -> list[tuple[dict[str, Value], list[Outcome]]]:
    """Return the outcomes grouped by the values of these keys in their conditions, in order, without missing keys."""
    groups: dict[tuple[tuple[str, Value], ...], list[Outcome]] = {}
    for outcome in outcomes:
        kind = tuple((key, outcome.condition[key]) for key in keys if key in outcome.condition)
        groups.setdefault(kind, []).append(outcome)
    return [(dict(kind), groups[kind]) for kind in sorted(groups, key=_in_order)]


def _in_order(kind: tuple[tuple[str, Value], ...]) -> list[tuple[str, float, str]]:
    return [(key, inf, value) if isinstance(value, str) else (key, float(value), "") for key, value in kind]


def number(values: Mapping[str, Value], name: str) -> float | None:
    """Return a value of a condition or an observation by its name, None if it is missing or no finite number."""
    value = values.get(name)
    return float(value) if isinstance(value, int | float) and isfinite(value) else None


@dataclass(slots=True, eq=False)
class Column:
    """Values (n,) and the trial of each."""

    values: list[float] = field(default_factory=list)
    trials: list[int] = field(default_factory=list)

    def add(self, value: float | None, trial: int) -> None:
        """Add a value unless it is None."""
        if value is not None:
            self.values.append(value)
            self.trials.append(trial)

    @property
    def units(self) -> int:
        """Number of trials, which are the independent units."""
        return len(set(self.trials))


def column(outcomes: Iterable[Outcome], *names: str) -> Column:
    """Return the sums of the named values of each observation; observations that lack one are left out."""
    found = Column()
    for outcome in outcomes:
        for observation in outcome.observations:
            parts = [number(observation, name) for name in names]
            if None not in parts:
                found.add(sum(part for part in parts if part is not None), outcome.trial)
    return found


def units_of(outcomes: Iterable[Outcome], trials: Sequence[int]) -> list[int]:
    """Return the independent unit of each trial: its block if there are enough blocks, else the trial itself.

    Trials of one block are not independent, because a machine may be slower for minutes.
    """
    block = {outcome.trial: outcome.block for outcome in outcomes}
    blocks = [block.get(trial, trial) for trial in trials]
    return blocks if len(set(blocks)) >= LEAST_TRIALS else list(trials)


@dataclass(slots=True, eq=False)
class Quantities:
    """Collection of the quantities of `trials`; `fits` has the name of each fitted time, its condition, and its fit."""

    trials: Sequence[Outcome] = ()
    found: list[Quantity] = field(default_factory=list)
    outliers: list[Outlier] = field(default_factory=list)
    fits: list[tuple[str, Condition, TimeFit]] = field(default_factory=list)

    def __iter__(self) -> Iterator[Quantity]:
        return iter(self.found)

    def named(self, name: str) -> list[Quantity]:
        """Return the quantities of a name, one per condition, in the order in which they were added."""
        return [quantity for quantity in self.found if quantity.name == name]

    def fit(self, name: str, **condition: Value) -> TimeFit | None:
        """Return the fit of a name and exactly this condition."""
        return next((fit for what, under, fit in self.fits if what == name and dict(under) == condition), None)

    def median(
        self, name: str, unit: str, values: Column, condition: Condition, *,
        quantile: float = 0.5, listed: bool = True, relative: bool = True,
    ) -> Quantity | None:  # fmt: skip
        """Add the median of a column, or another quantile, if the column has values; with `listed` also its outliers.

        Set `relative` to False for a quantity that should be about 0, such as an error: residuals relative to it have
        no meaning.
        """
        if not values.values:
            return None
        interval = median_interval(values.values, self._units(values.trials), quantile)
        if quantile != 0.5:
            return self.add(name, unit, interval, values, condition)
        numbers = np.asarray(values.values)
        far = np.abs(deviations := deviations_of(numbers)) > OUTLIER_DEVIATIONS
        if listed:
            for index in np.flatnonzero(far):
                self._outlier(name, values.trials[index], numbers[index], interval.value, deviations[index])
        spread = np.median(np.abs(numbers - interval.value))
        goodness = float(spread / abs(interval.value)) if relative and interval.value else float("nan")
        return self.add(name, unit, interval, values, condition, goodness=goodness, outliers=int(far.sum()))

    def ratio(self, name: str, top: Column, bottom: Column, condition: Condition) -> None:
        """Add the ratio of the medians of two columns, if both have values and all are positive."""
        if top.values and bottom.values and min(*top.values, *bottom.values) > 0.0:
            ratio = ratio_interval(
                top.values, self._units(top.trials), bottom.values, self._units(bottom.trials)
            )  # fmt: skip
            both = Column([*top.values, *bottom.values], [*top.trials, *bottom.trials])
            self.add(name, "1", ratio, both, condition)

    def add(
        self, name: str, unit: str, interval: Interval, values: Column, condition: Condition, *,
        model: str = "constant", goodness: float = float("nan"), outliers: int = 0,
    ) -> Quantity:  # fmt: skip
        """Add a quantity that was computed from a column."""
        quantity = Quantity(
            name, interval.value, interval.low, interval.high, unit, values.units, len(values.values), model, goodness,
            outliers, dict(condition),
        )  # fmt: skip
        self.found.append(quantity)
        return quantity

    def times(self, name: str, outcomes: Sequence[Outcome], observed: Sequence[str], condition: Condition) -> None:
        """Fit the sums of named times over memory and tasks at once; add the fit, its parameters and its outliers.

        Only trials of guests that fill all of their memory are used. If there are none, all trials are used, with the
        filled part of the memory.
        """
        whole = [outcome for outcome in outcomes if outcome.condition.get("touched_frac", WHOLE) == WHOLE]
        rows: list[tuple[float, float, float, int]] = []
        for outcome in whole or outcomes:
            memory_mib = number(outcome.condition, "memory_mib") or 0.0
            filled_mib = memory_mib * (number(outcome.condition, "touched_frac") or WHOLE)
            at_once = number(outcome.condition, "concurrent") or 1.0
            own = column([outcome], *observed)
            rows += [(filled_mib, at_once, value, outcome.trial) for value in own.values]
        if not rows:
            return
        memory, concurrent, time_s, trial = (np.array(values) for values in zip(*rows, strict=True))
        fit = fit_times(Sample(memory, concurrent, time_s, np.array(self._units(trial.tolist()))))
        if fit is None:
            return
        self.fits.append((name, dict(condition), fit))
        for index in fit.outliers:
            self._outlier(f"{name}_s", trial[index], time_s[index], fit.expected_s[index], fit.deviations[index])
        under = {**condition, **_not_varied(whole or outcomes)}
        self._parameters(name, fit, under, Column(time_s.tolist(), trial.tolist()), concurrent.tolist())

    def _units(self, trials: Sequence[int]) -> list[int]:
        return units_of(self.trials, trials)

    def _parameters(self, name: str, fit: TimeFit, condition: Condition, all_of: Column, at_once: list[float]) -> None:
        far = fit.outliers
        for level, fixed_s, slope in zip(fit.levels, fit.fixed_s, fit.s_per_mib, strict=True):
            own = [index for index, tasks in enumerate(at_once) if level in {0, tasks}]
            under = {**condition, "concurrent": level} if level else condition
            part = Column([all_of.values[index] for index in own], [all_of.trials[index] for index in own])
            goodness = float(np.median(np.abs(fit.residual_frac[own])))
            outliers = len(set(own) & set(far))
            intervals = [(f"{name}_fixed_s" if slope else f"{name}_s", "s", fixed_s)]
            if slope:
                intervals.append((f"{name}_mib_per_s", "MiB/s", _reciprocal(slope)))
            if fit.total_s_per_mib:
                intervals.append((f"{name}_total_mib_per_s", "MiB/s", _reciprocal(fit.total_s_per_mib)))
            for what, unit, interval in intervals:
                quantity = self.add(
                    what, unit, interval, part, under, model=fit.model, goodness=goodness, outliers=outliers
                )
                if fit.lack is not None:
                    self.found[-1] = replace(quantity, lack_of_fit_p=fit.lack.p)

    def _outlier(self, name: str, trial: float, value: float, expected: float, deviations: float) -> None:
        self.outliers.append(Outlier(name, int(trial), float(value), float(expected), float(deviations)))


def _not_varied(outcomes: Sequence[Outcome]) -> dict[str, Value]:
    """Return memory and tasks at once if they are the same in all trials, as the results hold for these only."""
    found: dict[str, Value] = {}
    for key in ("memory_mib", "concurrent"):
        values = {outcome.condition[key] for outcome in outcomes if key in outcome.condition}
        if len(values) == 1:
            found[key] = values.pop()
    return found


def _reciprocal(interval: Interval) -> Interval:
    high = 1.0 / interval.low if interval.low > 0.0 else inf
    return Interval(1.0 / interval.value, 1.0 / interval.high, high)
