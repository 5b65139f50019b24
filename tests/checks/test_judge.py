"""The judgement whether a figure is a regression: the interval of a median, tolerance bands, one run or two."""

from __future__ import annotations

from itertools import product
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.study.checks.figures import KNOWN, find_figure
from testbed.study.checks.interval import MedianInterval, median_interval
from testbed.study.checks.judge import Better, Reference, Side, Verdict, judge

VALUES = st.lists(st.floats(0.001, 1e6), min_size=5, max_size=30)
REFERENCES = st.builds(
    Reference, st.floats(0.001, 1e6), st.floats(0, 1), st.floats(0, 2), st.just("s"), st.sampled_from(Better),
    st.floats(0, 10),
)  # fmt: skip
SAVES = Reference(100.0, 0.2, 0.2, "MiB/s", Better.HIGHER)


def run(value: float, spread: float = 1.0) -> MedianInterval:
    return median_interval([value - spread, value - spread, value, value + spread, value + spread])


def test_the_interval_is_that_of_all_resamples() -> None:
    values = (3.0, 1.0, 4.0, 1.5, 9.0)
    medians = sorted(median(drawn) for drawn in product(values, repeat=5))
    found = median_interval(values)
    assert found.value == 3.0
    assert found.low == medians[int(0.025 * len(medians))]
    assert found.high == medians[int(0.975 * len(medians))]


@given(VALUES)
def test_the_interval_holds_the_median_and_does_not_depend_on_the_order(values: list[float]) -> None:
    found = median_interval(values)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)
    backwards = median_interval(values[::-1])
    assert (backwards.low, backwards.value, backwards.high) == (found.low, found.value, found.high)


def test_more_guests_give_a_narrower_interval() -> None:
    few, many = median_interval(range(5)), median_interval([value / 10 for value in range(50)])
    assert (few.low, few.high) == (0, 4)
    assert many.high - many.low < 0.5 * (few.high - few.low)


@pytest.mark.parametrize("values", [[1.0] * 4, [1.0, 2.0, 3.0, 4.0, float("nan")], [1.0, 2.0, 3.0, 4.0, float("inf")]])
def test_too_little_or_no_number_is_no_evidence(values: list[float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        median_interval(values)


@pytest.mark.parametrize(
    ("medians", "spread", "verdict"),
    [
        ([95.0], 1.0, Verdict.HELD),
        ([50.0], 1.0, None),
        ([50.0, 50.0], 1.0, Verdict.REGRESSED),
        ([50.0, 95.0], 1.0, Verdict.UNCONFIRMED),
        ([50.0, 150.0], 1.0, Verdict.UNCONFIRMED),
        ([78.0], 5.0, Verdict.UNCONFIRMED),
        ([150.0], 1.0, None),
        ([150.0, 150.0], 1.0, Verdict.IMPROVED),
        ([150.0, 100.0], 1.0, Verdict.HELD),
        ([122.0], 5.0, Verdict.HELD),
    ],
)
def test_verdicts(medians: list[float], spread: float, verdict: Verdict | None) -> None:
    runs = [run(value, spread) for value in medians]
    assert judge(SAVES, runs) is verdict
    slower = Reference(100.0, 0.2, 0.2, "s", Better.LOWER)
    mirrored = [run(200.0 - value, spread) for value in medians]
    assert judge(slower, mirrored) is verdict


@given(REFERENCES, VALUES, VALUES)
def test_a_regression_is_two_runs_wholly_worse_and_nothing_else_fails(
    reference: Reference, first: list[float], second: list[float]
) -> None:
    runs = [median_interval(first), median_interval(second)]
    verdict = judge(reference, runs[:1])
    if verdict is None:
        verdict = judge(reference, runs)
        assert verdict is not None
    else:
        assert verdict is not Verdict.REGRESSED
        with pytest.raises(ValueError, match="decided already"):
            judge(reference, runs)
    if reference.better is Better.HIGHER:
        wholly = all(found.high < reference.low for found in runs)
    else:
        wholly = all(found.low > reference.high for found in runs)
    assert (verdict is Verdict.REGRESSED) == wholly


@given(REFERENCES, VALUES)
def test_each_run_is_on_one_side(reference: Reference, values: list[float]) -> None:
    found = median_interval(values)
    side = reference.side_of(found)
    assert (side is Side.WITHIN) == (reference.low <= found.value <= reference.high)
    if side in {Side.WORSE, Side.BETTER}:
        assert found.high < reference.low or found.low > reference.high


def test_without_a_reference_nothing_is_judged() -> None:
    assert judge(None, []) is None
    assert judge(None, [run(1.0, 0.1)]) is Verdict.NO_REFERENCE


def test_slack_keeps_a_figure_near_zero_from_failing() -> None:
    exact = KNOWN["cap_error_points"].reference(0.0)
    assert judge(exact, [run(1.0, 0.1)]) is Verdict.HELD
    assert judge(exact, [run(5.0, 0.1)] * 2) is Verdict.REGRESSED


def test_a_figure_of_a_checks_author_is_known_by_its_unit() -> None:
    assert find_figure("load_mib_per_s").unit == "MiB/s"
    assert find_figure("load_mib_per_s").better is Better.HIGHER
    assert find_figure("boot_s").better is Better.LOWER
    with pytest.raises(ValueError, match="expected one of save_mib_per_s"):
        find_figure("speed")
