"""Shares and CPU use of the tasks of parallel jobs that compete by shares, over time [DPS]."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray

from testbed.study.report.page.style import Chart, legend_outside, single_axes

_MOST_JOBS, _MOST_TASKS = 4, 8
_OVER_S = 5.0  # use is the mean over so long, the exchange's period by default
Floats = NDArray[np.float64]


def figures_shares(guests: pl.DataFrame | None) -> list[Chart]:
    """Return a chart for each of the first parallel jobs whose guests had shares; none for other runs."""
    if guests is None or "share_cores" not in guests.columns:
        return []
    known = guests.drop_nulls("share_cores").sort("time")
    tasks = known.group_by("job").agg(tasks=pl.col("task").n_unique()).filter(pl.col("tasks") > 1).sort("job")
    return [_chart(job, known.filter(pl.col("job") == job)) for job in tasks["job"].to_list()[:_MOST_JOBS]]


def shares_of_tasks(points: pl.DataFrame) -> dict[int, tuple[Floats, Floats, Floats]]:
    """Return for each task of a job the seconds since the job's first point, its share and its use, in cores."""
    first_ns = int(points["time"].to_physical().min() or 0)  # type: ignore[arg-type]  # nanoseconds
    found = {}
    for (task,), own in points.group_by("task", maintain_order=True):
        t_s = (own["time"].to_physical().to_numpy() - first_ns) / 1e9
        cpu_s = own["cpu_s"].to_numpy()
        before = np.searchsorted(t_s, t_s - _OVER_S)
        span_s = t_s - t_s[before]
        used = np.divide(cpu_s - cpu_s[before], span_s, out=np.zeros_like(span_s), where=span_s > 0)
        found[int(str(task))] = t_s, own["share_cores"].to_numpy(), used
    return dict(sorted(found.items()))


def _chart(job: int, points: pl.DataFrame) -> Chart:
    tasks = shares_of_tasks(points)
    shown = dict(list(tasks.items())[:_MOST_TASKS])
    words = "; ".join(f"task {task}: {share[0]:.3f} to {share[-1]:.3f} cores" for task, (_, share, _) in shown.items())

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "wall seconds since its first sample", "cores")
        colors = colormaps["viridis"](np.linspace(0.0, 0.85, len(shown)))
        for (task, (t_s, share, used)), color in zip(shown.items(), colors, strict=True):
            axes.step(t_s, share, where="post", color=color, linewidth=1.6, label=f"task {task}: share")
            axes.plot(t_s, used, color=color, linewidth=0.8, linestyle=(0, (2, 2)), label=f"task {task}: use")
        axes.set_ylim(bottom=0)
        legend_outside(figure, 4)

    more = f" The first {_MOST_TASKS} of {len(tasks)} tasks." if len(tasks) > _MOST_TASKS else ""
    return Chart(
        f"shares_{job}", f"Shares of job {job}",
        "Share in force of each task, as read back from its node, and the CPU time that it used per second, over "
        f"{_OVER_S:g} s, in cores. Shares in transfers, and in the bank, belong to nobody.{more}",
        f"Shares over time — {words}", draw,
    )  # fmt: skip
