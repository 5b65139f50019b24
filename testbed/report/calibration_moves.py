"""Transfers of images, live migrations, starts, and reschedulings of jobs of several tasks."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from testbed.calibration.model import Calibration
from testbed.calibration.trials import Trials
from testbed.report.calibration_costs import over_memory
from testbed.report.calibration_data import (
    column,
    count_words,
    groups,
    having,
    interval_words,
    listed,
    middle,
    rows_of,
    usual,
)
from testbed.report.calibration_lines import law_words, lines_of
from testbed.report.calibration_panels import Strip, is_narrow, legend_above, panels, sized, strips, strips_height_in
from testbed.report.style import Absent, Chart, single_axes


def figure_transfer(trials: Trials, calibration: Calibration, reason: str) -> Chart | Absent:
    """Return the time to copy an image to another node, against memory."""
    name, title = "calibration_transfer", "Transfer of an image to another node"
    rows = having(rows_of(trials, "transfer"), "memory_mib", "transfer_s")
    if not rows:
        return Absent(name, title, reason)
    whole = [row for row in rows if row.number("touched_frac") in {None, 1.0}] or rows
    lines = lines_of(calibration, "transfer", {}, whole, "transfer_s")
    levels = sorted({int(row.number("concurrent") or 1) for row in whole})

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "", "seconds")
        over_memory(axes, whole, "transfer_s", "transfer_s", calibration, lines)
        legend_above(figure, axes, 3)

    law = law_words(calibration, "transfer", {}, levels)
    caption = (
        "Wall seconds from the order to the last answer, one dot an image; line: the fit, band: 95 % bootstrap over "
        f"trials; diamonds: outliers, kept. {count_words(whole)}, all memory touched."
        + (f" Transfer = {law}, m in MiB." if law else "")
    )
    alt = f"Transfers: median {np.median(column(whole, 'transfer_s')):.3g} s"
    return Chart(name, title, caption, alt, sized(draw), height_in=3.5)


def figure_start(trials: Trials, calibration: Calibration, reason: str) -> Chart | Absent:
    """Return the time from the order to start a guest to its first progress, against memory."""
    name, title = "calibration_start", "Start: from the order to the first progress"
    rows = having(rows_of(trials, "start"), "memory_mib", "ready_s")
    if not rows:
        return Absent(name, title, reason)
    single = usual(rows, "tasks")
    own = [row for row in rows if row.at("tasks") == single]
    condition = {"tasks": single[0]} if single[0] != "" else {}
    lines = lines_of(calibration, "start", condition, own, "ready_s")
    levels = sorted({int(row.number("concurrent") or 1) for row in own})

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "", "seconds")
        over_memory(axes, own, "ready_s", "start_s", calibration, lines)
        legend_above(figure, axes, 3)

    law = law_words(calibration, "start", condition, levels)
    others = [
        f"{tasks} tasks of a job: {interval_words(middle(some, 'ready_s'), 's')} ({count_words(some)})"
        for (tasks,), some in groups([row for row in rows if row.at("tasks") != single], "tasks").items()
    ]
    caption = (
        "Wall seconds until every task has progressed for the first time, guests of one task, one dot a guest; line: "
        f"the fit, band: 95 % bootstrap over trials; diamonds: outliers, kept. {count_words(own)}."
        + (f" Start = {law}, m in MiB." if law else "")
        + (f" Beside them: {'; '.join(others)}." if others else "")
    )
    alt = f"Starts: median {np.median(column(own, 'ready_s')):.3g} s"
    return Chart(name, title, caption, alt, sized(draw), height_in=3.5)


_LIVE = (
    ("migrate_s", "live_migration", "whole migration"),
    ("downtime_reported_s", "live_downtime", "downtime, as reported"),
    ("felt_s", "live_felt", "felt: progress that was lost"),
)


def figure_live(trials: Trials, calibration: Calibration, reason: str) -> Chart | Absent:
    """Return elapsed time, reported downtime and what the job felt of live migrations, against memory."""
    name, title = "calibration_live", "Live migration against memory"
    rows = having(rows_of(trials, "live-migration"), "memory_mib", "migrate_s")
    if not rows:
        return Absent(name, title, reason)
    whole = [row for row in rows if row.number("touched_frac") in {None, 1.0}] or rows
    levels = sorted({int(row.number("concurrent") or 1) for row in whole})
    drawn = [
        (observed, quantity, label, known, lines_of(calibration, quantity, {}, known, observed))
        for observed, quantity, label in _LIVE
        if (known := having(whole, observed))
    ]

    def draw(figure: Figure) -> None:
        cells = panels(figure, len(drawn), across=3, height_in=2.9)
        for axes, (observed, quantity, label, known, lines) in zip(cells, drawn, strict=True):
            over_memory(axes, known, observed, f"{quantity}_s", calibration, lines)
            axes.set_ylabel("seconds")
            axes.set_title(label, loc="left")
        legend_above(figure, cells[0], 5)

    laws = [
        f"{label}: {law}"
        for _o, quantity, label, *_rest in drawn
        if (law := law_words(calibration, quantity, {}, levels))
    ]
    caption = (
        "Wall seconds, one dot a guest. The whole migration is by the controller's clock; downtime is what the "
        "hypervisor reports; felt is the work that the job did not do meanwhile, by its own count. Lines: the fit, "
        f"bands: 95 % bootstrap over trials; diamonds: outliers, kept. {count_words(whole)}, all memory touched."
        + (f" m in MiB: {'; '.join(laws)}." if laws else "")
    )
    alt = f"Live migrations: median {np.median(column(whole, 'migrate_s')):.3g} s"
    return Chart(name, title, caption, alt, sized(draw), wide=True)


def figure_parallel(trials: Trials, reason: str) -> Chart | Absent:
    """Return what a rescheduling costs a job of several tasks that exchange messages."""
    name, title = "calibration_mpi", "Jobs of several tasks that exchange messages"
    rows = having(rows_of(trials, "mpi-save-restore"), "penalty_s")
    if not rows:
        return Absent(name, title, reason)
    several = len({row.at("memory_mib") for row in rows}) > 1
    named = []
    for (memory_mib, tasks, topology, moved), own in groups(rows, "memory_mib", "tasks", "topology", "moved").items():
        size = f"{memory_mib} MiB, " if several else ""
        named.append((f"{size}{tasks} × {topology}, {'swapped' if moved == 1 else 'stayed'}", own))
    observed = [
        (key, label)
        for key, label in (("penalty_s", "penalty"), ("felt_s", "felt"), ("release_skew_s", "skew of the release"))
        if having(rows, key)
    ]

    def draw(figure: Figure) -> None:
        narrow = is_narrow(figure)
        cells = panels(
            figure, len(observed), across=3, height_in=strips_height_in(len(named)) - 0.35, sharey=not narrow
        )
        for axes, (key, label) in zip(cells, observed, strict=True):
            lines = [
                Strip(words, column(known, key), middle(known, key), 1 if "swapped" in words else 0)
                for words, own in named
                if (known := having(own, key))
            ]
            strips(axes, lines, "seconds")
            axes.set_title(label, loc="left")
        legend_above(figure, cells[0], 3)

    words = listed([(label, middle(own, "penalty_s")) for label, own in named], "s")
    size = "" if several else f"{rows[0].values.get('memory_mib')} MiB a task. "
    caption = (
        f"{size}All tasks are held at one barrier, saved, restored (where the first two swap nodes, after a transfer) "
        "and released together; one dot a job, with the median and its 95 % interval over trials. Felt is progress "
        f"lost by the job's own count. Median penalty, {words}. {count_words(rows)}."
    )
    return Chart(name, title, caption, f"Penalty: {words}", sized(draw), wide=True)
