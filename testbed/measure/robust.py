"""Robust fits and confidence intervals of few measured values, with fixed seeds; unsupported slopes are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, fmean, stdev

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEAST_DISTINCT = 5
RESAMPLES = 1000
_PAIRS = 4000
_SEED = 1

# Quantiles of Student's t at 0.975 for 1 to 30 degrees of freedom.
_T_975 = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
    2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831, 2.048407, 2.045230, 2.042272,
)  # fmt: skip
_Z_975 = 1.959964
_T_95 = (
    6.313752, 2.919986, 2.353363, 2.131847, 2.015048, 1.943180, 1.894579, 1.859548, 1.833113, 1.812461,
    1.795885, 1.782288, 1.770933, 1.761310, 1.753050, 1.745884, 1.739607, 1.734064, 1.729133, 1.724718,
    1.720743, 1.717144, 1.713872, 1.710882, 1.708141, 1.705618, 1.703288, 1.701131, 1.699127, 1.697261,
)  # fmt: skip
_Z_95 = 1.644854


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval, in the unit of the value."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fit:
    """y = intercept + slope * x by Theil and Sen, over `count` points of `clusters` independent units.

    `slope` is None if the data do not support one (its interval contains 0); `intercept` is then the median of y.
    """

    intercept: Interval
    slope: Interval | None
    count: int
    clusters: int


def _theil_sen(x: NDArray[np.float64], y: NDArray[np.float64], draw: np.random.Generator) -> tuple[float, float]:
    """Return (intercept, slope): the median slope of all pairs or of `_PAIRS` random pairs; NaN without a pair."""
    size = x.size
    if size * (size - 1) // 2 <= _PAIRS:
        left, right = np.triu_indices(size, 1)
    else:
        left, right = draw.integers(0, size, _PAIRS), draw.integers(0, size, _PAIRS)
    run = x[right] - x[left]
    apart = run != 0.0
    if not apart.any():
        return float("nan"), float("nan")
    slope = float(np.median((y[right] - y[left])[apart] / run[apart]))
    return float(np.median(y - slope * x)), slope


def _interval(value: float, resampled: NDArray[np.float64]) -> Interval:
    low, high = np.nanquantile(resampled, (0.025, 0.975))
    return Interval(value, float(low), float(high))


def expanded_interval(value: float, resampled: NDArray[np.float64], units: int) -> Interval:
    """Return the 95 % interval of `value` from bootstrap values (R,) over `units` independent units.

    The percentiles of a bootstrap are too narrow for few units, by sqrt((n - 1) / n) and by the use of the normal
    instead of Student's quantile. This interval corrects for both [Hesterberg, What Teachers Should Know About the
    Bootstrap, 2015, "expanded percentile interval"]. The bounds are NaN for fewer than two units; NaN values are left
    out.
    """
    finite = resampled[np.isfinite(resampled)]
    if units < 2 or not finite.size:
        return Interval(value, float("nan"), float("nan"))
    tail = NormalDist().cdf(-sqrt(units / (units - 1)) * t_quantile_975(units - 1))
    low, high = np.quantile(finite, (tail, 1.0 - tail))
    return Interval(value, float(low), float(high))


def robust_fit(x: ArrayLike, y: ArrayLike, clusters: ArrayLike) -> Fit | None:
    """Fit a line, or a constant, with bootstrap intervals; None for fewer than `LEAST_DISTINCT` distinct points.

    `clusters` (n,) names the independent unit of each point (n,): whole units are resampled, with a fixed seed.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(set(zip(xs.tolist(), ys.tolist(), strict=True))) < LEAST_DISTINCT:
        return None
    _names, unit = np.unique(np.asarray(clusters), return_inverse=True)
    order = np.argsort(unit, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(unit[order])) + 1)
    draw = np.random.default_rng(_SEED)
    intercept, slope = _theil_sen(xs, ys, draw)
    found = np.empty((RESAMPLES, 3))
    for row in range(RESAMPLES):
        chosen = np.concatenate([members[index] for index in draw.integers(0, len(members), len(members))])
        found[row] = (*_theil_sen(xs[chosen], ys[chosen], draw), np.median(ys[chosen]))
    enough = np.isfinite(found[:, 1]).mean() > 0.95
    slopes = _interval(slope, found[:, 1]) if enough else None
    if slopes is None or slopes.low <= 0.0 <= slopes.high:
        return Fit(_interval(float(np.median(ys)), found[:, 2]), None, xs.size, len(members))
    return Fit(_interval(intercept, found[:, 0]), slopes, xs.size, len(members))


def t_quantile_975(freedom: int) -> float:
    """Return the 0.975 quantile of Student's t; beyond 30 degrees of freedom by its expansion, within 1e-4."""
    return _t_quantile(_T_975, _Z_975, freedom)


def t_quantile_95(freedom: int) -> float:
    """Return the 0.95 quantile of Student's t, with the accuracy of `t_quantile_975`."""
    return _t_quantile(_T_95, _Z_95, freedom)


def _t_quantile(table: Sequence[float], z: float, freedom: int) -> float:
    if freedom < 1:
        raise ValueError(f"{freedom} degrees of freedom: expected at least 1")
    if freedom <= len(table):
        return table[freedom - 1]
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def t_interval(values: Sequence[float]) -> Interval | None:
    """Return the mean of independent values with its 95 % t-interval, None for fewer than two."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    half = t_quantile_975(len(values) - 1) * stdev(values) / sqrt(len(values))
    return Interval(mean, mean - half, mean + half)
