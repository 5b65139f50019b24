"""Figures of the flow of shares between tasks and between nodes, in total and over time [DPS]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from testbed.study.report.page.style import (
    BLUE,
    CYCLE,
    DASHES,
    INK,
    ORANGE,
    Chart,
    legend_outside,
    short,
    single_axes,
)  # fmt: skip
from testbed.study.report.run.schedule import Schedule, ShareMove
from testbed.study.report.run.share_flows import Flows, flows_of_job, flows_of_nodes

_MOST_JOBS = 4
_MOST_LINES = 8
_MOST_NUMBERS = 8  # most members for which cells have numbers
_LONGEST_NAME = 40
_SUMS = "Sums of all transfers in cores: a share that moves twice counts twice."


def figures_flows(schedules: Sequence[Schedule]) -> list[Chart]:
    """Return charts of the flows between all nodes, and of the first jobs whose shares moved in any schedule."""
    jobs = sorted({move.job for schedule in schedules for move in schedule.share_moves})
    charts = []
    for number, schedule in enumerate(schedules):
        if not schedule.share_moves:
            continue
        whose = f", {short(schedule.name, _LONGEST_NAME)}" if len(schedules) > 1 else ""
        end = f"_{number}" if number else ""
        if len(jobs) > 1:
            flows = flows_of_nodes(schedule)
            charts.append(_chart(f"flows{end}", f"Shares that moved between nodes{whose}", "node", flows))
        for job in jobs[:_MOST_JOBS]:
            moves = [move for move in schedule.share_moves if move.job == job]
            if not moves:
                continue
            flows = flows_of_job(schedule, job)
            charts.append(_chart(f"flows_{job}{end}", f"Shares that moved in job {job}{whose}", "task · node", flows))
            charts.append(_over_time(f"flows_time_{job}{end}", f"Shares of job {job} over time{whose}", moves))
    return charts


def _chart(name: str, title: str, members: str, flows: Flows) -> Chart:
    words = "; ".join(
        f"{flows.names[giver]} to {flows.names[receiver]}: {flows.cores[giver, receiver]:.3f}"
        for giver, receiver in flows.pairs[:6]
    )
    alt = f"{title}, in cores — {words}"
    count = len(flows.names)
    if flows.by_bank_only:
        caption = (
            f"Shares that each {members.partition(' ')[0]} gave to the bank, and that the bank granted to it. {_SUMS} "
            f"Total: {flows.cores[:, -1].sum():.3f} cores given, {flows.cores[-1].sum():.3f} cores granted."
        )
        height_in = 1.3 + 0.28 * count
        return Chart(name, title, caption, alt, lambda figure: _draw_bank(figure, flows, members), height_in)
    caption = f"Rows give, columns take. {_SUMS} Total: {flows.cores.sum():.3f} cores; n = {len(flows.pairs)} pairs."
    height_in = 1.5 + 0.3 * max(count, 5)
    return Chart(name, title, caption, alt, lambda figure: _draw_matrix(figure, flows, members), height_in)


def _draw_bank(figure: Figure, flows: Flows, members: str) -> None:
    """Draw shares given to the bank as bars to the left, and shares granted by it as bars to the right."""
    axes = single_axes(figure, "given to the bank  ←  cores  →  granted by the bank", members)
    names = flows.names[:-1]
    given, taken = flows.cores[:-1, -1], flows.cores[-1, :-1]
    rows = np.arange(len(names))
    axes.barh(rows, -given, height=0.7, color=BLUE, label="given")
    axes.barh(rows, taken, height=0.7, color=ORANGE, hatch="///", edgecolor="white", linewidth=0, label="granted")
    axes.axvline(0.0, color=INK, linewidth=0.8)
    for row, (out, back) in enumerate(zip(given, taken, strict=True)):
        for value, side, align in ((out, -1, "right"), (back, 1, "left")):
            if value > 0:
                axes.annotate(
                    f"{value:.3f}", (side * value, row), (side * 3, 0), textcoords="offset points", ha=align,
                    va="center", fontsize=8, color=INK,
                )  # fmt: skip
    most = max(float(given.max()), float(taken.max())) * 1.3
    axes.set_xlim(-most, most)
    axes.xaxis.set_major_formatter(lambda value, _place: f"{abs(value):g}")
    axes.set_yticks(rows, names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    legend_outside(figure, 2)


def _draw_matrix(figure: Figure, flows: Flows, members: str) -> None:
    """Draw a matrix of givers by receivers, coloured by the moved shares."""
    axes = single_axes(figure, f"receiver ({members})", f"giver ({members})")
    count = len(flows.names)
    norm = Normalize(0.0, float(flows.cores.max()))
    shown = np.ma.masked_equal(flows.cores, 0.0)
    colors = colormaps["viridis_r"]
    mesh = axes.pcolormesh(shown, cmap=colors, norm=norm, edgecolors="none")
    few = count <= _MOST_NUMBERS  # names of more members would overlap unless they are upright
    axes.set_xticks(
        np.arange(count) + 0.5, flows.names, rotation=35 if few else 90, ha="right" if few else "center"
    )  # fmt: skip
    axes.set_yticks(np.arange(count) + 0.5, flows.names)
    axes.set_xticks(np.arange(count + 1), minor=True)
    axes.set_yticks(np.arange(count + 1), minor=True)
    axes.grid(visible=False)
    axes.grid(visible=True, which="minor")
    axes.tick_params(which="minor", length=0)
    axes.set_axisbelow(False)
    axes.invert_yaxis()
    if few:
        _write_numbers(axes, flows, norm)
    figure.colorbar(mesh, ax=axes, label="cores", fraction=0.05, pad=0.02)


def _write_numbers(axes: Axes, flows: Flows, norm: Normalize) -> None:
    for giver, receiver in flows.pairs:
        cores = float(flows.cores[giver, receiver])
        color = "white" if norm(cores) > 0.45 else "black"
        axes.text(receiver + 0.5, giver + 0.5, f"{cores:.3f}", ha="center", va="center", fontsize=8, color=color)


def _over_time(name: str, title: str, moves: Sequence[ShareMove]) -> Chart:
    """Return a chart of the cumulative sums of a job's greatest flows over time."""
    pairs: dict[tuple[int | None, int | None], float] = {}
    for move in moves:
        pair = move.giver, move.receiver
        pairs[pair] = pairs.get(pair, 0.0) + move.cores
    greatest = sorted(pairs, key=lambda pair: -pairs[pair])[:_MOST_LINES]
    last_s = max(move.t_s for move in moves)
    first_s = min(move.t_s for move in moves)

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "wall time since the replay began (s)", "moved so far (cores)")
        for number, pair in enumerate(greatest):
            own = [move for move in moves if (move.giver, move.receiver) == pair]
            t_s = [first_s, *(move.t_s for move in own), last_s]
            total = np.cumsum([move.cores for move in own])
            axes.step(
                t_s, [0.0, *total, total[-1]], where="post", color=CYCLE[number % len(CYCLE)],
                linestyle=DASHES[number // len(CYCLE) % len(DASHES)], label=_pair_name(pair),
            )  # fmt: skip
        axes.set_ylim(bottom=0.0)
        legend_outside(figure, 3)

    more = f" The {_MOST_LINES} greatest of {len(pairs)} flows." if len(pairs) > _MOST_LINES else ""
    caption = (
        f"Cumulative sums of moved shares by giver and receiver, in cores; n = {len(moves)} reported transfers.{more}"
    )
    words = "; ".join(f"{_pair_name(pair)}: {pairs[pair]:.3f}" for pair in greatest[:6])
    return Chart(name, title, caption, f"{title}, sums in cores — {words}", draw)


def _pair_name(pair: tuple[int | None, int | None]) -> str:
    giver, receiver = ("bank" if member is None else f"task {member}" for member in pair)
    return f"{giver} → {receiver}"
