"""The fitters against known laws: their intervals must contain the truth as often as their level says."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.measure.robust import expanded_interval
from testbed.study.calibration import fits
from testbed.study.calibration.fits import (
    Sample,
    deviations_of,
    fit_times,
    median_interval,
    ratio_interval,
    slope_interval,
    weighted_median,
)

SIZES_MIB, AT_ONCE = (128, 256, 512, 1024), (1, 2, 4)
FIXED_S, MIB_PER_S, TOTAL_MIB_PER_S = 0.5, 200.0, 300.0
DATA_SETS, LEAST_COVERED, MOST_COVERED = 200, 0.88, 1.0
LAWS = {
    "constant": lambda _mib, _n: 2.0,
    "linear": lambda mib, _n: FIXED_S + mib / MIB_PER_S,
    "shared": lambda mib, n: FIXED_S + mib * max(1 / MIB_PER_S, n / TOTAL_MIB_PER_S),
    "levels": lambda mib, n: FIXED_S * n**2 + mib / MIB_PER_S,
}


def sample_of(
    law: str,
    seed: int,
    *,
    blocks: int = 10,
    noise: float = 0.05,
    outliers: float = 0.0,
    at_once: tuple[int, ...] = AT_ONCE,
) -> Sample:
    """Trials with noise between them, and less noise within them; some are outliers by a factor."""
    draw = np.random.default_rng(seed)
    rows = []
    trial = 0
    for _block in range(blocks):
        for mib in SIZES_MIB:
            for n in at_once:
                trial += 1
                factor = draw.normal(1.0, noise) * (draw.choice([5.0, 0.1]) if draw.random() < outliers else 1.0)
                rows += [
                    (mib, n, LAWS[law](mib, n) * factor * draw.normal(1.0, 0.3 * noise), trial) for _guest in range(n)
                ]
    memory, concurrent, time_s, trials = (np.array(values, dtype=np.float64) for values in zip(*rows, strict=True))
    return Sample(memory, concurrent, time_s, trials.astype(np.int64))


@pytest.fixture
def few_resamples(monkeypatch):
    """Enough for tails of a few per cent."""
    monkeypatch.setattr(fits, "RESAMPLES", 400)


# choice of the model


@pytest.mark.parametrize("blocks", [3, 10])
@pytest.mark.parametrize("law", list(LAWS))
def test_the_law_is_recognised(law, blocks, few_resamples):
    found = [fit_times(sample_of(law, seed, blocks=blocks)).model for seed in range(4)]
    assert found.count(law) >= 3  # "levels" holds every other law, and may win by chance
    assert set(found) <= {law, "levels"}


def test_no_slope_gives_a_constant_and_no_memory_gives_one_too(few_resamples):
    chosen = [fit_times(sample_of("constant", seed, noise=0.2, at_once=(1,))) for seed in range(20)]
    assert sum(fit.model == "constant" for fit in chosen) >= 18  # each slope lies above 0 by chance in 2.5 %
    one_size = sample_of("linear", 1, at_once=(1,))
    only = one_size.memory_mib == 512
    fit = fit_times(
        Sample(one_size.memory_mib[only], one_size.concurrent[only], one_size.time_s[only], one_size.trial[only])
    )
    assert fit.model == "constant"
    assert fit.fixed_s[0].value == pytest.approx(LAWS["linear"](512, 1), rel=0.05)


def test_a_falling_line_is_no_rate(few_resamples):
    rising = sample_of("linear", 3, at_once=(1,))
    fit = fit_times(Sample(rising.memory_mib[::-1], rising.concurrent, rising.time_s, rising.trial))
    falling = Sample(1100 - rising.memory_mib, rising.concurrent, rising.time_s, rising.trial)
    assert fit.model == "constant" or fit.s_per_mib[0].low > 0
    assert fit_times(falling).s_per_mib == (None,)


# estimates


@pytest.mark.parametrize("law", ["constant", "linear", "shared"])
def test_parameters_are_recovered_among_ten_per_cent_of_gross_outliers(law, few_resamples):
    for seed in range(3):
        sample = sample_of(law, seed, outliers=0.10)
        fit = fit_times(sample)
        assert fit.model == law
        for mib in SIZES_MIB:
            for n in AT_ONCE:
                assert fit.predict_s(mib, n) == pytest.approx(LAWS[law](mib, n), rel=0.1)
        if law != "constant":
            assert 1 / fit.s_per_mib[0].value == pytest.approx(MIB_PER_S, rel=0.1)
        if law == "shared":
            assert 1 / fit.total_s_per_mib.value == pytest.approx(TOTAL_MIB_PER_S, rel=0.1)


def test_outliers_are_kept_and_shown(few_resamples):
    sample = sample_of("linear", 4, noise=0.02, outliers=0.1)
    truth = np.array([LAWS["linear"](mib, 1) for mib in sample.memory_mib])
    gross = set(np.flatnonzero(np.abs(sample.time_s / truth - 1) > 0.5).tolist())
    fit = fit_times(sample)
    assert gross
    assert gross <= set(fit.outliers)
    assert fit.expected_s.size == sample.time_s.size  # all are there
    assert fit.goodness < 0.04
    usual = np.delete(np.arange(truth.size), sorted(gross))
    assert np.mean(np.isin(usual, fit.outliers)) < 0.02


def test_predictions_are_never_negative_and_go_on_linearly_between_levels(few_resamples):
    draw = np.random.default_rng(1)
    memory_mib = np.repeat([500.0, 1000.0], 20)
    steep = Sample(memory_mib, np.ones(40), (memory_mib - 450) / 100 * draw.normal(1, 0.01, 40), np.arange(40))
    fit = fit_times(steep)
    assert fit.fixed_s[0].value < 0
    assert fit.predict_s(100, 1) == 0.0
    levels = fit_times(sample_of("levels", 1))
    one, two, three, four, six = (levels.predict_s(512, n) for n in (1, 2, 3, 4, 6))
    assert three == pytest.approx((two + four) / 2)
    assert six == pytest.approx(2 * four - two)
    assert all(left < right for left, right in pairwise((one, two, three, four, six)))


def test_a_level_with_one_memory_size_has_the_slope_of_the_level_below(few_resamples):
    """Two large tasks at once took no longer than two small ones, where only small ones were measured at once."""
    whole = sample_of("levels", 7)
    kept = (whole.concurrent == 1) | (whole.memory_mib == SIZES_MIB[0])
    columns = (whole.memory_mib, whole.concurrent, whole.time_s, whole.trial)
    fit = fit_times(Sample(*(values[kept] for values in columns)))
    assert fit.model == "levels"
    for n in AT_ONCE:
        for mib in SIZES_MIB:
            assert fit.predict_s(mib, n) == pytest.approx(LAWS["levels"](mib, n), rel=0.1), (mib, n)


def test_where_a_fit_is_rejected_medians_are_interpolated_and_continued_as_the_fit(few_resamples):
    draw = np.random.default_rng(5)
    rows = [
        (mib, 1.0, (0.1 + (mib / 400) ** 2) * draw.normal(1.0, 0.02), trial) for trial, mib in enumerate(SIZES_MIB * 12)
    ]  # convex, as no line is
    memory, concurrent, time_s, trials = (np.array(values, dtype=np.float64) for values in zip(*rows, strict=True))
    fit = fit_times(Sample(memory, concurrent, time_s, trials.astype(np.int64)))
    assert fit.lack.shown
    at_256, at_512, at_1024 = (fit.medians_s[mib, 1.0] for mib in (256, 512, 1024))
    assert fit.measured_s(256, 1) == at_256
    assert fit.measured_s(384, 1) == pytest.approx((at_256 + at_512) / 2)
    assert fit.measured_s(2048, 1) == pytest.approx(at_1024 + fit.predict_s(2048, 1) - fit.predict_s(1024, 1))
    assert fit.measured_s(384, 2) == fit.predict_s(384, 2), "so many at once were not measured"


def test_times_that_are_no_numbers_are_refused_and_none_give_no_fit():
    nothing = np.array([])
    assert fit_times(Sample(nothing, nothing, nothing, nothing.astype(np.int64))) is None
    with pytest.raises(ValueError, match="finite"):
        fit_times(Sample(np.ones(1), np.ones(1), np.array([math.nan]), np.ones(1, dtype=np.int64)))
    single = fit_times(Sample(np.ones(1), np.ones(1), np.array([3.0]), np.ones(1, dtype=np.int64)))
    assert single.model == "constant"
    assert single.fixed_s[0].value == 3.0
    assert math.isnan(single.fixed_s[0].low)


# intervals


def covered(intervals_and_truth) -> float:
    inside = [interval.low <= truth <= interval.high for interval, truth in intervals_and_truth]
    assert len(inside) == DATA_SETS
    return float(np.mean(inside))


def test_intervals_of_a_line_cover_the_truth(monkeypatch):
    monkeypatch.setattr(fits, "RESAMPLES", 300)
    found = [fit_times(sample_of("linear", seed, blocks=6, at_once=(1,))) for seed in range(DATA_SETS)]
    assert all(fit.model == "linear" for fit in found)
    assert LEAST_COVERED <= covered((fit.fixed_s[0], FIXED_S) for fit in found) <= MOST_COVERED
    assert LEAST_COVERED <= covered((fit.s_per_mib[0], 1 / MIB_PER_S) for fit in found) <= MOST_COVERED


@pytest.mark.slow
def test_intervals_of_a_shared_rate_cover_the_truth(monkeypatch):
    monkeypatch.setattr(fits, "RESAMPLES", 150)
    found = [fit_times(sample_of("shared", seed, blocks=3)) for seed in range(DATA_SETS // 2)]
    shared = [fit for fit in found if fit.model == "shared"]
    assert len(shared) > 0.9 * len(found)
    for truth, intervals in (
        (1 / TOTAL_MIB_PER_S, [fit.total_s_per_mib for fit in shared]),
        (1 / MIB_PER_S, [fit.s_per_mib[0] for fit in shared]),
        (FIXED_S, [fit.fixed_s[0] for fit in shared]),
    ):
        inside = np.mean([interval.low <= truth <= interval.high for interval in intervals])
        assert inside >= LEAST_COVERED


@pytest.mark.parametrize("trials", [3, 5, 6, 10, 20])
def test_intervals_of_a_median_cover_the_truth_however_few_the_trials(trials, few_resamples):
    draw = np.random.default_rng(trials)
    found = []
    for _set in range(DATA_SETS):
        of_trial = draw.normal(5.0, 1.0, trials)
        values = np.repeat(of_trial, 3) + draw.normal(0.0, 0.1, 3 * trials)  # three guests are not three trials
        found.append((median_interval(values, np.repeat(np.arange(trials), 3)), 5.0))
    assert LEAST_COVERED <= covered(found) <= MOST_COVERED


@pytest.mark.parametrize("trials", [3, 10])
def test_intervals_of_a_ratio_cover_the_truth(trials, few_resamples):
    draw = np.random.default_rng(trials)
    found = [
        (ratio_interval(draw.normal(3, 0.3, trials), range(trials), draw.normal(2, 0.2, trials), range(trials)), 1.5)
        for _set in range(DATA_SETS)
    ]
    assert LEAST_COVERED <= covered(found) <= MOST_COVERED


def test_the_trial_is_the_unit_not_the_observation():
    draw = np.random.default_rng(2)
    values, trials = draw.normal(5, 1, 12), np.arange(12)
    once = median_interval(values, trials)
    copied = median_interval(np.tile(values, 9), np.tile(trials, 9))
    assert (copied.low, copied.high) == (once.low, once.high)


def test_too_few_trials_have_no_interval():
    alone = median_interval([1.0, 2.0, 3.0], [7, 7, 7])
    assert alone.value == 2.0
    assert math.isnan(alone.low)
    assert math.isnan(median_interval([1.0, 2.0, 3.0], [1, 2, 3], quantile=0.99).high)
    assert math.isnan(ratio_interval([1.0], [1], [2.0, 2.1], [1, 2]).low)
    assert math.isnan(slope_interval([1, 2, 3], [1, 2, 3], [1, 2, 3]).low)
    assert slope_interval([1, 1, 1], [1, 2, 3], [1, 2, 3]) is None
    assert math.isnan(expanded_interval(1.0, np.array([1.0, 1.0]), 1).low)


def test_few_units_push_percentiles_out():
    resampled = np.linspace(0.0, 1.0, 10_001)
    widths = [expanded_interval(0.5, resampled, units) for units in (4, 10, 1000)]
    assert widths[0].high > widths[1].high > widths[2].high
    assert widths[2].low == pytest.approx(0.025, abs=1e-3)


# parts


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.integers(0, 4)), min_size=1, max_size=30).filter(
        lambda pairs: any(count for _value, count in pairs)
    )
)
@settings(max_examples=80, deadline=None)
def test_a_weighted_median_is_the_median_of_copies(pairs):
    values, counts = (np.array(each, dtype=np.float64) for each in zip(*pairs, strict=True))
    expected = np.median(np.repeat(values, counts.astype(int)))
    assert weighted_median(values, counts[None, :])[0] == expected
    assert weighted_median(values[None, :], counts[None, :])[0] == expected
    assert math.isnan(weighted_median(values, np.zeros((1, values.size)))[0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0.1, 1e3), st.floats(-1e3, 1e3))
@settings(max_examples=60, deadline=None)
def test_deviations_do_not_depend_on_unit_or_origin(values, unit, origin):
    plain = np.array(values)
    spread = float(np.median(np.abs(plain - np.median(plain))))
    found = deviations_of(plain)
    assert np.isfinite(found).all()
    if spread > 1e-3:  # otherwise there are only rounding errors
        assert np.allclose(deviations_of(plain * unit + origin), found, rtol=1e-4, atol=1e-4)
