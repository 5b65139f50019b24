"""The figure of the active slot of each node over time under XGE: one band per node; lent and taken nodes hatched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from testbed.scheduling.policies.xge_slots import CHANGING, IDLE, LENT, PARALLEL, SERIAL, SLOTS, TAKEN
from testbed.study.report.page.style import BLUE, FAINT, INK, NARROW_IN, ORANGE, Chart, short
from testbed.study.report.run.gantt import MOST_NODES, box, frame_nodes, time_axes
from testbed.study.report.run.slots import Slots

_MOST_TOGETHER = 6
_LONGEST_NODE, _LONGEST_NAME = 18, 60
_ROW_IN, _MOST_ROWS_IN = 0.36, 6.0
_HIGH = 0.72  # of a row
_STYLES: Final[dict[str, dict[str, Any]]] = {
    SERIAL: {"facecolor": BLUE},
    LENT: {"facecolor": BLUE, "hatch": "////"},
    PARALLEL: {"facecolor": ORANGE},
    TAKEN: {"facecolor": ORANGE, "hatch": "\\\\\\\\"},
    CHANGING: {"facecolor": INK},
    IDLE: {"facecolor": FAINT},
}
_NAMES: Final = {
    SERIAL: "serial",
    LENT: "lent: serial jobs in the parallel partition",
    PARALLEL: "parallel",
    TAKEN: "taken: parallel jobs in the serial partition",
    CHANGING: "changing: tasks are started, saved or restored, and none runs",
    IDLE: "idle",
}


def figures_slots(found: Sequence[Slots]) -> list[Chart]:
    """Return charts of the slots of schedules, several per chart below each other if their time scales are equal."""
    parts = []
    for scale in dict.fromkeys(slots.schedule.time_scale for slots in found):
        own = [slots for slots in found if slots.schedule.time_scale == scale]
        parts += [own[first : first + _MOST_TOGETHER] for first in range(0, len(own), _MOST_TOGETHER)]
    return [
        _chart(f"slots-{number}" if len(parts) > 1 else "slots", part) for number, part in enumerate(parts, 1)
    ]  # fmt: skip


def _chart(name: str, found: Sequence[Slots]) -> Chart:
    first = found[0]
    named = [short(slots.schedule.name, _LONGEST_NAME) for slots in found]
    words = "; ".join(
        f"{name}: {_words(slots)}" if len(found) > 1 else _words(slots)
        for name, slots in zip(named, found, strict=True)
    )
    above = "" if first.schedule.time_scale == 1.0 else ", trace time above"
    caption = (
        f"The active slot of each node. The first {first.partitions.parallel} of {first.schedule.nodes} nodes, "
        "above the dashed line, are the parallel partition. A node of it is lent while it runs serial jobs; a node of "
        f"the serial partition is taken while it runs parallel jobs. Counts: {words}. Time in wall seconds{above}."
    )
    height_in = 0.95 + sum(0.3 + _rows_in(slots.schedule.nodes) for slots in found)
    return Chart(
        name, "Slots of nodes", caption, f"Active slots of nodes — {words}",
        lambda figure: _draw(figure, found, named), height_in=height_in, wide=True,
    )  # fmt: skip


def _words(slots: Slots) -> str:
    total = slots.total
    return (
        f"nodes lent {total.lent}, taken back {total.taken_back}, taken {total.taken}; serial jobs suspended "
        f"{total.suspended}, resumed {total.resumed}"
    )


def _rows_in(nodes: int) -> float:
    return min(_ROW_IN * max(nodes, 2), _MOST_ROWS_IN)


def _draw(figure: Figure, found: Sequence[Slots], named: Sequence[str]) -> None:
    heights = [_rows_in(slots.schedule.nodes) for slots in found]
    grid = figure.subplots(len(found), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    all_axes: list[Axes] = list(grid[:, 0])
    all_axes[0].set_xlim(0.0, max(slots.schedule.end_s for slots in found) or 1.0)
    for axes, slots, title in zip(all_axes, found, named, strict=True):
        if len(found) > 1:
            axes.set_title(title, loc="left", fontsize="medium")
        _draw_bands(axes, slots)
    time_axes(all_axes, found[0].schedule)
    there = {band.slot for slots in found for node in slots.nodes for band in node.bands}
    handles = [
        Patch(label=_NAMES[slot], edgecolor="white", linewidth=0.0, **_STYLES[slot]) for slot in SLOTS if slot in there
    ]
    columns = 1 if figure.get_figwidth() <= NARROW_IN + 0.5 else 3
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, handlelength=2.4, columnspacing=1.4)


def _draw_bands(axes: Axes, slots: Slots) -> None:
    schedule, nodes = slots.schedule, slots.schedule.nodes
    boxes: dict[str, list[list[tuple[float, float]]]] = {}
    for node in slots.nodes:
        low = -node.node - _HIGH / 2
        for band in node.bands:
            boxes.setdefault(band.slot, []).append(box(band.begin_s, band.end_s, low, low + _HIGH))
    for slot, own in boxes.items():
        collection = PolyCollection(own, edgecolors="white", linewidths=0.0, gid=slot, **_patched(slot))
        axes.add_collection(collection, autolim=False)
    if nodes <= MOST_NODES:
        frame_nodes(axes, schedule, lambda node: -float(node), 0.5 - nodes, 0.5)
        axes.set_yticklabels([short(schedule.node_name(node), _LONGEST_NODE) for node in range(nodes)])
    else:
        step = -(-nodes // 16)
        axes.set_ylim(0.5 - nodes, 0.5)
        axes.set_yticks([-node for node in range(0, nodes, step)])
        axes.set_yticklabels([short(schedule.node_name(node), _LONGEST_NODE) for node in range(0, nodes, step)])
        axes.grid(visible=False, axis="y")
    if 0 < slots.partitions.parallel < nodes:
        axes.axhline(0.5 - slots.partitions.parallel, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))


def _patched(slot: str) -> dict[str, Any]:
    style = dict(_STYLES[slot])
    return {"facecolors": style.pop("facecolor"), **style}
