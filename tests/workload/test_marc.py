"""The model of MARC's load: it reproduces the paper's counts, its assumptions are parameters, limits are reported."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import fmean, pstdev

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import truncnorm
from support.workload.workload_strategies import deterministic

from testbed.cli.trace import trace
from testbed.errors import UserError
from testbed.scheduling.workload.marc import (
    JOBS_BY_CORES,
    MAX_SEED,
    NODES,
    QUEUES,
    SPAN_WEEKS,
    MarcModel,
    marc_trace,
)
from testbed.scheduling.workload.segments import WEEK_S
from testbed.scheduling.workload.table import parse_table
from testbed.scheduling.workload.trace import load_trace
from testbed.scheduling.workload.truncated import MOST_MEAN_FRAC, TruncatedLogNormal

# Table III: number of jobs, mean run time in minutes; and the limits of Table I in minutes.
PAPER = {
    "parallel": (8922, 489, 72 * 60), "parallel_long": (225, 6426, 240 * 60), "serial": (35103, 678, 72 * 60),
    "serial_long": (1088, 5828, 240 * 60), "serial_low": (652033, 26, 100),
}  # fmt: skip
WEEKS = 8


@cache
def long_trace():
    return marc_trace(7, WEEKS)


@cache
def by_queue():
    return {name: [job for job in long_trace() if job.job_class == name] for name in PAPER}


# --- the distribution of run times

spreads = st.floats(0.1, 10)
shares = st.floats(1e-4, MOST_MEAN_FRAC)


@deterministic
@given(st.floats(0.01, 1e7), shares, spreads)
def test_the_mean_below_the_limit_is_the_one_that_was_asked_for(limit, share, cv):
    found = TruncatedLogNormal.with_mean(share * limit, cv, limit)
    assert found.mean == pytest.approx(share * limit, rel=1e-9)
    assert 0.0 <= found.cv <= cv * (1 + 1e-6)


@deterministic
@given(st.floats(1e-3, 0.85), st.floats(0.2, 5))
def test_the_quantiles_are_those_of_another_implementation(share, cv):
    mine = TruncatedLogNormal.with_mean(share, cv, 1.0)
    probabilities = np.linspace(0.01, 0.99, 9)
    other = truncnorm(-np.inf, -mine.mu / mine.sigma, loc=mine.mu, scale=mine.sigma)
    np.testing.assert_allclose([mine.quantile(each) for each in probabilities], np.exp(other.ppf(probabilities)), 1e-6)


@deterministic
@given(shares, spreads, st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=9))
def test_quantiles_rise_and_never_exceed_the_limit(share, cv, probabilities):
    distribution = TruncatedLogNormal.with_mean(share * 60.0, cv, 60.0)
    values = [distribution.quantile(each) for each in [0.0, *sorted(probabilities)]]
    assert all(0.0 <= a <= b <= 60.0 for a, b in pairwise(values))


@pytest.mark.parametrize("cv", [0.3, 2.0, 6.0])
def test_quantiles_average_to_the_mean(cv):
    found = TruncatedLogNormal.with_mean(26.0, cv, 100.0)
    values = [found.quantile((step + 0.5) / 20_000) for step in range(20_000)]
    assert fmean(values) == pytest.approx(26.0, rel=1e-3)
    assert pstdev(values) / fmean(values) == pytest.approx(found.cv, rel=5e-3)


@pytest.mark.parametrize(
    ("mean", "cv", "limit", "says"),
    [
        (10.0, 0.05, 60.0, r"coefficient of variation 0\.05: expected 0\.1 to 10"),
        (10.0, 11.0, 60.0, "coefficient of variation 11: expected"),
        (10.0, math.nan, 60.0, "coefficient of variation nan: expected"),
        (59.0, 1.0, 60.0, r"mean 59 below the limit 60: expected above 0, at most 0\.9 of it"),
        (0.0, 1.0, 60.0, "mean 0 below the limit 60: expected above 0"),
        (10.0, 1.0, math.inf, "mean 10 below the limit inf: expected"),
    ],
)
def test_a_distribution_that_cannot_be_is_told(mean, cv, limit, says):
    with pytest.raises(UserError, match=says):
        TruncatedLogNormal.with_mean(mean, cv, limit)


# --- counts of the paper


@pytest.mark.parametrize("name", PAPER)
def test_jobs_per_week_are_the_papers(name):
    expected = WEEKS * PAPER[name][0] / SPAN_WEEKS
    # A geometric number of jobs with mean m has the second moment m (2 m - 1).
    a_farm = 1.0 if name.startswith("parallel") else 2 * MarcModel().farm_jobs - 1
    assert abs(len(by_queue()[name]) - expected) < 4 * math.sqrt(expected * a_farm)


@pytest.mark.parametrize("name", PAPER)
def test_mean_run_times_are_the_papers_and_no_job_exceeds_its_limit(name):
    _, mean_min, limit_min = PAPER[name]
    run_min = [job.run_time_s / 60 for job in by_queue()[name]]
    assert abs(fmean(run_min) - mean_min) < 4 * pstdev(run_min) / math.sqrt(len(run_min))
    assert max(run_min) <= limit_min
    assert {job.estimate_s for job in by_queue()[name]} == {limit_min * 60}


def test_parallel_jobs_have_the_cores_of_the_paper_and_serial_ones_one():
    parallel = [job for name in ("parallel", "parallel_long") for job in by_queue()[name]]
    found = Counter(job.tasks for job in parallel)
    assert set(found) <= set(JOBS_BY_CORES)
    for cores, count in JOBS_BY_CORES.items():
        share = count / sum(JOBS_BY_CORES.values())
        assert abs(found[cores] - share * len(parallel)) < 4 * math.sqrt(share * len(parallel)) + 1
    assert {job.tasks for job in long_trace() if job.job_class.startswith("serial")} == {1}
    assert sum(JOBS_BY_CORES.values()) == 9241


def test_the_counts_are_those_of_the_table_with_the_run_times():
    assert {queue.name: (queue.jobs, queue.mean_run_s / 60, queue.limit_s / 60) for queue in QUEUES} == PAPER


def test_four_tasks_fit_a_node():
    assert {(job.cpu_need_frac, job.mem_req_frac) for job in long_trace()} == {(0.25, 0.2)}
    assert NODES * 4 == 340


# --- assumptions


def test_serial_jobs_come_in_farms_and_parallel_ones_alone():
    for name, jobs in by_queue().items():
        farms = Counter(job.submit_time_s for job in jobs)
        mean = len(jobs) / len(farms)
        if name == "serial_low":  # farms that begin in the same second count as one
            assert mean == pytest.approx(100.0, rel=0.1)
        elif name == "parallel":
            assert mean < 1.01
    pairs = Counter(job.submit_time_s for job in marc_trace(7, 8, MarcModel(parallel_farm_jobs=5.0)) if job.tasks > 1)
    assert fmean(pairs.values()) == pytest.approx(5.0, rel=0.15)
    alone = marc_trace(7, 1, MarcModel(rate=0.3, farm_jobs=1.0))
    serial = [job for job in alone if job.job_class == "serial"]
    assert len({job.submit_time_s for job in serial}) > 0.99 * len(serial)


def test_submissions_follow_the_day_and_the_week():
    farms = {(job.submit_time_s, job.job_class) for job in long_trace()}
    hours = np.array([second // 3600 % 168 for second, _ in farms])
    weekend = (hours >= 120).mean()
    assert abs(weekend - 1 / 6) < 4 * math.sqrt(1 / 6 * 5 / 6 / len(farms))  # two days at half the rate of the others
    day = np.bincount(hours.astype(int) % 24, minlength=24)
    assert day[12:18].sum() > 2 * day[0:6].sum()
    flat = MarcModel(daily=0.0, weekend=1.0).hourly_weights()
    np.testing.assert_allclose(flat, 1.0)


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_cycle_changes_no_rate_per_week(daily, weekend):
    weights = MarcModel(daily=daily, weekend=weekend).hourly_weights()
    assert fmean(weights) == pytest.approx(1.0)
    assert min(weights) >= 0


def test_urgent_jobs_are_short_ones_of_the_queue_parallel():
    plain, urgent = (marc_trace(3, 2, MarcModel(rate=0.2, urgent_s=urgent_s)) for urgent_s in (0.0, 3600.0))
    assert [replace(job, urgent=False) for job in urgent] == plain
    assert not any(job.urgent for job in plain)
    for job in urgent:
        assert job.urgent == (job.job_class == "parallel" and job.run_time_s <= 3600)  # speed: seconds of a trace
    assert any(job.urgent for job in urgent)


def test_a_parameter_changes_only_what_it_is_about():
    base, other = marc_trace(5, 1, MarcModel(rate=0.3)), marc_trace(5, 1, MarcModel(rate=0.3, cv=1.0))
    assert [replace(job, run_time_s=1.0) for job in base] == [replace(job, run_time_s=1.0) for job in other]
    small = marc_trace(5, 1, MarcModel(rate=0.3, farm_jobs=10.0))
    parallel = [
        [(job.submit_time_s, job.tasks, job.run_time_s) for job in jobs if job.tasks > 1] for jobs in (base, small)
    ]
    assert parallel[0] == parallel[1]
    assert len(marc_trace(5, 1, MarcModel(rate=0.03))) < 0.4 * len(base)


# --- traces


@settings(deterministic, max_examples=40)
@given(
    st.integers(0, MAX_SEED), st.floats(0.001, 0.02), st.floats(0.1, 10), st.floats(1, 100), st.floats(1, 9),
    st.floats(0, 1), st.floats(0, 1), st.floats(0, 259_200), st.floats(0.001, 0.25),
)  # fmt: skip
def test_any_trace_is_in_order_within_its_weeks_and_the_same_again(
    seed, rate, cv, farm, parallel_farm, daily, weekend, urgent_s, memory
):
    model = MarcModel(rate, cv, farm, parallel_farm, daily, weekend, urgent_s, memory)
    jobs = marc_trace(seed, 2, model)
    assert jobs == marc_trace(seed, 2, model)
    assert [job.job_id for job in jobs] == list(range(1, len(jobs) + 1))
    assert all(a.submit_time_s <= b.submit_time_s for a, b in pairwise(jobs))
    assert all(0 <= job.submit_time_s < 2 * WEEK_S for job in jobs)
    assert all(1 <= job.run_time_s <= job.estimate_s and job.mem_req_frac == memory for job in jobs)
    assert not any(job.urgent and job.tasks == 1 for job in jobs)


def test_seeds_give_traces_of_their_own():
    assert marc_trace(1, 1, MarcModel(rate=0.1)) != marc_trace(2, 1, MarcModel(rate=0.1))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"rate": 0.0}, r"load of MARC: rate = 0: expected 0\.001 to 10"),
        ({"farm_jobs": 0.5}, r"farm_jobs = 0\.5: expected 1 to 10000"),
        ({"parallel_farm_jobs": math.inf}, "parallel_farm_jobs = inf: expected 1 to 10000"),
        ({"daily": 1.1}, r"daily = 1\.1: expected 0 to 1"),
        ({"weekend": -1.0}, "weekend = -1: expected 0 to 1"),
        ({"urgent_s": 1e6}, r"urgent_s = 1e\+06: expected 0 to 259200"),
        ({"mem_req_frac": 0.3}, r"mem_req_frac = 0\.3: expected 0\.001 to 0\.25"),
        ({"rate": math.nan}, "rate = nan: expected"),
        ({"cv": 20.0}, "coefficient of variation 20: expected 0.1 to 10"),
    ],
)
def test_a_parameter_outside_its_range_is_told(model, says):
    with pytest.raises(UserError, match=says):
        MarcModel(**model)


@pytest.mark.parametrize(
    ("seed", "weeks", "says"),
    [
        (-1, 1, "seed -1: expected 0 to 4294967295"),
        (1, 0, "0 weeks: expected 1 to 100"),
        (1, 101, "101 weeks: expected"),
    ],
)
def test_a_seed_or_length_outside_its_range_is_told(seed, weeks, says):
    with pytest.raises(UserError, match=says):
        marc_trace(seed, weeks)


# --- the command


def run(*arguments):
    result = CliRunner().invoke(trace, ["generate", "marc", *map(str, arguments)], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_the_command_prints_or_writes_the_trace(tmp_path):
    arguments = ["--weeks", 1, "--seed", 4, "--rate", 0.01]
    assert parse_table(run(*arguments), "stdout") == marc_trace(4, 1, MarcModel(rate=0.01))
    assert run(*arguments, "-o", tmp_path / "t.csv.gz") == ""
    assert load_trace(tmp_path / "t.csv.gz") == marc_trace(4, 1, MarcModel(rate=0.01))


def test_the_options_are_the_models_parameters():
    options = {
        "--rate": 0.02, "--cv": 1.5, "--farm-jobs": 9.0, "--parallel-farm-jobs": 3.0, "--daily": 0.2, "--weekend": 0.9,
        "--urgent-s": 7200.0, "--memory": 0.125,
    }  # fmt: skip
    made = parse_table(run("--weeks", 1, "--seed", 2, *[word for each in options.items() for word in each]), "stdout")
    assert made == marc_trace(2, 1, MarcModel(*options.values()))
    assert any(job.urgent for job in made)


def test_the_command_tells_bounds_and_has_an_example(tmp_path):
    with pytest.raises(UserError, match=r"load of MARC: rate = 11: expected 0\.001 to 10"):
        run("--weeks", 1, "--seed", 1, "--rate", 11, "-o", tmp_path / "t.csv")
    assert not list(tmp_path.iterdir())
    assert "\n    testbed trace generate marc " in run("--help")
