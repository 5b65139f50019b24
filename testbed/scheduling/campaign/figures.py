"""Figures of a campaign as SVG and PDF, byte-identical for the same results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import RunError, UserError
from testbed.host.whole_files import draft_of
from testbed.scheduling.campaign.model import Campaign, FigureSpec
from testbed.scheduling.campaign.results import Row
from testbed.scheduling.campaign.summary import chosen_rows, label_rows, spread_of

_AXES = {
    "load": "offered load",
    "period_s": "period (s)",
    "degradation_theorem1": "degradation from bound",
    "degradation_fluid": "degradation from the fluid bound",
    "degradation_factor": "degradation factor",
    "max_stretch": "maximum stretch",
    "underutilization": "normalized underutilization",
    "preemption_gb_per_s": "preemption bandwidth (GB/s)",
    "migration_gb_per_s": "migration bandwidth (GB/s)",
}
_MARKERS = "osD^v<>Pph8*X"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a figure: means over traces, by x. A `flat` line does not depend on x, and has one value in `y`."""

    label: str
    x: list[float]
    y: list[float]
    flat: bool = False


def lines_of(campaign: Campaign, spec: FigureSpec, rows: Sequence[Row]) -> list[Line]:
    """Return the lines of a figure: one per policy, set of traces and measure; labels name the columns that differ."""
    chosen = chosen_rows(spec, rows)
    # Against the period, means are over all loads of a set, as in [RR] Figures 3 to 9.
    others = ["period_s", "overheads"] if spec.x == "load" else ["overheads"]
    named = label_rows(chosen, ["policy", "traces", *others])
    order = {name: place for place, name in enumerate(spec.policies or campaign.policies)}
    named.sort(key=lambda pair: order[str(pair[0]["policy"])])
    found: list[Line] = []
    groups: dict[str, list[Row]] = {}
    for row, label in named:
        groups.setdefault(label, []).append(row)
    for label, own in groups.items():
        for measure in spec.measures:
            text = f"{label}, {_AXES.get(measure, measure)}" if len(spec.measures) > 1 else label
            found += _line(spec.x, measure, text, own)
    return found


def _line(x: str, measure: str, label: str, rows: list[Row]) -> list[Line]:
    places = sorted({float(value) for row in rows if (value := row[x]) is not None})
    if not places:
        mean = spread_of(rows, measure)
        return [] if mean is None or x != "period_s" else [Line(label, [], [mean.mean], flat=True)]
    means = [(place, spread_of((row for row in rows if row[x] == place), measure)) for place in places]
    points = [(place, mean.mean) for place, mean in means if mean is not None]
    return [Line(label, [place for place, _ in points], [mean for _, mean in points])] if points else []


def write_figure(folder: Path, spec: FigureSpec, lines: Sequence[Line]) -> None:
    """Write NAME.svg and NAME.pdf. Raises UserError when they cannot be written, RunError without matplotlib."""
    with drawing(folder, spec.name, (7.0, 4.5 + 0.16 * len(lines))) as (figure, axes):
        for place, line in enumerate(lines):
            if line.flat:
                axes.axhline(line.y[0], label=line.label, color=f"C{place}", linestyle="--")
            else:
                axes.plot(
                    line.x,
                    line.y,
                    label=line.label,
                    color=f"C{place}",
                    marker=_MARKERS[place % len(_MARKERS)],
                    markersize=4,
                )
        if spec.log_y and lines:
            axes.set_yscale("log")
        axes.set_xlabel(_AXES[spec.x])
        axes.set_ylabel(_AXES.get(spec.measures[0], spec.measures[0]) if len(spec.measures) == 1 else "mean")
        axes.set_title(spec.title, fontsize="medium", wrap=True)
        axes.grid(visible=True, alpha=0.3)
        if lines:
            figure.legend(loc="outside lower center", fontsize="small", ncols=1 if len(lines) < 6 else 2)


@contextmanager
def drawing(folder: Path, name: str, size: tuple[float, float]) -> Iterator[tuple[Any, Any]]:
    """Yield a figure of `size` inches and its axes, and write it as NAME.svg and NAME.pdf at the end.

    Raises UserError when they cannot be written, RunError without matplotlib.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415  # an extra, and slow to import
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  # an extra, and slow to import
        from matplotlib.figure import Figure  # noqa: PLC0415  # an extra, and slow to import
    except ImportError as error:
        raise RunError("figures need matplotlib: install the extra campaign") from error
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        axes: Any = figure.add_subplot()
        yield figure, axes
        for suffix, metadata in (("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
            path = folder / f"{name}.{suffix}"
            try:
                with draft_of(path) as draft:
                    figure.savefig(draft, format=suffix, metadata=metadata)
            except OSError as error:
                raise UserError(f"{path}: cannot be written: {error}") from error
