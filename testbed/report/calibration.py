"""A calibration drawn: one page of HTML that needs nothing else, and single figures for documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbed.calibration.model import Calibration
from testbed.calibration.trials import Trials
from testbed.report.calibration_assumptions import assumptions_table, figure_assumed, headlines
from testbed.report.calibration_caps import figure_cap_accuracy, figure_cap_response
from testbed.report.calibration_clocks import figure_clocks
from testbed.report.calibration_control import figure_bus, figure_decision, figure_enactment
from testbed.report.calibration_costs import figure_memory, figure_star
from testbed.report.calibration_moves import figure_live, figure_parallel, figure_start, figure_transfer
from testbed.report.calibration_rates import figure_isolation, figure_proportionality, figure_virtualisation
from testbed.report.calibration_tables import (
    experiments_table,
    failed_table,
    nodes_table,
    outliers_table,
    provenance,
    quantities_table,
)
from testbed.report.page import Page, Section, write_page
from testbed.report.style import write_chart

_MOST_REMARKS = 12


def calibration_page(trials: Trials, calibration: Calibration) -> Page:
    """Return the page of a calibration; figures of what was not measured are a line that says why."""
    verdicts = {name: one.verdict for name, one in calibration.assumptions.items()}
    measured = [verdict for verdict in verdicts.values() if verdict != "not measured"]
    counts = [
        f"{measured.count(kind)} {kind}" for kind in ("held", "within", "broken", "undecided") if kind in measured
    ]
    outliers, failed, nodes = outliers_table(calibration), failed_table(trials), nodes_table(trials)
    lab = str(trials.begin.get("lab", "a lab"))
    broken = len(calibration.failed)
    return Page(
        title=f"Calibration of {lab}",
        kicker="Calibration, quick" if trials.begin.get("quick") else "Calibration",
        heading=f"What rescheduling costs on {lab}",
        policy="",
        verdict=(
            f"{len(measured)} of {len(verdicts)} assumptions of the papers were measured"
            f"{': ' if counts else ''}{', '.join(counts)}."
        ),
        well=not broken,
        lead=(
            f"{calibration.about.trials} trials with fresh guests, in random order; every trial is a dot, every "
            f"interval is of 95 % over trials.{' ' + _failures(broken) if broken else ''}"
        ),
        source=f"{calibration.about.trials_file or 'trials.jsonl'} and its fits",
        headlines=headlines(trials, calibration),
        remarks=tuple(_remarks(trials)),
        sections=(
            Section(
                "verdicts", "The papers' assumptions", tables=(assumptions_table(calibration),),
            ),
            Section("assumed", "300 s against reality", (figure_assumed(trials, _why(trials, "save-restore")),)),
            Section(
                "costs", "Preempt and restore",
                (
                    figure_memory(trials, calibration, _why(trials, "save-restore")),
                    figure_star(trials, _unless_done(trials, "save-restore")),
                    figure_parallel(trials, _why(trials, "mpi-save-restore")),
                ),
            ),
            Section(
                "moves", "Move and start",
                (
                    figure_live(trials, calibration, _why(trials, "live-migration")),
                    figure_transfer(trials, calibration, _why(trials, "transfer")),
                    figure_start(trials, calibration, _why(trials, "start")),
                ),
            ),
            Section("clocks", "Reported and felt", (figure_clocks(trials, _why(trials, "save-restore")),)),
            Section(
                "caps", "CPU caps",
                (
                    figure_cap_accuracy(trials, _why(trials, "cap-accuracy")),
                    figure_cap_response(trials, _why(trials, "cap-response")),
                ),
            ),
            Section(
                "progress", "Progress",
                (
                    figure_proportionality(trials, _why(trials, "proportionality")),
                    figure_isolation(trials, _why(trials, "isolation")),
                    figure_virtualisation(trials, _why(trials, "virtualisation")),
                ),
            ),
            Section(
                "control", "Control path",
                (
                    figure_enactment(trials, _why(trials, "enactment")), figure_bus(trials, _why(trials, "bus")),
                    figure_decision(trials, _why(trials, "decision")),
                ),
            ),
            Section(
                "tables", "Tables",
                tables=tuple(one for one in (quantities_table(calibration), outliers, failed) if one),
            ),
            Section(
                "provenance", "Provenance", facts=(provenance(trials, calibration),),
                tables=tuple(one for one in (experiments_table(trials), nodes) if one),
            ),
        ),
    )  # fmt: skip


def write_calibration_report(trials: Trials, calibration: Calibration, path: Path) -> None:
    """Write the page of a calibration to `path` in one piece, or raise `UserError`.

    The page is whole in itself: it asks no network for anything. Equal input gives equal bytes.
    """
    write_page(calibration_page(trials, calibration), path)


def write_calibration_figures(
    trials: Trials, calibration: Calibration, folder: Path, forms: Sequence[str] = ("svg", "png")
) -> list[Path]:
    """Write every figure that there is as FOLDER/calibration_….FORM on white, and return the paths.

    `forms` are of "svg", "pdf" and "png". Raises `UserError` where a file cannot be written.
    """
    charts = calibration_page(trials, calibration).charts
    return [write_chart(chart, folder, form) for chart in charts for form in forms]


def _why(trials: Trials, experiment: str) -> str:
    """Say in a line why there is nothing to draw of an experiment."""
    skipped = trials.begin.get("skipped")
    if isinstance(skipped, dict) and experiment in skipped:
        return f"Not measured: {experiment} was left out on this lab: {skipped[experiment]}."
    failed = [outcome for outcome in trials.outcomes if outcome.experiment == experiment and outcome.error is not None]
    if failed and not trials.of(experiment):
        return f"Not measured: all {len(failed)} trials of {experiment} failed, the last with: {failed[-1].error}."
    if trials.of(experiment):
        return f"Not measured: the trials of {experiment} do not hold what this figure needs."
    return f"Not measured: no trial of {experiment} was done."


def _unless_done(trials: Trials, experiment: str) -> str:
    """As `_why`, and empty if trials of the experiment were done."""
    return "" if trials.of(experiment) else _why(trials, experiment)


def _failures(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'} failed and gave no observation."


def _remarks(trials: Trials) -> list[str]:
    """Return what a reader should know before the numbers."""
    found = []
    if trials.begin.get("quick"):
        found.append("A quick calibration: few conditions and few trials; intervals are wide or missing.")
    failed = [outcome for outcome in trials.outcomes if outcome.error is not None]
    found += [f"Trial {one.trial} ({one.experiment}) failed: {one.error}" for one in failed]
    hidden = len(found) - _MOST_REMARKS
    return found if hidden <= 0 else [*found[:_MOST_REMARKS], f"… and {hidden} more below."]
