"""Robust regression of an operation's time on the memory that it moves and on the number of tasks that move at once.

    time = fixed + memory * max(1 / rate, tasks / total rate)

There are four models, from the simplest: "constant" (a median), "linear" (the number of tasks at once does not matter),
"shared" (the formula above, which is that of `simulation.overheads.linear`) and "levels" (a line, or a constant, for
each number of tasks at once). A line needs a slope whose interval lies above 0; "constant" is then excluded. The
simplest remaining model is selected, unless a richer one lowers the cross-validated error by more than `MARGIN`, and
by more than its own standard error (about one over the root of the number of trials). The error of a model is the mean
over conditions of the median absolute residual, relative to the observed time, of trials that were left out of the fit.

All lines are Theil-Sen estimates: up to 29 % of arbitrarily wrong observations cannot move them far. The independent
unit is the trial: intervals are bootstrapped over whole trials, and folds of the cross-validation are of whole trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.measure.robust import Interval, expanded_interval, t_interval
from testbed.study.calibration.lack_of_fit import LackOfFit, lack_of_fit
from testbed.study.calibration.medians import weighted_median

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RESAMPLES = 1000
LEAST_TRIALS = 6  # the whole range of fewer values contains the median with a probability below 95 %
OUTLIER_DEVIATIONS = 3.5
MARGIN = 0.1  # relative decrease of the error that a richer model needs to be selected
_FOLDS = 5
_PAIRS = 1200
_SEED = 1
_MAD_TO_DEVIATION = 1.4826  # standard deviation over median absolute deviation of a normal distribution


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Observations (n,): the memory that was moved, the tasks that moved at once, the duration, and the trial."""

    memory_mib: Floats
    concurrent: Floats
    time_s: Floats
    trial: Ints

    @property
    def trials(self) -> int:
        """Number of trials, which are the independent units."""
        return int(np.unique(self.trial).size)


@dataclass(frozen=True, slots=True, eq=False)
class TimeFit:
    """A fitted model of times with 95 % intervals: one line for all levels of tasks at once, or one line per level.

    `fixed_s[i]` and `s_per_mib[i]` (None: no dependence on memory) belong to `levels[i]` tasks at once; a model with
    one line has level 0. `total_s_per_mib` is the reciprocal of the total rate of "shared", and `saturation` is the
    number of tasks at once that reaches it. `error_frac` has the cross-validated error of each model that was tried.
    `lack` is the result of the lack-of-fit test; `medians_s` has the observed medians by memory and tasks at once.
    """

    model: str
    levels: tuple[int, ...]
    fixed_s: tuple[Interval, ...]
    s_per_mib: tuple[Interval | None, ...]
    total_s_per_mib: Interval | None
    saturation: float
    error_frac: dict[str, float]
    expected_s: Floats
    residual_frac: Floats
    deviations: Floats
    trials: int
    lack: LackOfFit | None
    medians_s: Mapping[tuple[float, float], float]

    @property
    def goodness(self) -> float:
        """Median absolute residual relative to the expected time."""
        return float(np.median(np.abs(self.residual_frac)))

    @property
    def outliers(self) -> list[int]:
        """Indices of observations whose residuals exceed `OUTLIER_DEVIATIONS`; the fit includes them."""
        return [int(index) for index in np.flatnonzero(np.abs(self.deviations) > OUTLIER_DEVIATIONS)]

    def measured_s(self, memory_mib: float, concurrent: float) -> float:
        """Return the seconds for a simulation: the expected time, or if the fit is rejected the observed median.

        Observed medians are interpolated between the sizes that were measured with so many tasks at once. Beyond these
        sizes they continue as the fit does.
        """
        if self.lack is not None and self.lack.shown:
            own = sorted((mib, time_s) for (mib, at_once), time_s in self.medians_s.items() if at_once == concurrent)
            if own:
                sizes_mib, times_s = zip(*own, strict=True)
                within_mib = min(max(memory_mib, sizes_mib[0]), sizes_mib[-1])
                beyond_s = self.predict_s(memory_mib, concurrent) - self.predict_s(within_mib, concurrent)
                return max(float(np.interp(within_mib, sizes_mib, times_s)) + beyond_s, 0.0)
        return self.predict_s(memory_mib, concurrent)

    def predict_s(self, memory_mib: float, concurrent: float) -> float:
        """Return the expected seconds of one task, at least 0; linear in tasks at once between and beyond levels."""
        times_s = [
            fixed_s.value + (slope.value if slope else 0.0) * memory_mib * max(1.0, concurrent / self.saturation)
            for fixed_s, slope in zip(self.fixed_s, self.s_per_mib, strict=True)
        ]
        if len(times_s) == 1:
            return max(times_s[0], 0.0)
        left = int(np.clip(np.searchsorted(self.levels, concurrent) - 1, 0, len(times_s) - 2))
        way = (concurrent - self.levels[left]) / (self.levels[left + 1] - self.levels[left])
        return max(times_s[left] + way * (times_s[left + 1] - times_s[left]), 0.0)


class _Rows(NamedTuple):
    """Parameters of a model, fitted for each of R weightings of the observations: L lines and a saturation."""

    fixed_s: Floats  # (R, L)
    s_per_mib: Floats  # (R, L)
    saturation: Floats  # (R,)
    line: Ints  # (n,) index of the line of each observation

    def expected_s(self, sample: Sample) -> Floats:
        """Return the expected time of each observation (R, n)."""
        share = np.maximum(1.0, sample.concurrent / self.saturation[:, None])
        return np.asarray(self.fixed_s[:, self.line] + self.s_per_mib[:, self.line] * sample.memory_mib * share)


def fit_times(sample: Sample) -> TimeFit | None:
    """Select and fit a model; None without observations. Raises ValueError for values that are not finite."""
    if not sample.time_s.size:
        return None
    if not all(np.isfinite(values).all() for values in (sample.memory_mib, sample.concurrent, sample.time_s)):
        raise ValueError("times to be fitted must be finite")
    weights = bootstrap_weights(sample.trial)
    levels = np.unique(sample.concurrent)
    fitted = {"constant": _lines(sample, weights, None, memory=False)}
    error_frac = {"constant": _left_out_error(sample, fitted["constant"])}
    whole = _lines(sample, weights, None, memory=True)
    if whole.s_per_mib[0, 0]:
        fitted["linear"], error_frac["linear"] = whole, _left_out_error(sample, whole)
        if levels.size > 1:
            error_frac["shared"] = _left_out_error(sample, None)
    if levels.size > 1 and all(np.unique(sample.trial[sample.concurrent == level]).size > 1 for level in levels):
        fitted["levels"] = _lines(sample, weights, levels, memory=True)
        error_frac["levels"] = _left_out_error(sample, fitted["levels"])
    model = _simplest(error_frac, sample.trials)
    rows = _shared(sample, weights) if model == "shared" else fitted[model]
    return _told(sample, model, rows, levels if model == "levels" else np.zeros(1), error_frac, weights)


def deviations_of(residuals: Floats) -> Floats:
    """Return residuals (n,) in robust standard deviations, from their median absolute deviation; 0 if that is 0."""
    centred = residuals - np.median(residuals)
    scale = _MAD_TO_DEVIATION * np.median(np.abs(centred))
    return np.asarray(centred / scale) if scale > 0.0 else np.zeros_like(residuals)


def median_interval(values: Sequence[float] | Floats, trials: Sequence[int] | Ints, quantile: float = 0.5) -> Interval:
    """Return a quantile of values (n,) with its 95 % interval over trials (n,), with NaN bounds for one trial.

    The interval is a bootstrap for `LEAST_TRIALS` trials or more. For fewer trials, the interval of a median is
    Student's t of the trials' medians, and other quantiles have NaN bounds.
    """
    ys, units = np.asarray(values, dtype=np.float64), np.asarray(trials)
    value = float(np.quantile(ys, quantile))
    names = np.unique(units)
    if names.size < LEAST_TRIALS:
        within = t_interval([float(np.median(ys[units == name])) for name in names]) if quantile == 0.5 else None
        return Interval(value, within.low, within.high) if within else Interval(value, np.nan, np.nan)
    if quantile == 0.5:
        return expanded_interval(value, weighted_median(ys, bootstrap_weights(units)[1:]), names.size)
    draw = np.random.default_rng(_SEED)
    members = [ys[units == name] for name in names]
    found = [
        np.quantile(np.concatenate([members[index] for index in draw.integers(0, names.size, names.size)]), quantile)
        for _ in range(RESAMPLES)
    ]
    return expanded_interval(value, np.asarray(found), names.size)


def ratio_interval(
    top: Sequence[float], top_trials: Sequence[int], bottom: Sequence[float], bottom_trials: Sequence[int]
) -> Interval:
    """Return the ratio of the medians of two independent groups of positive values, with its 95 % interval.

    The interval is that of the difference of logarithms, whose half width is the root of the summed squares of both
    half widths. Each group thus enters with its own number of trials. The bounds are NaN if a group has a single trial.
    """
    groups = [
        median_interval(np.log(np.asarray(values)), trials)
        for values, trials in ((top, top_trials), (bottom, bottom_trials))
    ]
    above, below = groups
    value = float(np.exp(above.value - below.value))
    down = np.hypot(above.value - above.low, below.high - below.value)
    up = np.hypot(above.high - above.value, below.value - below.low)
    return Interval(value, float(value * np.exp(-down)), float(value * np.exp(up)))


def slope_interval(x: Sequence[float], y: Sequence[float], trials: Sequence[int]) -> Interval | None:
    """Return the Theil-Sen slope of y (n,) over x (n,) with its 95 % interval over trials.

    Return None if x does not vary. The bounds are NaN for fewer than `LEAST_TRIALS` trials.
    """
    units = np.asarray(trials)
    _intercepts, slopes = theil_sen(
        np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64), bootstrap_weights(units)
    )
    if not np.isfinite(slopes[0]):
        return None
    count = int(np.unique(units).size)
    if count < LEAST_TRIALS:
        return Interval(float(slopes[0]), np.nan, np.nan)
    return expanded_interval(float(slopes[0]), slopes[1:], count)


def bootstrap_weights(trial: Ints, draw: np.random.Generator | None = None, resamples: int = 0) -> Floats:
    """Return the counts of each observation (1 + R, n): 1 in the first row, those of drawn trials in the others."""
    _names, unit = np.unique(trial, return_inverse=True)
    units = int(unit.max()) + 1
    draw = draw or np.random.default_rng(_SEED)
    drawn = draw.multinomial(units, np.full(units, 1.0 / units), size=resamples or RESAMPLES)
    return np.vstack([np.ones((1, trial.size)), drawn[:, unit].astype(np.float64)])


def _pairs(x: Floats, draw: np.random.Generator, most: int) -> tuple[Ints, Ints]:
    """Return pairs of observations at different x: all pairs, or a random sample of `most`."""
    left, right = np.triu_indices(x.size, 1)
    apart = np.flatnonzero(x[left] != x[right])
    if apart.size > most:
        apart = draw.choice(apart, most, replace=False)
    return left[apart], right[apart]


def theil_sen(
    x: Floats, y: Floats, weights: Floats, draw: np.random.Generator | None = None, most_pairs: int = _PAIRS
) -> tuple[Floats, Floats]:
    """Return Theil-Sen intercepts and slopes (R,) of y over x for each row of weights (R, n); NaN without pairs."""
    left, right = _pairs(x, draw or np.random.default_rng(_SEED), most_pairs)
    if not left.size:
        return weighted_median(y, weights), np.full(weights.shape[0], np.nan)
    slopes = weighted_median((y[right] - y[left]) / (x[right] - x[left]), weights[:, left] * weights[:, right])
    return weighted_median(y - slopes[:, None] * x, weights), slopes


def _rises(slopes: Floats, trials: int) -> bool:
    """Return whether the whole interval of a slope is above 0; `slopes` are of all data, then of resamples."""
    if trials < LEAST_TRIALS or np.isfinite(slopes).mean() < 0.95:
        return False
    return expanded_interval(float(slopes[0]), slopes[1:], trials).low > 0.0


def _lines(sample: Sample, weights: Floats, levels: Floats | None, *, memory: bool) -> _Rows:
    """Fit one line per level, or one for all; a line whose slope is not significantly above 0 becomes a constant.

    A level that was measured with one memory size has the slope of the level below it.
    """
    groups = [np.ones(sample.time_s.size, dtype=bool)]
    if levels is not None:
        groups = [sample.concurrent == level for level in levels]
    rows = weights.shape[0]
    fixed_s, slopes = np.empty((rows, len(groups))), np.zeros((rows, len(groups)))
    line = np.zeros(sample.time_s.size, dtype=np.int64)
    for index, chosen in enumerate(groups):
        line[chosen] = index
        x, y, own = sample.memory_mib[chosen], sample.time_s[chosen], weights[:, chosen]
        fixed_s[:, index] = weighted_median(y, own)
        if memory and index and np.unique(x).size == 1:
            fixed_s[:, index], slopes[:, index] = _parallel(x, y, own, slopes[:, index - 1])
        elif memory:
            intercept_s, slope = theil_sen(x, y, own)
            if _rises(slope, np.unique(sample.trial[chosen]).size):
                fixed_s[:, index], slopes[:, index] = intercept_s, slope
    return _Rows(fixed_s, slopes, np.full(rows, np.inf), line)


def _parallel(x: Floats, y: Floats, weights: Floats, slope: Floats) -> tuple[Floats, Floats]:
    """Return the intercepts and slopes (R,) of lines with given slopes; no slope where a resample has none."""
    slope = np.where(np.isfinite(slope), slope, 0.0)
    return weighted_median(y - slope[:, None] * x, weights), slope


def _shared(sample: Sample, weights: Floats) -> _Rows:
    """Fit the model of a shared total rate.

    The lower levels of tasks at once do not reach the total rate: their slope over memory is that of one task. The
    slope of the higher levels over memory times tasks gives the total rate. The split between them with the least error
    over all data is selected.
    """
    everything = np.ones((1, sample.time_s.size))
    splits = np.unique(sample.concurrent).tolist()
    errors = []
    for split in splits:
        residual_s = sample.time_s - _shared_from(sample, everything, split).expected_s(sample)
        fits = np.isfinite(residual_s).all()  # not finite if one part has a single memory size
        errors.append(float(_error(sample, residual_s, everything)[0]) if fits else np.inf)
    return _shared_from(sample, weights, splits[int(np.argmin(errors))])


def _shared_from(sample: Sample, weights: Floats, split: float) -> _Rows:
    """Fit the model of a shared rate, with `split` as the first level of tasks at once that reaches the total rate."""
    memory_mib, concurrent, time_s = sample.memory_mib, sample.concurrent, sample.time_s
    full, alone = concurrent >= split, concurrent < split
    _fixed, total = theil_sen((memory_mib * concurrent)[full], time_s[full], weights[:, full])
    slope = total * split
    if alone.any():
        _fixed, slope = theil_sen(memory_mib[alone], time_s[alone], weights[:, alone])
    with np.errstate(divide="ignore", invalid="ignore"):
        saturation = np.maximum(slope / total, 1.0)
        moved = memory_mib * np.maximum(1.0, concurrent / saturation[:, None])
    fixed_s = weighted_median(time_s - slope[:, None] * moved, weights)
    return _Rows(fixed_s[:, None], slope[:, None], saturation, np.zeros(time_s.size, dtype=np.int64))


def _error(sample: Sample, residual_s: Floats, weights: Floats) -> Floats:
    """Return the mean over conditions of the median relative size of residuals (R, n) under weights (R, n)."""
    relative = np.abs(residual_s) / np.maximum(np.abs(sample.time_s), _least_s(sample.time_s))
    _kinds, kind = np.unique(np.stack([sample.memory_mib, sample.concurrent]), axis=1, return_inverse=True)
    medians = np.zeros((weights.shape[0], int(kind.max()) + 1))
    for index in range(medians.shape[1]):
        own = np.flatnonzero(kind.ravel() == index)
        medians[:, index] = weighted_median(relative[:, own], weights[:, own])
    there = np.isfinite(medians)
    return np.asarray(np.where(there, medians, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1))


def _least_s(time_s: Floats) -> float:
    """Return the least denominator of relative errors in seconds, as felt times may be near 0."""
    return max(0.01 * float(np.median(np.abs(time_s))), 1e-9)


def _left_out_error(sample: Sample, lines: _Rows | None) -> float:
    """Return the cross-validated error of a model with such lines (None: of "shared"), infinite for a single trial."""
    names = np.random.default_rng(_SEED).permutation(np.unique(sample.trial))
    folds = min(_FOLDS, names.size)
    if folds < 2:
        return np.inf
    fold_of = dict(zip(names.tolist(), (np.arange(names.size) % folds).tolist(), strict=True))
    fold = np.array([fold_of[trial] for trial in sample.trial.tolist()])
    weights = (fold[None, :] != np.arange(folds)[:, None]).astype(np.float64)
    rows = _refit(sample, lines, weights) if lines else _shared(sample, weights)
    residual_s = rows.expected_s(sample)[fold, np.arange(fold.size)] - sample.time_s
    if not np.isfinite(residual_s).all():
        return np.inf  # without some fold, a level has no trial
    return float(_error(sample, residual_s[None, :], np.ones((1, fold.size)))[0])


def _refit(sample: Sample, fitted: _Rows, weights: Floats) -> _Rows:
    """Fit the lines again with other weights; lines without a slope remain constants."""
    fixed_s: list[Floats] = []
    slopes: list[Floats] = []
    for index in range(fitted.fixed_s.shape[1]):
        chosen = fitted.line == index
        x, y, own = sample.memory_mib[chosen], sample.time_s[chosen], weights[:, chosen]
        sloped = bool(fitted.s_per_mib[0, index])
        if not sloped:
            intercept_s, slope = weighted_median(y, own), np.zeros(len(own))
        elif index and np.unique(x).size == 1:
            intercept_s, slope = _parallel(x, y, own, slopes[-1])
        else:
            intercept_s, slope = theil_sen(x, y, own)
        fixed_s.append(intercept_s)
        slopes.append(slope)
    rows = weights.shape[0]
    return _Rows(np.stack(fixed_s, axis=1), np.stack(slopes, axis=1), np.full(rows, np.inf), fitted.line)


def _simplest(error_frac: dict[str, float], trials: int) -> str:
    """Return the simplest model that no richer model beats by the margin; `error_frac` is in order of richness."""
    chosen = "linear" if "linear" in error_frac else "constant"
    margin = max(MARGIN, trials**-0.5)
    for name, error in error_frac.items():
        if error < (1.0 - margin) * error_frac[chosen]:
            chosen = name
    return chosen


def _told(
    sample: Sample, model: str, rows: _Rows, levels: Floats, error_frac: dict[str, float], weights: Floats
) -> TimeFit:  # fmt: skip
    expected_s = rows.expected_s(sample)[0]
    residual_frac = (sample.time_s - expected_s) / np.maximum(np.abs(expected_s), _least_s(sample.time_s))

    def interval(values: Floats, own: NDArray[np.bool_]) -> Interval:
        return expanded_interval(float(values[0]), values[1:], int(np.unique(sample.trial[own]).size))

    fixed_s: list[Interval] = []
    slopes: list[Interval | None] = []
    for index in range(rows.fixed_s.shape[1]):
        own = rows.line == index
        sloped = bool(rows.s_per_mib[0, index])
        slopes.append(interval(rows.s_per_mib[:, index], own) if sloped else None)
        few = median_interval(sample.time_s[own], sample.trial[own])
        fixed_s.append(interval(rows.fixed_s[:, index], own) if sloped else few)
    total = interval(rows.s_per_mib[:, 0] / rows.saturation, rows.line == 0) if model == "shared" else None
    return TimeFit(
        model, tuple(int(level) for level in levels), tuple(fixed_s), tuple(slopes), total, float(rows.saturation[0]),
        error_frac, expected_s, residual_frac, deviations_of(residual_frac), sample.trials,
        lack_of_fit(sample.memory_mib, sample.concurrent, residual_frac, weights), _medians_s(sample),
    )  # fmt: skip


def _medians_s(sample: Sample) -> dict[tuple[float, float], float]:
    places = zip(sample.memory_mib.tolist(), sample.concurrent.tolist(), sample.time_s.tolist(), strict=True)
    found: dict[tuple[float, float], list[float]] = {}
    for memory_mib, concurrent, time_s in places:
        found.setdefault((memory_mib, concurrent), []).append(time_s)
    return {place: float(np.median(times)) for place, times in found.items()}
