"""The report page of a calibration: one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

from testbed.study.calibration.model import Calibration
from testbed.study.calibration.registry import find_experiments
from testbed.study.calibration.trials import Trials
from testbed.study.report.calibration.reschedulings import figure_assumed, figure_clocks
from testbed.study.report.calibration.results import Shown, shown_by
from testbed.study.report.calibration.tables import (
    assumptions_table,
    experiments_table,
    failed_table,
    nodes_table,
    outliers_table,
    provenance,
    quantities_table,
)
from testbed.study.report.page.document import Page, Section, write_page
from testbed.study.report.page.style import Absent, Chart

_MOST_REMARKS = 12
_TAKEN = frozenset(  # ids of the page that do not belong to figures of a single experiment
    [
        "calibration_penalty", "calibration_clocks", "verdicts", "assumed", "clocks", "tables", "provenance",
        "assumptions", "quantities", "outliers", "failed", "experiments", "nodes",
    ]
)  # fmt: skip


def calibration_page(trials: Trials, calibration: Calibration) -> Page:
    """Return the page of a calibration; a figure without measurements is replaced by a line with the reason."""
    verdicts = {name: one.verdict for name, one in calibration.assumptions.items()}
    measured = [verdict for verdict in verdicts.values() if verdict != "not measured"]
    counts = [
        f"{measured.count(kind)} {kind}" for kind in ("held", "within", "broken", "undecided") if kind in measured
    ]
    shown = shown_by(trials, calibration, find_experiments(), _TAKEN)
    outliers, failed, nodes = outliers_table(calibration), failed_table(trials), nodes_table(trials)
    lab = str(trials.begin.get("lab", "a lab"))
    broken = len(calibration.failed)
    return Page(
        title=f"Calibration of {lab}",
        kicker="Calibration, quick" if trials.begin.get("quick") else "Calibration",
        heading=f"The cost of rescheduling on {lab}",
        policy="",
        verdict=(
            f"{len(measured)} of {len(verdicts)} assumptions were measured"
            f"{': ' if counts else ''}{', '.join(counts)}."
        ),
        well=not broken,
        lead=(
            f"{calibration.about.trials} trials with fresh guests in random order. Dots in figures are observations; "
            f"intervals are 95 % intervals over trials.{' ' + _failures(broken) if broken else ''}"
        ),
        source=f"{calibration.about.trials_file or 'trials.jsonl'} and its fits",
        headlines=tuple(shown.headlines),
        remarks=tuple(_remarks(trials, shown)),
        sections=(
            Section(
                "verdicts", "Assumptions", tables=(assumptions_table(calibration),),
            ),
            Section(
                "assumed", "Measured penalties and the assumed 300 s",
                (figure_assumed(shown.penalties, shown.of_reschedulings),),
            ),
            *(
                Section(f"experiments-{number}", title, tuple(sorted(figures, key=_wide_first)))
                for number, (title, figures) in enumerate(shown.sections.items(), 1)
            ),
            Section("clocks", "Comparison of clocks", (figure_clocks(shown.clocks, shown.of_clocks),)),
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
    """Write the page of a calibration to `path` atomically. Raises `UserError`.

    The page is self-contained and needs no network. Equal input gives equal bytes.
    """
    write_page(calibration_page(trials, calibration), path)


def _wide_first(figure: Chart | Absent) -> bool:
    """Return the sort key of a figure: wide charts first, so that half charts come in pairs on one row."""
    return not (isinstance(figure, Chart) and figure.wide)


def _failures(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'} failed and have no observations."


def _remarks(trials: Trials, shown: Shown) -> list[str]:
    """Return remarks for the top of the page: quick calibration, failed trials, notes."""
    found = []
    if trials.begin.get("quick"):
        found.append("A quick calibration: few conditions and few trials; intervals are wide or missing.")
    failed = [outcome for outcome in trials.outcomes if outcome.error is not None]
    found += [f"Trial {one.trial} ({one.experiment}) failed: {one.error}" for one in failed]
    found += shown.notes
    hidden = len(found) - _MOST_REMARKS
    return found if hidden <= 0 else [*found[:_MOST_REMARKS], f"… and {hidden} more below."]
