"""Figures of a comparison: turnarounds live and simulated, errors against the noise band, and sources of error."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from testbed.measure.frames import load_points
from testbed.study.compare.accounting import PARTS
from testbed.study.compare.noise import MEASUREMENTS, noise_frame
from testbed.study.compare.pairs import table
from testbed.study.compare.study import TITLES, Group
from testbed.study.report.page.style import (
    BLUE,
    CYCLE,
    FAINT,
    INK,
    ORANGE,
    VERMILION,
    Absent,
    Chart,
    legend_outside,
    log_scale,
    single_axes,
)

_MOST_ROWS = 40


def dumbbells(group: Group, number: int) -> Chart:
    """Return a dumbbell chart of the turnarounds with the largest errors: live range and mean, and simulated mean."""
    rows = {job.job: row for row, job in enumerate(group.pairs[0].jobs)}
    shown = list(group.sources)[:_MOST_ROWS][::-1]
    order = [rows[job] for job in shown]
    live = table(group.pairs, "live", "turnaround_s")[:, order]
    twins = table(group.pairs, "simulated", "turnaround_s")[:, order].mean(axis=0)
    count = len(group.pairs)

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "turnaround (trace s)", "job")
        places = np.arange(len(shown))
        axes.hlines(places, np.minimum(live.mean(axis=0), twins), np.maximum(live.mean(axis=0), twins),
                    color=INK, linewidth=0.9, zorder=2)  # fmt: skip
        if count > 1:
            axes.hlines(places, live.min(axis=0), live.max(axis=0), color=BLUE, alpha=0.35, linewidth=7.0, zorder=1)
        axes.plot(live.mean(axis=0), places, "o", color=BLUE, markersize=5, zorder=3)
        axes.plot(twins, places, "D", color=ORANGE, markersize=4.5, zorder=3)
        axes.set_yticks(places, [str(job) for job in shown])
        log_scale(axes, "x", float(min(live.min(), twins.min())), float(max(live.max(), twins.max())))
        handles = [
            Line2D([], [], color=BLUE, marker="o", linestyle="", label="live" if count == 1 else "live, mean"),
            Line2D([], [], color=ORANGE, marker="D", linestyle="", label="simulated"),
        ]
        if count > 1:
            handles.append(Line2D([], [], color=BLUE, alpha=0.35, linewidth=7.0, label="range of live runs"))
        figure.legend(handles=handles, loc="outside upper left", ncols=3)

    caption = (
        "Turnaround of each job in trace seconds (logarithmic axis), live and simulated; jobs with the largest "
        f"difference on top; n = {len(shown)} of {len(rows)} jobs, {count} live run{'s' if count > 1 else ''}."
    )
    gaps = np.abs(twins / live.mean(axis=0) - 1)
    alt = f"turnarounds of {len(shown)} jobs, live and simulated: median difference {np.median(gaps):.1%}"
    height_in = 1.4 + 0.2 * len(shown)
    return Chart(f"turnarounds-{number}", "Turnaround, live and simulated", caption, alt, draw, height_in, wide=True)


def scatter(group: Group, number: int) -> Chart:
    """Return a scatter plot of simulated against live turnarounds of all jobs and runs, with the goal as a band."""
    live, twins = (table(group.pairs, world, "turnaround_s") for world in ("live", "simulated"))
    low, high = float(min(live.min(), twins.min())), float(max(live.max(), twins.max()))
    goal = group.judged[0].goal

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "live turnaround (trace s)", "simulated (trace s)")
        line = np.array([low * 0.8, high * 1.25])
        axes.fill_between(line, line * (1 - goal), line * (1 + goal), color=FAINT, label=f"within {goal:.0%}")
        axes.plot(line, line, color=INK, linewidth=0.8, label="equal")
        for place, pair in enumerate(group.pairs):
            axes.scatter(live[place], twins[place], s=16, color=CYCLE[place % len(CYCLE)], alpha=0.8, linewidths=0,
                         label=pair.run.facts.name if len(group.pairs) <= 4 else None, zorder=3)  # fmt: skip
        log_scale(axes, "x", low, high)
        log_scale(axes, "y", low, high)
        legend_outside(figure, 1)

    caption = (
        f"Simulated against live turnaround of each job and run, in trace seconds (logarithmic axes); n = {live.size}. "
        "Above the line the simulated turnaround is longer than the live one."
    )
    alt = f"simulated against live turnaround, {live.size} points from {low:.4g} to {high:.4g} s"
    return Chart(f"scatter-{number}", "Simulated against live", caption, alt, draw, height_in=4.2)


def bands(group: Group, number: int) -> Chart:
    """Return the errors that the verdict uses: of the simulation, and of live runs against each other."""

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "error (%)", "")
        for place, judged in enumerate(reversed(group.judged)):
            if judged.band is not None:
                axes.barh(place, 100 * judged.band.high, height=0.62, color=FAINT, zorder=1)
                axes.plot([100 * value for value in judged.band.values], [place + 0.14] * len(judged.band.values), "o",
                          color=BLUE, markersize=5, zorder=3)  # fmt: skip
            axes.plot([100 * value for value in judged.errors], [place - 0.14] * len(judged.errors), "D",
                      color=ORANGE, markersize=4.5, zorder=3)  # fmt: skip
            axes.plot([100 * judged.goal] * 2, [place - 0.36, place + 0.36], color=VERMILION, linewidth=1.4, zorder=2)
        names = [TITLES[judged.name].replace(" error", "") for judged in reversed(group.judged)]
        axes.set_yticks(range(len(names)), names)
        axes.set_xlim(left=0.0)
        axes.set_ylim(-0.6, len(names) - 0.4)
        handles = [
            Line2D([], [], color=ORANGE, marker="D", linestyle="", label="simulation, error per live run"),
            Line2D([], [], color=VERMILION, label="goal"),
        ]
        if group.judged[0].band is not None:
            handles[1:1] = [
                Line2D([], [], color=BLUE, marker="o", linestyle="", label="other live runs, error per live run"),
                Line2D([], [], color=FAINT, linewidth=7.0, label="noise band"),
            ]
        figure.legend(handles=handles, loc="outside upper left", ncols=1)

    words = "; ".join(f"{TITLES[judged.name]} {judged.mean:.1%}, {judged.verdict}" for judged in group.judged)
    caption = (
        "Median over jobs of the relative error of turnarounds, and relative error of the max stretch, in % per live "
        "run. The prediction is the simulation, or the median of the other live runs (leave one out). The largest "
        f"error of the latter is the edge of the noise band. n = {len(group.pairs)} live runs."
    )
    return Chart(f"band-{number}", "Errors against the noise band", caption, words, draw, height_in=4.2)


def noise(group: Group, number: int) -> Chart | Absent:
    """Return the speed of cores and the foreign load over the time of each run."""
    title, name = "Core speed and foreign load", f"noise-{number}"
    frames = [(pair.run, noise_frame(pair.run, load_points(pair.run.facts.path, MEASUREMENTS))) for pair in group.pairs]
    told = [(run, frame) for run, frame in frames if frame["core_speed"].count() or frame["foreign_cores"].count()]
    if not told:
        return Absent(name, title, "neither core speed nor foreign load was recorded")
    columns = (("core_speed", "core speed (relative)"), ("foreign_cores", "foreign load (cores)"))

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 1, sharex=True)
        for axes, (column, label) in zip(panels, columns, strict=True):
            axes.set_ylabel(label)
            for place, (_run, frame) in enumerate(told):
                for part in frame.partition_by("node", maintain_order=True):
                    axes.plot(part["t_s"], part[column], color=CYCLE[place % len(CYCLE)], linewidth=0.8, alpha=0.8)
        panels[0].axhline(1.0, color=INK, linewidth=0.8)
        panels[-1].set_xlabel("time since the begin of the replay (wall s)")

    speeds = [float(str(frame["core_speed"].median())) for _run, frame in told if frame["core_speed"].count()]
    words = f"median core speed {min(speeds):.2f} to {max(speeds):.2f}" if speeds else "core speed not recorded"
    caption = (
        "Above: speed of each node's cores by its agent's probes, relative to the speed while dedicated rates were "
        "measured. Below: cores of each machine that load outside the lab used. One colour per run; "
        f"n = {len(told)} runs."
    )
    return Chart(name, title, caption, words, draw, height_in=4.2, wide=True)


def sources(group: Group, number: int) -> Chart:
    """Return the parts of each turnaround difference as stacked bars, negative parts to the left of 0."""
    shown = list(group.sources)[:_MOST_ROWS][::-1]
    names = list(PARTS)
    apart = [group.sources[job][0] - group.sources[job][1] for job in shown]
    amounts = np.array([[getattr(each, name) for name in names] for each in apart])

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "live minus simulated (trace s)", "job")
        places = np.arange(len(shown))
        left, right = np.zeros(len(shown)), np.zeros(len(shown))
        colors = (*CYCLE, INK)
        for column, name in enumerate(names):
            values = amounts[:, column]
            start = np.where(values < 0, left, right)
            axes.barh(places, values, left=start, height=0.7, color=colors[column], label=name.removesuffix("_s"))
            left, right = left + np.minimum(values, 0.0), right + np.maximum(values, 0.0)
        axes.axvline(0.0, color=INK, linewidth=0.8)
        axes.set_yticks(places, [str(job) for job in shown])
        legend_outside(figure, len(names))

    told = "; ".join(f"{name.removesuffix('_s')}: {words}" for name, words in PARTS.items())
    caption = (
        f"Parts of the turnaround difference, live minus simulated, in trace seconds, mean over runs; "
        f"n = {len(shown)} jobs. {told}."
    )
    alt = f"parts of the differences of {len(shown)} turnarounds"
    height_in = 1.6 + 0.2 * len(shown)
    return Chart(f"sources-{number}", "Where the error comes from", caption, alt, draw, height_in, wide=True)
