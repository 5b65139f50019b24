"""The figure of shares and CPU use of the tasks of parallel jobs that compete by shares, over time [DPS]."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from testbed.study.report.page.style import INK, VERMILION, WIDE_IN, Chart, single_axes

_MOST_JOBS, _MOST_TASKS = 4, 8
_OVER_S = 5.0  # window of the mean use: the default period of the exchange of shares
_USE: Final[dict[str, Any]] = {"linewidth": 0.9, "linestyle": (0, (2, 2))}
Floats = NDArray[np.float64]


def figures_shares(guests: pl.DataFrame | None) -> list[Chart]:
    """Return one chart per job, for the first parallel jobs whose guests had shares."""
    if guests is None or "share_cores" not in guests.columns:
        return []
    known = guests.drop_nulls("share_cores").sort("time")
    tasks = known.group_by("job").agg(tasks=pl.col("task").n_unique()).filter(pl.col("tasks") > 1).sort("job")
    return [_chart(job, known.filter(pl.col("job") == job)) for job in tasks["job"].to_list()[:_MOST_JOBS]]


def shares_of_tasks(points: pl.DataFrame) -> dict[int, tuple[Floats, Floats, Floats]]:
    """Return for each task of a job the seconds since the job's first point, and its share and use in cores."""
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


def bank_of(points: pl.DataFrame) -> tuple[Floats, Floats] | None:
    """Return the seconds since the job's first point, and the content of the job's bank in cores; None without bank."""
    if "bank_cores" not in points.columns:
        return None
    first_ns = int(points["time"].to_physical().min() or 0)  # type: ignore[arg-type]  # nanoseconds
    own = points.drop_nulls("bank_cores")
    if own.is_empty():
        return None
    return (own["time"].to_physical().to_numpy() - first_ns) / 1e9, own["bank_cores"].to_numpy()


def _chart(job: int, points: pl.DataFrame) -> Chart:
    tasks = shares_of_tasks(points)
    bank = bank_of(points)
    shown = dict(list(tasks.items())[:_MOST_TASKS])
    words = "; ".join(f"task {task}: {share[0]:.3f} to {share[-1]:.3f} cores" for task, (_, share, _) in shown.items())

    def draw(figure: Figure) -> None:
        axes = single_axes(figure, "time since the first sample of the job (wall s)", "cores")
        colors = colormaps["viridis"](np.linspace(0.0, 0.85, len(shown)))
        handles = [Line2D([], [], color=INK, label="share"), Line2D([], [], color=INK, label="use", **_USE)]
        for (task, (t_s, share, used)), color in zip(shown.items(), colors, strict=True):
            axes.step(t_s, share, where="post", color=color)
            axes.plot(t_s, used, color=color, **_USE)
            handles.append(Line2D([], [], color=color, label=f"task {task}"))
        if bank is not None:
            handles += axes.step(*bank, where="post", color=VERMILION, linestyle=(0, (6, 2)), label="bank has")
        axes.set_ylim(bottom=0)
        figure.legend(handles=handles, loc="outside upper left", ncols=3 if figure.get_figwidth() < WIDE_IN else 11)

    more = f" The first {_MOST_TASKS} of {len(tasks)} tasks." if len(tasks) > _MOST_TASKS else ""
    has = "" if bank is None else f", and what the bank of the job has (at the end {bank[1][-1]:.3f} cores)"
    return Chart(
        f"shares_{job}", f"Shares of job {job}",
        "Share in force of each task, as read back from its node, and the CPU time that it used per second, as a mean "
        f"over {_OVER_S:g} s{has}, in cores. Shares in transfer belong to no task.{more}",
        f"Shares over time — {words}", draw, height_in=3.4, wide=True,
    )  # fmt: skip
