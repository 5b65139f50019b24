"""What saving, restoring and going on costs a guest, against its memory and the guests that do it at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from testbed.calibration.experiment import Value
from testbed.calibration.model import Calibration
from testbed.calibration.trials import Trials
from testbed.report.calibration_data import (
    Row,
    column,
    count_words,
    figure_words,
    groups,
    having,
    listed,
    middle,
    percent,
    rows_of,
    spread,
)
from testbed.report.calibration_lines import Line, is_outlier, law_words, lines_of
from testbed.report.calibration_panels import (
    MARKS,
    Strip,
    dots,
    is_narrow,
    legend_above,
    memory_axis,
    panels,
    ring,
    sized,
    strips,
    strips_height_in,
)
from testbed.report.style import INK, Absent, Chart

_PHASES = (
    ("save", "save_s", "save"),
    ("restore", "restore_s", "restore"),
    ("first_progress", "first_progress_s", "first progress after it"),
    ("penalty", "penalty_s", "penalty: the sum"),
)
_WAYS = ("touched_frac", "storage", "cache", "program")
_MEMORY = "calibration_memory"
_STAR = "calibration_star"


def reschedulings(trials: Trials) -> tuple[list[Row], list[Row]]:
    """Return the reschedulings of the grid of memory and guests at once, and those that differ from it otherwise."""
    rows = having(rows_of(trials, "save-restore"), "memory_mib", "penalty_s")
    ways = groups([row for row in rows if row.number("touched_frac") == 1.0] or rows, *_WAYS)
    grid = max(
        ways,
        key=lambda way: (len(groups(ways[way], "memory_mib", "concurrent")), "warm" in way, "disk" in way),
        default=(),
    )
    return [row for row in rows if row.at(*_WAYS) == grid], [row for row in rows if row.at(*_WAYS) != grid]


def figure_memory(trials: Trials, calibration: Calibration, reason: str) -> Chart | Absent:
    """Return save, restore, first progress and penalty against memory, one series for each number of guests at once."""
    title = "A rescheduling against memory"
    rows, _others = reschedulings(trials)
    if not rows:
        return Absent(_MEMORY, title, reason)
    where = {"storage": rows[0].values.get("storage", "disk"), "cache": rows[0].values.get("cache", "warm")}
    fits = []
    for name, observed, _label in _PHASES:
        under: dict[str, Value] = {"storage": where["storage"]} if name == "save" else dict(where)
        fits.append((under, lines_of(calibration, name, under, rows, observed)))
    levels = sorted({int(row.number("concurrent") or 1) for row in rows})

    def draw(figure: Figure) -> None:
        cells = panels(figure, len(_PHASES), across=2, height_in=2.9)
        for place, (axes, phase, (_under, lines)) in enumerate(zip(cells, _PHASES, fits, strict=True)):
            name, observed, label = phase
            over_memory(axes, having(rows, observed), observed, f"{name}_s", calibration, lines)
            axes.set_ylabel("seconds")
            axes.set_title(label, loc="left")
            if place < len(_PHASES) - 2 and not is_narrow(figure):
                axes.set_xlabel("")
        legend_above(figure, cells[-1], 6)

    laws = [
        f"{name.replace('_', ' ')} = {words}"
        for (name, _observed, _label), (under, _lines) in zip(_PHASES, fits, strict=True)
        if (words := law_words(calibration, name, under, levels))
    ]
    caption = (
        "Wall seconds by the controller's clock, one dot a guest, guests that were saved at once beside each other; "
        f"images on {where['storage']}, page cache {where['cache']}, all memory touched. Lines: the fit of the "
        "calibration; bands: 95 % bootstrap over whole trials, pointwise. Diamonds: outliers, further than 3.5 robust "
        f"standard deviations from the fit; they were kept, and triangles count those beyond the axis. "
        f"{count_words(rows)}. m is memory in MiB. " + (". ".join(laws) + "." if laws else "")
    )
    worst = max(rows, key=lambda row: row.number("penalty_s") or 0.0)
    alt = (
        f"Penalty of a rescheduling: median {np.median(column(rows, 'penalty_s')):.3g} s, "
        f"at most {worst.number('penalty_s'):.3g} s at {worst.number('memory_mib'):g} MiB"
    )
    return Chart(_MEMORY, title, caption.strip(), alt, sized(draw), wide=True)


def over_memory(
    axes: Axes, rows: Sequence[Row], observed: str, quantity: str, calibration: Calibration, lines: Sequence[Line]
) -> None:
    """Draw every observation over memory, a mark a number of guests at once, with fits, bands and outliers."""
    by_level = groups(rows, "concurrent")
    sizes = np.unique(column(rows, "memory_mib"))
    step_mib = float(np.diff(sizes).min()) if sizes.size > 1 else float(sizes[0])
    width_mib = min(0.5 * step_mib, 0.05 * float(sizes[-1])) / max(len(by_level), 1)
    mark_of: dict[int, int] = {}
    for mark, ((level,), own) in enumerate(by_level.items()):
        mark_of[int(float(level or 1))] = mark
        shift_mib = (mark - 0.5 * (len(by_level) - 1)) * width_mib * 1.3
        x = column(own, "memory_mib") + shift_mib + 0.8 * width_mib * spread(len(own))
        y = column(own, observed)
        dots(axes, x, y, mark, label=f"{level or 1} at once", total=len(rows))
        far = np.array([is_outlier(calibration, quantity, row, row.number(observed) or 0.0) for row in own], dtype=bool)
        if far.any():
            named = axes.get_legend_handles_labels()[1]
            ring(axes, x[far], y[far], label="" if "outlier, kept" in named else "outlier, kept")
    top_s = _close_up(axes, rows, observed, quantity, calibration, lines)
    for line in lines:
        mark = mark_of.get(line.level, 0)
        color = "0.45" if not line.level else MARKS[mark % len(MARKS)][0]
        axes.plot(line.memory_mib, line.time_s, color=color, linewidth=1.5, zorder=4, linestyle=_DASHES[mark % 4])
        if np.isfinite(line.low_s).all() and np.isfinite(line.high_s).all():
            axes.fill_between(line.memory_mib, line.low_s, line.high_s, color=color, alpha=0.2, linewidth=0, zorder=2)
    memory_axis(axes, float(sizes[-1]))
    axes.set_ylim(min(0.0, float(column(rows, observed).min()) * 1.05), top_s)


def _close_up(
    axes: Axes, rows: Sequence[Row], observed: str, quantity: str, calibration: Calibration, lines: Sequence[Line]
) -> float:
    """Return where the axis of seconds ends, so that few wild outliers do not hide the rest; tell those beyond it."""
    wild = [row for row in rows if is_outlier(calibration, quantity, row, row.number(observed) or 0.0)]
    values = column(rows, observed)
    tame = column([row for row in rows if row not in wild], observed)
    most_s = max([float(tame.max()), *(float(line.time_s.max()) for line in lines)]) if tame.size else values.max()
    if values.max() <= _WILD * most_s:
        return 1.07 * float(values.max())
    top_s = 1.25 * most_s
    for value_s in np.sort(values).tolist():  # words above what is within, nothing just beyond
        top_s = max(top_s, 1.14 * value_s) if value_s <= 1.12 * top_s else top_s
    for (memory_mib,), own in groups(
        [row for row in wild if (row.number(observed) or 0.0) > top_s], "memory_mib"
    ).items():
        beyond = np.sort(column(own, observed))
        words = ("" if beyond.size == 1 else f"{beyond.size}, to ") + figure_words(float(beyond[-1]))
        x = float(memory_mib)
        axes.plot([x], [0.975 * top_s], marker="^", color=INK, markersize=6, linestyle="none", zorder=6)
        right = x > 0.75 * float(column(rows, "memory_mib").max())
        axes.annotate(
            f"{words} s", (x, 0.975 * top_s), xytext=(-6 if right else 6, 0), textcoords="offset points", va="center",
            ha="right" if right else "left", fontsize=9,
        )  # fmt: skip
    return top_s


_WILD = 1.5
_DASHES = ("-", (0, (5, 1.5)), (0, (2, 1)), "-.")


def figure_star(trials: Trials, reason: str) -> Chart | Absent:
    """Return what a rescheduling costs if one thing is otherwise: memory touched, storage, cache."""
    title = "One thing otherwise: touched memory, storage, cache"
    grid, others = reschedulings(trials)
    if not others:
        return Absent(_STAR, title, reason or "Nothing but memory and guests at once was varied.")
    places = set(groups(others, "memory_mib", "concurrent"))
    kinds = groups([row for row in grid if row.at("memory_mib", "concurrent") in places], "memory_mib", "concurrent")
    usual_way = grid[0].at(*_WAYS) if grid else ()
    several = len(places) > 1
    named: list[tuple[str, int, list[Row]]] = []
    for place in sorted(places, key=str):
        sort_of = f"{place[0]} MiB: " if several else ""
        if place in kinds:
            named.append((f"{sort_of}usual", 0, kinds[place]))
        here = [row for row in others if row.at("memory_mib", "concurrent") == place]
        for way, own in groups(here, *_WAYS).items():
            named.append((sort_of + _otherwise(way, usual_way), 1, own))

    def draw(figure: Figure) -> None:
        height_in = strips_height_in(len(named)) - 0.35
        cells = panels(figure, 3, across=3, height_in=height_in, sharey=not is_narrow(figure))
        for axes, (name, label) in zip(cells, (("save_s", "save"), ("restore_s", "restore"), ("penalty_s", "penalty")),
                                       strict=True):  # fmt: skip
            lines = [
                Strip(label, column(known, name), middle(known, name), mark)
                for label, mark, own in named
                if (known := having(own, name))
            ]
            strips(axes, lines, "seconds")
            axes.set_title(label, loc="left")
        legend_above(figure, cells[0], 3)

    place = next(iter(sorted(places, key=str)))
    fixed = "" if several else f"A guest of {place[0]} MiB, {place[1]} at once. "
    words = listed([(label, middle(own, "penalty_s")) for label, _mark, own in named], "s")
    caption = (
        f"{fixed}Wall seconds by the controller's clock, one dot a guest, with the median and its 95 % interval over "
        f"trials; usual is what all of the figure above have. The penalty is save + restore + first progress. "
        f"Median penalty: {words}. {count_words([row for _label, _mark, own in named for row in own])}."
    )
    return Chart(_STAR, title, caption, f"Penalty: {words}", sized(draw), wide=True)


def _otherwise(way: Sequence[Value], grid: Sequence[Value]) -> str:
    """Say in what a condition differs from the grid."""
    texts = {
        "touched_frac": "{} touched", "storage": "images in {}", "cache": "{} cache",
        "program": "program {}",
    }  # fmt: skip
    found = []
    for name, value, was in zip(_WAYS, way, grid or ("",) * len(_WAYS), strict=True):
        if value not in {was, ""}:
            found.append(texts[name].format(percent(value) if name == "touched_frac" else value))
    return ", ".join(found) or "otherwise"
