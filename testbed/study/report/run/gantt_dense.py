"""Gantt charts of schedules with very many bars, as images of mean yields by node and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from numpy.typing import NDArray

from testbed.study.report.run.schedule import PENALTIES, RUNS, JobFacts, Schedule, Span

Floats = NDArray[np.float64]
BINS = 1600  # bins of time: about the number of pixels of a page
_LINES = 5  # lines per node: four for yields, one for penalties


@dataclass(frozen=True, slots=True)
class Cells:
    """Means over N nodes x B bins of time, in CPUs of a node: (N, B) each."""

    used_cpu: Floats  # yield * CPU need of running tasks
    wanted_cpu: Floats  # CPU need of running tasks
    held_up: Floats  # number of tasks in a penalty


def cells_of(schedule: Schedule, end_s: float, bins: int = BINS) -> Cells:
    """Return the means of a schedule between 0 and `end_s`; time and memory are linear in spans and cells."""
    need = _needs(schedule.jobs, schedule.spans)
    columns = np.array(
        [(span.node, span.begin_s, span.end_s, span.yield_frac) for span in schedule.spans], dtype=np.float64
    ).reshape(-1, 4)
    runs = np.array([span.kind in RUNS for span in schedule.spans], dtype=np.float64)
    held = np.array([span.kind in PENALTIES for span in schedule.spans], dtype=np.float64)
    node, begin_s, until_s, yields = columns.T
    rates = np.stack((yields * need * runs, need * runs, held))
    grid = _means(node.astype(np.int64), begin_s, until_s, rates, schedule.nodes, end_s, bins)
    return Cells(*grid)


def _needs(jobs: Mapping[int, JobFacts], spans: Sequence[Span]) -> Floats:
    known = {job: each.cpu_need_frac for job, each in jobs.items()}
    need = np.array([known.get(span.job, np.nan) for span in spans], dtype=np.float64)
    return np.nan_to_num(need, nan=1.0)


def _means(
    node: NDArray[np.int64], begin_s: Floats, until_s: Floats, rates: Floats, nodes: int, end_s: float, bins: int
) -> Floats:
    """Return the means (R, nodes, bins) of step functions: `rates` (R, S) on [begin, until) of S spans."""
    sums = np.zeros((rates.shape[0], nodes, bins + 1))
    later = np.zeros_like(sums)
    for time_s, sign in ((begin_s, 1.0), (until_s, -1.0)):
        place = np.clip(time_s / end_s * bins, 0.0, bins)
        index = np.minimum(place.astype(np.int64), bins - 1)
        rest = index + 1 - place  # fraction of the bin after the instant
        for row, rate in enumerate(rates):
            np.add.at(sums[row], (node, index), sign * rate * rest)
            np.add.at(later[row], (node, index + 1), sign * rate)
    means = sums[:, :, :bins] + np.cumsum(later, axis=2)[:, :, :bins]
    return np.where(np.abs(means) < 1e-12, 0.0, means)


def draw_dense(axes: Axes, schedule: Schedule, colours: str) -> None:
    """Draw mean yields as colours, and penalties as dark marks at the bottom of a node's row."""
    end_s = axes.get_xlim()[1]
    cells = cells_of(schedule, end_s)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(cells.wanted_cpu > 1e-6, cells.used_cpu / cells.wanted_cpu, np.nan)
    picture = np.repeat(mean, _LINES, axis=0)
    picture[_LINES - 1 :: _LINES] = np.nan
    ticks = np.full_like(picture, np.nan)
    ticks[_LINES - 1 :: _LINES] = np.where(cells.held_up > 0.02, 1.0, np.nan)
    extent = (0.0, end_s, schedule.nodes - 0.5, -0.5)
    kind = {"aspect": "auto", "extent": extent, "interpolation": "none"}
    axes.imshow(picture, cmap=colours, vmin=0.0, vmax=1.0, **kind)  # type: ignore[arg-type]  # a mixed dictionary
    axes.imshow(ticks, cmap=ListedColormap(["#000000"]), vmin=0.0, vmax=1.0, **kind)  # type: ignore[arg-type]
    axes.grid(visible=False)
    step = max(1, -(-schedule.nodes // 16))
    shown = range(0, schedule.nodes, step)
    axes.set_yticks(list(shown), [schedule.node_name(node) for node in shown])
    axes.set_ylabel("node (colour: mean yield of its tasks; dark line: rescheduling penalty)", fontsize="small")
