"""Figures of a report: their values, their texts, and identical bytes each time."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from scipy import stats
from support.entries import event

from testbed.errors import UserError
from testbed.measure import robust
from testbed.measure.robust import robust_fit, t_interval, t_quantile_975
from testbed.run.history import History
from testbed.scheduling.metrics import normalised_underutilisation
from testbed.study.report.page.style import Absent, Chart, inline_svg, write_chart
from testbed.study.report.run.facts import JobRow, RunFacts
from testbed.study.report.run.figures_barrier import figure_supersteps, superstep_noise
from testbed.study.report.run.figures_caps import figures_caps
from testbed.study.report.run.figures_penalty import figure_penalty
from testbed.study.report.run.figures_stretch import figure_stretch
from testbed.study.report.run.figures_traffic import figure_traffic, mean_rates
from testbed.study.report.run.figures_utilisation import figure_utilisation, utilisation
from testbed.study.report.run.quantiles import latencies
from testbed.study.report.run.schedule import RESTORE, RUN, SAVE, JobFacts, Schedule, Span


def job(number, submit_s, end_s, *, tasks=1, need=1.0, run_s=10.0, stretch=1.0, state="done"):
    return JobRow(
        number, submit_s, tasks, need, 0.1, run_s, submit_s, end_s, stretch, run_s, 0, 0, 0.0, 0, 0, state
    )  # fmt: skip


def facts(jobs=(), reschedulings=(), **summary):
    return RunFacts(
        path=Path("run"),
        manifest={
            "policy": "EASY",
            "clocks": {"anchor_unix_ns": 0, "replay_begin_s": 0.0, "time_scale": 2.0},
            "nodes": {"a": {}, "b": {}},
            "scenario": {"programs": {"serial": "eatcpu", "parallel": "patterns"}},
        },
        summary={"complete": True, "metrics": {}, **summary},
        jobs=tuple(jobs),
        reschedulings=tuple(reschedulings),
        remarks=(),
        history=History(last_s=100.0),
    )


def schedule(spans, end_s=50.0):
    return Schedule("measured", spans, {1: JobFacts(1)}, 2, ("a", "b"), 2.0, end_s)


def penalty(number, gigabytes, seconds, reason="preemption"):
    amounts = {"saved_bytes": int(gigabytes * 1e9), "penalty_s": seconds}
    return event({"kind": "rescheduling", "job": number, "reason": reason, "mechanism": "save-restore", **amounts})


# robust fits


@pytest.fixture(scope="module", autouse=True)
def few_resamples():
    """A fifth of the resamples, to save time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(robust, "RESAMPLES", 200)
        yield


@given(
    st.floats(0.1, 50), st.floats(0.1, 20),
    st.lists(st.integers(1, 4000), min_size=12, max_size=60, unique=True),
)  # fmt: skip
@settings(max_examples=10, deadline=None)
def test_a_line_is_found_although_one_in_six_points_is_far_off(intercept, slope, thousandths):
    x = np.array(sorted(thousandths)) / 100  # outliers at one end only would tilt the line
    y = intercept + slope * x
    y[::6] += 1000.0
    fit = robust_fit(x, y, np.arange(x.size))
    if x.size < 24 and fit.slope is None:  # so few points may not support a slope
        return
    assert fit.slope.low <= slope * (1 + 1e-9)
    assert fit.slope.high >= slope * (1 - 1e-9)
    assert fit.slope.value == pytest.approx(slope, rel=1e-6)  # two of three pairs are exact


def test_an_exact_line_has_its_numbers_and_no_width():
    x = np.arange(1.0, 11.0)
    fit = robust_fit(x, 0.5 + 2 * x, range(10))
    assert (fit.intercept.value, fit.slope.value) == pytest.approx((0.5, 2.0))
    assert (fit.slope.low, fit.slope.high) == pytest.approx((2.0, 2.0))


def test_a_slope_that_the_data_do_not_support_is_not_claimed():
    """A 95 % interval misses the truth about once in twenty; scipy's interval of the same estimator does, too."""
    constants = 0
    for seed in range(10):
        draw = np.random.default_rng(seed)
        fit = robust_fit(draw.uniform(0, 1, 40), draw.normal(5, 1, 40), range(40))
        if fit.slope is None:
            constants += 1
            assert 4.0 < fit.intercept.low < fit.intercept.value < fit.intercept.high < 6.0
    assert constants >= 8


def test_few_distinct_points_are_not_fitted():
    assert robust_fit([1, 2, 3, 4, 4, 4], [1, 2, 3, 4, 4, 4], range(6)) is None
    assert robust_fit([1, 2, 3, 4, 5], [1, 2, 3, 4, 6], range(5)) is not None


def test_whole_units_are_resampled_so_that_copies_do_not_narrow_the_interval():
    draw = np.random.default_rng(3)
    x = draw.uniform(0, 10, 20)
    y = 1 + x + draw.normal(0, 1, 20)
    once = robust_fit(x, y, range(20))
    copied = robust_fit(np.tile(x, 8), np.tile(y, 8), np.tile(range(20), 8))
    width = once.slope.high - once.slope.low
    assert copied.slope.high - copied.slope.low == pytest.approx(width, rel=0.35)


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 15, 30, 31, 40, 75, 1000])
def test_quantiles_of_t_are_scipys(freedom):
    assert t_quantile_975(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=1e-4)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
@settings(max_examples=40, deadline=None)
def test_the_t_interval_is_scipys(values):
    mine = t_interval(values)
    spread = np.std(values, ddof=1) / math.sqrt(len(values))
    if spread > 1e-6:
        low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=spread)
        assert (mine.low, mine.high) == pytest.approx((low, high), rel=1e-4, abs=1e-4 * spread)


# figures and their values


def test_utilisation_is_demand_and_what_progressed():
    """Two jobs on two nodes, trace seconds twice the wall's: the second is saved and restored in between."""
    jobs = [job(1, 0.0, 40.0, tasks=2, need=0.5, run_s=40.0), job(2, 20.0, 100.0, tasks=2, run_s=30.0)]
    spans = [
        Span(1, 0, 0, 0.0, 20.0, RUN, 1.0), Span(1, 1, 1, 0.0, 20.0, RUN, 1.0),
        Span(2, 0, 0, 10.0, 20.0, RUN, 0.5), Span(2, 1, 1, 10.0, 20.0, RUN, 0.5),
        Span(2, 0, 0, 20.0, 30.0, SAVE, 0.0), Span(2, 0, 0, 30.0, 40.0, RESTORE, 1.0),
        Span(2, 0, 0, 40.0, 50.0, RUN, 1.0), Span(2, 1, 1, 40.0, 50.0, RUN, 1.0),
    ]  # fmt: skip
    found = utilisation(facts(jobs), schedule(spans))
    assert found.times_s.tolist() == [0, 20, 40, 80, 100]
    assert found.demand_cpu.tolist() == [1, 3, 2, 2]
    assert found.useful_cpu.tolist() == [1, 2, 0, 2]
    estimated = utilisation(facts(jobs), schedule([replace(each, cpu_need_frac=0.25) for each in spans]))
    assert estimated.useful_cpu.tolist() == [0.5, 0.75, 0, 0.5], "yields are relative to the estimated need"
    lost = normalised_underutilisation(found.times_s, found.demand_cpu, found.useful_cpu, 2, 100.0)
    assert lost == pytest.approx(0.8)  # 40 trace s without any use of two nodes, over 40 + 60 node s of work
    chart = figure_utilisation(facts(jobs), schedule(spans))
    assert "0.800 by the yields" in chart.caption
    assert "n = 2 jobs" in chart.caption
    unfinished = facts([jobs[0], replace(jobs[1], state="running", end_time_s=None)], complete=False)
    assert "is not stated" in figure_utilisation(unfinished, schedule(spans)).caption


@given(
    st.lists(st.tuples(st.floats(0, 90), st.floats(0.01, 30), st.integers(0, 10**9)), min_size=1, max_size=30)
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_bandwidth_neither_loses_nor_makes_bytes(operations):
    begins, lengths, amounts = np.array(operations, dtype=float).T
    edges = np.linspace(0.0, 130.0, 77)
    rates = mean_rates(begins, begins + lengths, amounts, edges)
    assert (rates >= 0).all()
    assert rates @ np.diff(edges) == pytest.approx(amounts.sum(), rel=1e-6, abs=1)


def actions(rows):
    return pl.DataFrame(
        rows, orient="row",
        schema={"time": pl.Datetime("ns", "UTC"), "verb": pl.String, "elapsed_s": pl.Float64, "bytes": pl.Int64,
                "ok": pl.Boolean},
    )  # fmt: skip


def test_bandwidth_says_what_was_moved_by_what():
    table = actions([(20 * 10**9, "save", 10.0, 5 * 10**9, True), (50 * 10**9, "restore", 5.0, 10**9, True)])
    chart = figure_traffic(facts(), table)
    assert "1 saves of 5 GB, 1 restores of 1 GB" in chart.caption
    assert "highest 0.5 GB/s" in chart.alt
    assert isinstance(figure_traffic(facts(), actions([])), Absent)
    assert isinstance(figure_traffic(facts(), None), Absent)


def test_penalties_are_fitted_by_memory_moved():
    records = [penalty(number, number / 10, 1.0 + number / 10 / 0.25) for number in range(1, 13)]
    chart = figure_penalty(facts(reschedulings=records))
    assert "a = 1.00 s (1.00 to 1.00), rate = 0.250 GB/s (0.250 to 0.250)" in chart.caption
    assert "n = 12 of 12 jobs" in chart.caption
    few = figure_penalty(facts(reschedulings=records[:3]))
    assert "fewer than 5 distinct points" in few.caption
    assert "n = 3." in few.caption
    assert isinstance(figure_penalty(facts()), Absent)
    figure = Figure()
    few.draw(figure)
    assert not figure.axes[0].lines, "a line was drawn through points that support none"


def test_the_stretch_of_jobs_and_the_bound_are_drawn():
    jobs = [job(number, 0.0, 10.0, stretch=float(number)) for number in (1, 2, 4, 8)]
    run = facts(jobs, metrics={"bound": {"value": 3.0, "unit": "1"}})
    figure = Figure()
    chart = figure_stretch([run])
    chart.draw(figure)
    ecdf, _last, bound = figure.axes[0].lines
    assert ecdf.get_xdata()[1:].tolist() == [1, 2, 4, 8]
    assert ecdf.get_ydata().tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert list(bound.get_xdata()) == [3.0, 3.0]
    assert "n = 4 jobs" in chart.caption
    assert "maximum 8" in chart.alt
    assert isinstance(figure_stretch([facts([job(1, 0.0, None, stretch=None)])]), Absent)


def test_caps_are_told_apart_by_program():
    jobs = [job(1, 0.0, 10.0), job(2, 0.0, 10.0, tasks=2)]
    table = pl.DataFrame({
        "job": [1] * 6 + [2], "requested_cores": [0.5] * 6 + [0.8], "achieved_cores": [0.49] * 6 + [0.7],
        "window_s": [10.0] * 7,
    })  # fmt: skip
    scatter, histogram = figures_caps(facts(jobs), table)
    assert "n = 7 windows (6 of eatcpu, 1 of patterns)" in scatter.caption
    assert "eatcpu: mean |error| 1.00, 5 to 95 % -1.00 to -1.00 pp over 6 windows" in histogram.caption
    assert "patterns: mean |error| 10.00" in histogram.caption
    marked = table.with_columns(drifted=pl.Series([None, False, *[True] * 4, False]))  # None: an older run
    assert "n = 3 windows (2 of eatcpu, 1 of patterns)" in figures_caps(facts(jobs), marked)[0].caption
    assert [type(one) for one in figures_caps(facts(), None)] == [Absent]
    assert [type(one) for one in figures_caps(facts(), table.head(0))] == [Absent]


def test_superstep_noise_is_by_job_and_sorted():
    table = pl.DataFrame({
        "job": [7, 7, 7, 3], "steps": [10, 10, 1, 5], "mean_s": [1.0, 2.0, 1.0, 1.0], "max_s": [2.0, 8.0, 1.0, 1.5],
        "compute_s": [3.0, 3.0, 1.0, 4.0], "comm_s": [1.0, 1.0, 0.0, 1.0],
    })  # fmt: skip
    noise = superstep_noise(table)
    assert noise["job"].to_list() == [3, 7]
    assert noise["median"].to_list() == [1.5, 3.0]
    assert noise["most"].to_list() == [1.5, 4.0]
    assert noise["communication_frac"].to_list() == [0.2, 0.25]
    assert "n = 3 points of 2 jobs, 25 supersteps" in figure_supersteps(table).caption
    assert isinstance(figure_supersteps(table.head(0)), Absent)
    assert isinstance(figure_supersteps(table.filter(pl.col("steps") == 1)), Absent)


def test_latencies_are_quantiles_of_what_succeeded():
    bus = pl.DataFrame({"round_trip_s": [0.001 * number for number in range(1, 101)]})
    verbs = actions([(0, "save", 1.0, 1, True), (0, "save", 9.0, 1, False)])
    trip, save = latencies({"bus": bus, "action": verbs, "decision": pl.DataFrame({"decide_s": [None]})})
    assert (trip.count, trip.p50_s, trip.max_s) == (100, pytest.approx(0.0505), 0.1)
    assert (save.what, save.count, save.max_s) == ("operation: save", 1, 1.0)


# drawing


def hostile(figure):
    axes = figure.add_subplot()
    axes.plot([0, 1], [1, 0], label="<script>alert(1)</script> $x_1$ & 1.23456")
    axes.fill_between([0, 1], [0, 1], hatch="//")
    axes.legend()


CHART = Chart("one", "One", "caption", "what <it> shows", hostile)


def test_a_drawing_in_a_page_is_whole_escaped_and_the_same_again():
    text = inline_svg(CHART, 5.0, "wide")
    root = ET.fromstring(text.replace("currentColor", "#000000"))  # noqa: S314  # our own file
    assert text == inline_svg(CHART, 5.0, "wide")
    words = [element.text for element in root.iter("text")]
    assert "<script>alert(1)</script> $x_1$ & 1.23456" in words, "neither markup, nor mathematics, nor rounded"
    assert root.attrib["aria-label"] == "what <it> shows"
    assert "<script" not in text
    assert "DejaVu" not in text
    ids = set(re.findall(r'\sid="([^"]*)"', text))
    assert ids
    assert all(name.startswith("one-wide-") for name in ids)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]*)', text))
    assert used
    assert used <= ids


@pytest.mark.parametrize("form", ["svg", "pdf", "png"])
def test_files_of_figures_are_the_same_bytes_each_time(tmp_path, form):
    first = write_chart(CHART, tmp_path / "a", form).read_bytes()
    assert first == write_chart(CHART, tmp_path / "b", form).read_bytes()
    assert first.startswith({"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[form])


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/one\.svg: cannot write"):
        write_chart(CHART, tmp_path / "file", "svg")
