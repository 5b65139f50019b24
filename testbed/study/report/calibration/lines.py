"""The lines of a calibration's fits, from its quantities, with 95 % bands from its trials.

The lines are those of the calibration file. A band is a bootstrap over whole trials of the same estimator (Theil-Sen
over memory, at the fitted saturation), pointwise in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose

import numpy as np

from testbed.measure.robust import expanded_interval
from testbed.study.calibration.fits import Floats, bootstrap_weights, theil_sen
from testbed.study.calibration.model import Calibration, Quantity
from testbed.study.calibration.values import Value
from testbed.study.report.calibration.data import Row, figure_words, having, trials_of, values_of

_RESAMPLES = 400
_PAIRS = 2000
_SEED = 1
_GRID = 25


@dataclass(frozen=True, slots=True)
class Line:
    """Expected times over memory for `level` tasks at once (0: for any number); arrays (k,), bands may be NaN."""

    level: int
    memory_mib: Floats
    time_s: Floats
    low_s: Floats
    high_s: Floats


@dataclass(frozen=True, slots=True)
class _Law:
    """A fitted model: time = fixed + memory / rate * max(1, tasks / saturation); without a rate, time = fixed."""

    fixed: Quantity
    rate: Quantity | None
    saturation: float

    def slowdown(self, concurrent: Floats | float) -> Floats:
        return np.maximum(1.0, np.asarray(concurrent, dtype=np.float64) / self.saturation)

    def time_s(self, memory_mib: Floats, concurrent: float) -> Floats:
        slope = 0.0 if self.rate is None else 1.0 / self.rate.value
        return np.asarray(self.fixed.value + slope * memory_mib * self.slowdown(concurrent))


def lines_of(
    calibration: Calibration, name: str, condition: Mapping[str, Value], rows: Sequence[Row], observed: str
) -> list[Line]:
    """Return the lines of the fit with this name and exactly this condition; `rows` are its observations."""
    known = having(rows, "memory_mib", observed)
    if not known:
        return []
    concurrent = np.array([row.number("concurrent") or 1.0 for row in known])
    levels = sorted({int(level) for level in concurrent.tolist()})
    found = []
    for level in (0, *levels):
        law = _law(calibration, name, {**condition, "concurrent": level} if level else condition)
        if law is None:
            continue
        own = known if not level else [row for row, tasks in zip(known, concurrent, strict=True) if tasks == level]
        for each in levels if law.saturation < np.inf else [level]:
            drawn = own if not each else [row for row in own if (row.number("concurrent") or 1.0) == each]
            if drawn:
                sizes_mib = values_of(drawn, "memory_mib")
                memory_mib = np.linspace(sizes_mib.min(), sizes_mib.max(), _GRID)
                found.append(_line(law, each, memory_mib, own, observed))
    return found


def law_words(calibration: Calibration, name: str, condition: Mapping[str, Value], levels: Sequence[int]) -> str:
    """Return a fit as text such as "1.0 s + m / 300 MiB/s", per number of tasks at once if these differ; or ""."""
    found = []
    for level in (0, *levels):
        law = _law(calibration, name, {**condition, "concurrent": level} if level else condition)
        if law is None:
            continue
        words = _with_interval(law.fixed)
        if law.rate is not None:
            words += f" + m / {_with_interval(law.rate)}"
        if law.saturation < np.inf and law.rate is not None:
            words += f", total rate of all at once at most {figure_words(law.saturation * law.rate.value)} MiB/s"
        found.append(f"{words} ({level} at once)" if level else words)
    return "; ".join(found)


def is_outlier(calibration: Calibration, quantity: str, row: Row, value: float) -> bool:
    """Return whether the calibration lists this observation of a quantity as an outlier."""
    return any(
        one.quantity == quantity and one.trial == row.trial and isclose(one.value, value, rel_tol=1e-4, abs_tol=1e-9)
        for one in calibration.outliers
    )


def _with_interval(one: Quantity) -> str:
    if not one.bounded:
        return f"{figure_words(one.value)} {one.unit}"
    return f"{figure_words(one.value)} {one.unit} ({figure_words(one.low)} to {figure_words(one.high)})"


def _exactly(calibration: Calibration, name: str, condition: Mapping[str, Value]) -> Quantity | None:
    return next((one for one in calibration.find(name) if dict(one.condition) == dict(condition)), None)


def _law(calibration: Calibration, name: str, condition: Mapping[str, Value]) -> _Law | None:
    constant = _exactly(calibration, f"{name}_s", condition)
    if constant is not None:
        return _Law(constant, None, float("inf"))
    fixed = _exactly(calibration, f"{name}_fixed_s", condition)
    rate = _exactly(calibration, f"{name}_mib_per_s", condition)
    total = _exactly(calibration, f"{name}_total_mib_per_s", condition)
    if fixed is None or rate is None:
        return None
    return _Law(fixed, rate, float("inf") if total is None else max(total.value / rate.value, 1e-9))


def _line(law: _Law, level: int, memory_mib: Floats, rows: Sequence[Row], observed: str) -> Line:
    time_s = law.time_s(memory_mib, float(max(level, 1)))
    if law.rate is None:
        one = np.ones_like(memory_mib)
        return Line(level, memory_mib, time_s, law.fixed.low * one, law.fixed.high * one)
    concurrent = np.array([row.number("concurrent") or 1.0 for row in rows])
    x = values_of(rows, "memory_mib") * law.slowdown(concurrent)
    trials = trials_of(rows)
    draw = np.random.default_rng(_SEED)
    weights = bootstrap_weights(trials, draw, _RESAMPLES)[1:]
    fixed_s, slopes = theil_sen(x, values_of(rows, observed), weights, draw, _PAIRS)
    units = np.unique(trials).size
    at = memory_mib * law.slowdown(float(max(level, 1)))
    found = [
        expanded_interval(float(value), fixed_s + slopes * place, units)
        for value, place in zip(time_s, at, strict=True)
    ]
    return Line(
        level, memory_mib, time_s, np.array([one.low for one in found]), np.array([one.high for one in found])
    )  # fmt: skip
