"""The control path: commands to nodes, round trips of the bus, and how long policies take to decide."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from testbed.calibration.trials import Trials
from testbed.report.calibration_data import (
    column,
    count_words,
    groups,
    having,
    interval_words,
    listed,
    middle,
    rows_of,
    spread,
)
from testbed.report.calibration_panels import (
    MARKS,
    Strip,
    dots,
    interval_mark,
    legend_above,
    log_axis,
    scaled,
    seconds_scale,
    sized,
    strips,
    strips_height_in,
)
from testbed.report.style import BLUE, INK, Absent, Chart, log_ticks, short, single_axes


def figure_enactment(trials: Trials, reason: str) -> Chart | Absent:
    """Return round trips of commands to guests, by command and number of guests."""
    name, title = "calibration_enactment", "Enactment of a command"
    rows = having(rows_of(trials, "enactment"), "round_trip_s")
    if not rows:
        return Absent(name, title, reason)
    factor, unit = seconds_scale(column(rows, "round_trip_s"))
    kinds = groups(rows, "command", "guests")
    commands = sorted({str(command) for command, _ in kinds})
    named = [
        (f"{command}, {guests} guest{'' if guests == 1 else 's'}", commands.index(str(command)), own)
        for (command, guests), own in kinds.items()
    ]

    def draw(figure: Figure) -> None:
        figure.set_figheight(strips_height_in(len(named)))
        axes = figure.add_subplot()
        lines = [
            Strip(label, factor * column(own, "round_trip_s"), scaled(middle(own, "round_trip_s"), factor), mark)
            for label, mark, own in named
        ]
        strips(axes, lines, f"round trip ({unit})", log=True)
        legend_above(figure, axes, 1)

    words = listed([(label, scaled(middle(own, "round_trip_s"), factor)) for label, _mark, own in named], unit)
    caption = (
        "From the command to the last answer, through the bus, one dot a command, with the median and its 95 % "
        f"interval over trials; logarithmic. {words}. {count_words(rows)}."
    )
    return Chart(name, title, caption, words, sized(draw), height_in=3.4)


def figure_bus(trials: Trials, reason: str) -> Chart | Absent:
    """Return the empirical distribution of round trips through the bus."""
    name, title = "calibration_bus", "Round trip through the bus"
    rows = having(rows_of(trials, "bus"), "round_trip_s")
    if not rows:
        return Absent(name, title, reason)
    factor, unit = seconds_scale(column(rows, "round_trip_s"))
    values = factor * column(rows, "round_trip_s")
    tail = [(share, float(np.quantile(values, share))) for share in (0.5, 0.95, 0.99)]

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, f"round trip ({unit})", "share of round trips")
        axes.ecdf(values, color=BLUE, linewidth=1.6, label="all round trips")
        for place, (share, at) in enumerate(tail):
            axes.plot(
                [at], [share], MARKS[place + 1][1], color=MARKS[place + 1][0], markersize=7, zorder=4,
                label=f"{100 * share:g} %: {at:.3g} {unit}",
            )  # fmt: skip
        if values.min() > 0:
            low, high = 0.9 * float(values.min()), 1.1 * float(values.max())
            axes.set_xscale("log")
            log_ticks(axes.xaxis, low, high)
            axes.set_xlim(low, high)
        axes.set_ylim(0.0, 1.03)
        legend_above(figure, axes, 2)

    found = scaled(middle(rows, "round_trip_s"), factor)
    caption = (
        "Share of commands that do nothing whose answer came within x, logarithmic; median "
        f"{interval_words(found, unit)}, 99 % within {tail[-1][1]:.3g} {unit}, slowest {values.max():.3g} {unit}. "
        f"{count_words(rows)}."
    )
    return Chart(name, title, caption, f"Round trips: median {found.value:.3g} {unit}", sized(draw), height_in=3.4)


def figure_decision(trials: Trials, reason: str) -> Chart | Absent:
    """Return how long policies take to decide, against the number of jobs."""
    name, title = "calibration_decision", "Time to decide"
    rows = having(rows_of(trials, "decision"), "decide_s", "jobs")
    if not rows:
        return Absent(name, title, reason)
    factor, unit = seconds_scale(column(rows, "decide_s"))
    policies = groups(rows, "policy")
    sizes = groups(rows, "nodes", "jobs")

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "jobs in the system", f"time to decide ({unit})")
        for mark, ((policy,), own) in enumerate(policies.items()):
            shift = 1.0 + 0.07 * (mark - 0.5 * (len(policies) - 1))
            x = column(own, "jobs") * shift * (1.0 + 0.05 * spread(len(own)))
            dots(axes, x, factor * column(own, "decide_s"), mark, label=short(str(policy), 40), total=len(rows))
            points = [
                (float(jobs) * shift, scaled(middle(same, "decide_s"), factor))
                for (jobs,), same in groups(own, "jobs").items()
            ]
            axes.plot(
                [at for at, _ in points], [found.value for _, found in points], linewidth=1.1, zorder=2,
                color=MARKS[mark % len(MARKS)][0],
            )  # fmt: skip
            for at, found in points:
                interval_mark(axes, at, found.value, found, upright=True)
        log_axis(axes, [factor * column(rows, "decide_s")], upright=True)
        log_axis(axes, [column(rows, "jobs")], upright=False)
        axes.tick_params(colors=INK)
        legend_above(figure, axes, 2)

    slowest = max(rows, key=lambda row: row.number("decide_s") or 0.0)
    caption = (
        "Wall time of one call of the policy, one dot a call, lines through medians, bars their 95 % intervals over "
        f"trials; both axes logarithmic. Slowest: {slowest.values.get('policy')} with "
        f"{slowest.values.get('jobs')} jobs, {factor * (slowest.number('decide_s') or 0.0):.3g} {unit}. "
        f"Jobs on nodes: {', '.join(f'{jobs} on {nodes}' for nodes, jobs in sizes)}. {count_words(rows)}."
    )
    alt = f"Time to decide: median {factor * float(np.median(column(rows, 'decide_s'))):.3g} {unit}"
    return Chart(name, title, caption, alt, sized(draw), height_in=3.4)
