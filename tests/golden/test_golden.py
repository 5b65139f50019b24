"""Golden figures of simulations, bounds, calibration and report: code changes that change results fail here."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import golden_traces as traces
from support.golden.golden_schedules import BATCH_POLICIES, POLICIES, WEEK_POLICIES, bounds, every_policy, schedules
from support.golden.golden_tables import QUICK_TRIALS, TRIALS, fitted, fitted_model, report_text

from testbed.scheduling.simulation.overheads_parser import parse_overheads

PINNED = Path(__file__).with_name("pinned")
MODEL = PINNED / "calibration.toml"

# numpy sums these over all jobs, in an order that the library may choose; all other numbers come from the kernels' own
# loops or from single operations, which give the same bits everywhere
SUMMED = {"mean_stretch", "underutilization", "preemption_gb_per_s", "migration_gb_per_s", "penalty_s"}


def sums(name):
    return 1e-12 if name in SUMMED else 0.0


def fits(_name):
    """Return the tolerance of fits: LAPACK computes least squares, and the file has nine digits."""
    return 1e-8


def unrounded(_name):
    """Return the tolerance of fits with all their digits: logarithms may differ in the last one between processors."""
    return 1e-12


def figures(trace, policies):
    return {
        "trace": traces.trace_figures(trace),
        "bounds": bounds(trace),
        "schedules": schedules(trace, policies),
    }


@pytest.mark.parametrize(("name", "make"), [("lublin", traces.lublin), ("quickstart", traces.quickstart)])
def test_a_synthetic_trace_its_bounds_and_its_schedules(name, make, check_pinned):
    check_pinned(PINNED / f"{name}.json", figures(make(), POLICIES), sums)


def test_two_days_of_a_real_log(real_log, check_pinned):
    check_pinned(PINNED / "kth.json", figures(traces.kth(real_log), POLICIES), sums)


def test_batch_schedules_of_thousands_of_jobs(real_log, check_pinned):
    """Only a long trace has a backfilled job that would end exactly when a reservation begins."""
    check_pinned(PINNED / "kth-weeks.json", figures(traces.kth_weeks(real_log), BATCH_POLICIES), sums)


def test_four_weeks_of_a_real_log(real_log, check_pinned):
    found = {name: figures(trace, WEEK_POLICIES) for name, trace in traces.hpc2n_weeks(real_log).items()}
    check_pinned(PINNED / "hpc2n-weeks.json", found, sums)


def test_every_policy_on_a_small_trace(check_pinned):
    check_pinned(PINNED / "every-policy.json", every_policy(traces.lublin()), sums)


def test_the_fits_of_recorded_trials(check_pinned):
    """The model file holds every quantity with its interval, the verdicts, and the tables for simulations."""
    check_pinned(MODEL, fitted_model(), fits)


@pytest.mark.parametrize(("name", "trials"), [("fitted", TRIALS), ("fitted-quick", QUICK_TRIALS)])
def test_all_that_is_printed_of_recorded_trials(name, trials, check_pinned):
    """All experiments except live migration, with every digit, and the tables for human readers."""
    check_pinned(PINNED / f"{name}.json", fitted(trials), unrounded)


def test_a_schedule_under_the_model_file(check_pinned):
    found = schedules(traces.quickstart(), POLICIES, parse_overheads(f"{MODEL}#extrapolate"))
    check_pinned(PINNED / "quickstart-calibrated.json", found, sums)


def test_the_tables_of_a_report(tmp_path, check_pinned):
    check_pinned(PINNED / "report.txt", report_text(tmp_path))
