"""Measurement of a check's figures with fresh guests, and their comparison with the references of this machine.

A regression fails a check only after a second run has confirmed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from testbed.study.checks.figures import Figure, find_figure
from testbed.study.checks.findings import Finding
from testbed.study.checks.interval import MedianInterval, median_interval
from testbed.study.checks.judge import Verdict, judge
from testbed.study.checks.lab import LabUnderTest, NodeUnderTest
from testbed.study.checks.machine import testbed_version
from testbed.study.checks.references import Stored, load_references, update_file
from testbed.study.checks.settings import Settings

Trial = Callable[[], Mapping[str, float]]


def measure_figures(
    names: Sequence[str], trial: Trial, condition: str, lab: LabUnderTest, node: NodeUnderTest, settings: Settings
) -> list[Finding]:
    """Run `settings.fresh_guests` trials, each with fresh guests; return one finding per figure.

    A second run of as many trials follows only if a figure needs it, and counts only for such figures. With
    `settings.update` the first run becomes the references, and no figure is judged. Raises `ValueError` if a trial
    leaves a figure out.
    """
    figures = {name: find_figure(name) for name in names}
    machine = lab.machine(node)
    references = load_references(settings.references)
    stored = {} if settings.update else {name: references.find(machine, name, condition) for name in names}
    bands = {name: None if (found := stored.get(name)) is None else found.reference for name in names}
    runs: dict[str, list[MedianInterval]] = {name: [] for name in names}
    verdicts: dict[str, Verdict | None] = dict.fromkeys(names)
    while open_names := [name for name, verdict in verdicts.items() if verdict is None]:
        for name, run in _run(names, trial, settings.fresh_guests).items():
            if name in open_names:
                runs[name].append(run)
                verdicts[name] = judge(bands[name], runs[name])
    if settings.update:
        for name, figure in figures.items():
            update_file(settings.references, machine, name, _new(figure, runs[name][0], condition))
    return [
        Finding(
            name, figure.unit, node.name, machine, condition, tuple(runs[name]), bands[name],
            verdicts[name] or Verdict.NO_REFERENCE,
            references.why_none(machine, name, condition) if bands[name] is None else "", settings.update,
        )
        for name, figure in figures.items()
    ]  # fmt: skip


def _run(names: Sequence[str], trial: Trial, fresh_guests: int) -> dict[str, MedianInterval]:
    trials = [trial() for _ in range(fresh_guests)]
    for measured in trials:
        if missing := [name for name in names if name not in measured]:
            raise ValueError(f"a trial did not measure {', '.join(missing)}: it has {', '.join(measured) or 'nothing'}")
    return {name: median_interval([measured[name] for measured in trials]) for name in names}


def _new(figure: Figure, run: MedianInterval, condition: str) -> Stored:
    band = figure.reference(run.value)
    return Stored(
        value=band.value, lower_frac=band.lower_frac, upper_frac=band.upper_frac, unit=band.unit, better=band.better,
        slack=band.slack, condition=condition, guests=len(run.values),
        written_utc=datetime.now(UTC).isoformat(timespec="seconds"), testbed=testbed_version(),
    )  # fmt: skip
