"""Progress: against the yield, beside neighbours, and inside a guest against outside one."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from testbed.calibration.experiment import Value
from testbed.calibration.trials import Trials
from testbed.measure.robust import Interval
from testbed.report.calibration_data import (
    Row,
    column,
    count_words,
    groups,
    having,
    interval_words,
    listed,
    middle,
    percent,
    rows_of,
    spread,
)
from testbed.report.calibration_panels import (
    MARKS,
    Strip,
    dots,
    interval_mark,
    legend_above,
    panels,
    sized,
    strips,
    strips_height_in,
)
from testbed.report.style import INK, Absent, Chart

_SHAPE = ("kind", "tasks", "topology", "message_bytes", "iteration_s")


def figure_proportionality(trials: Trials, reason: str) -> Chart | Absent:
    """Return the relative rate of progress against the yield, and how far it is from the yield."""
    name, title = "calibration_progress", "Progress against yield"
    known = having(rows_of(trials, "proportionality"), "yield_frac", "relative_rate")
    if not known:
        return Absent(name, title, reason)
    rows = [
        Row(row.trial, {**row.values, "off": 100.0 * (row.number("relative_rate") or 0.0) - 100.0 * _yield(row)})
        for row in known
    ]
    kinds = {
        label: own
        for shape, own in sorted(groups(rows, *_SHAPE).items(), key=lambda item: (item[0][0] != "serial", str(item[0])))
        if (label := _shape_words(shape, rows))
    }

    def draw(figure: Figure) -> None:
        cells = panels(figure, 2, across=2, height_in=3.6)
        cells[0].plot([0, 1], [0, 1], color=INK, linewidth=0.9, linestyle=(0, (4, 2)), label="progress = yield")
        cells[1].axhline(0.0, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
        for mark, (label, own) in enumerate(kinds.items()):
            shift = (mark - 0.5 * (len(kinds) - 1)) * 0.012
            x = column(own, "yield_frac") + shift + 0.008 * spread(len(own))
            for axes, value in zip(cells, ("relative_rate", "off"), strict=True):
                dots(axes, x, column(own, value), mark, label=label, total=len(rows), size=16)
                levels = [(float(level), middle(same, value)) for (level,), same in groups(own, "yield_frac").items()]
                axes.plot(
                    [level + shift for level, _ in levels], [found.value for _, found in levels], linewidth=1.1,
                    color=MARKS[mark % len(MARKS)][0], zorder=2, alpha=0.8,
                )  # fmt: skip
                for level, found in levels if value == "off" else ():
                    interval_mark(axes, level + shift, found.value, found, upright=True)
        for axes in cells:
            axes.set_xlim(0, 1.06)
            axes.set_xlabel("yield")
        cells[0].set_ylim(bottom=0.0)
        cells[0].set_ylabel("rate of progress / dedicated rate")
        cells[1].set_ylabel("rate − yield (points of the dedicated rate)")
        legend_above(figure, cells[0], 6)

    said = []
    for label, own in kinds.items():
        worst = max(
            (middle(same, "off") for same in groups(own, "yield_frac").values()), key=lambda one: abs(one.value)
        )
        said.append(f"{label}: {interval_words(worst, 'points')}")
    caption = (
        "Work units per second of a job under a yield, relative to the same guests at yield 1, one dot a look; in "
        "the second panel less the yield, in percentage points; strokes are medians with their 95 % intervals over "
        f"trials. The papers assume that progress is the yield [RR 2.2]. Farthest median: {'; '.join(said)}. "
        f"{count_words(rows)}."
    )
    return Chart(name, title, caption, f"Farthest from progress = yield: {'; '.join(said)}", sized(draw), wide=True)


def figure_isolation(trials: Trials, reason: str) -> Chart | Absent:
    """Return the rate of a capped guest beside busy neighbours, relative to its rate alone."""
    name, title = "calibration_isolation", "Isolation: beside busy neighbours"
    rows = having(rows_of(trials, "isolation"), "relative_rate")
    if not rows:
        return Absent(name, title, reason)
    caps = {row.at("cap_frac") for row in rows}
    named = [
        (
            (f"cap {percent(cap)}, " if len(caps) > 1 else "") + f"{others} neighbour{'' if others == 1 else 's'}",
            sorted(caps, key=str).index((cap,)),
            own,
        )
        for (cap, others), own in groups(rows, "cap_frac", "neighbours").items()
    ]

    def draw(figure: Figure) -> None:
        figure.set_figheight(strips_height_in(len(named)))
        axes = figure.add_subplot()
        lines = [Strip(label, 100 * column(own, "relative_rate"), _percent(own), mark) for label, mark, own in named]
        strips(axes, lines, "rate (% of the rate alone)")
        axes.axvline(100.0, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
        _close_up(figure, [line.values for line in lines])
        legend_above(figure, axes, 1)

    words = listed([(label, _percent(own)) for label, _mark, own in named], "%")
    caption = (
        "Rate of progress of a guest under a cap while neighbours on its node use all that they may, relative to the "
        "same guest under the same cap alone, one dot a trial, with the median and its 95 % interval over trials. "
        f"{words}. {count_words(rows)}."
    )
    return Chart(name, title, caption, words, sized(draw), height_in=3.4)


_WHERE = (("native", "native", 0), ("guest", "guest", 1), ("capped-guest", "capped", 2))


def figure_virtualisation(trials: Trials, reason: str) -> Chart | Absent:
    """Return rates of programs natively, in guests and in capped guests, relative to native [DPS Figure 3]."""
    name, title = "calibration_virtualisation", "Virtualisation: native, guest, capped guest"
    rows = having(rows_of(trials, "virtualisation"), "units_per_s")
    if not rows:
        return Absent(name, title, reason)
    named: list[tuple[str, int, list[Row]]] = []
    against = []
    for (program, ranks, iteration_s), own in groups(rows, "program", "ranks", "iteration_s").items():
        called = f"{ranks} {program}, {1000.0 * float(iteration_s):g} ms," if ranks != 1 else str(program)
        base = next((some for where, *_ in _WHERE if (some := [r for r in own if r.at("where") == (where,)])), own)
        unit = float(np.median(_uncapped(base)))
        against.append(f"{called}: 100 % is {unit:,.4g} work units/s, {base[0].values.get('where')}")
        for where, label, mark in _WHERE:
            some = [row for row in own if row.at("where") == (where,)]
            for (cap,), same in groups(some, "cap_frac").items():
                words = f"{label} {percent(cap)}" if where == "capped-guest" else label
                relative = 100.0 * _uncapped(same) / unit
                kept = [Row(row.trial, {"relative": value}) for row, value in zip(same, relative.tolist(), strict=True)]
                named.append((f"{called} {words}", mark, kept))

    def draw(figure: Figure) -> None:
        figure.set_figheight(strips_height_in(len(named)))
        axes = figure.add_subplot()
        lines = [Strip(label, column(own, "relative"), middle(own, "relative"), mark) for label, mark, own in named]
        strips(axes, lines, "rate / cap (% of native)")
        axes.axvline(100.0, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
        _close_up(figure, [line.values for line in lines])
        legend_above(figure, axes, 1)

    words = listed([(label, middle(own, "relative")) for label, _mark, own in named], "%")
    caption = (
        "Work units per wall second of the same program outside and inside a guest, that of capped guests divided by "
        "their cap, relative to the median outside; the experiment of [DPS] Figure 3. One dot a trial, with the median "
        f"and its 95 % interval over trials. {words}. {'; '.join(against)}. {count_words(rows)}."
    )
    return Chart(name, title, caption, words, sized(draw), height_in=3.4)


def _yield(row: Row) -> float:
    return row.number("yield_frac") or 0.0


def _percent(rows: list[Row]) -> Interval:
    found = middle(rows, "relative_rate")
    return Interval(100 * found.value, 100 * found.low, 100 * found.high)


def _uncapped(rows: list[Row]) -> np.typing.NDArray[np.float64]:
    """Return work units a second (n,), over the cap where there is one."""
    capped = [row.number("cap_frac") or 1.0 if row.at("where") == ("capped-guest",) else 1.0 for row in rows]
    return np.asarray(column(rows, "units_per_s") / np.array(capped))


def _close_up(figure: Figure, values: list[np.typing.NDArray[np.float64]]) -> None:
    """Show percents around 100 closely: an axis from 0 would hide what differs; the caption's numbers are exact."""
    known = np.concatenate(values)
    low, high = min(float(known.min()), 100.0), max(float(known.max()), 100.0)
    room = max(0.08 * (high - low), 0.5)
    figure.axes[0].set_xlim(max(low - room, 0.0), high + room)


def _shape_words(shape: tuple[Value, ...], rows: list[Row]) -> str:
    """Name a kind of job by what distinguishes it from the others."""
    kind, tasks, topology, message_bytes, iteration_s = shape
    if kind == "serial":
        return "serial"
    parallel = [row for row in rows if row.values.get("kind") != "serial"]
    words = f"{tasks} × {topology}"
    if len({row.at("message_bytes") for row in parallel}) > 1 and isinstance(message_bytes, (int, float)):
        words += f", {message_bytes / 1024:g} KiB"
    if len({row.at("iteration_s") for row in parallel}) > 1 and isinstance(iteration_s, (int, float)):
        words += f" each {1e3 * iteration_s:g} ms"
    return words
