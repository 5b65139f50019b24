"""How fast the cores of a run's nodes were over time, relative to when its dedicated rates were measured.

Agents probe their core once a second, for half a millisecond. A probe that is interrupted is too slow, so the speed at
an instant is the median of the probes around it. It changes in steps of wall seconds.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from testbed.run.events import Calibration
from testbed.scheduling.simulation.speeds import NodeSpeeds
from testbed.study.compare.live import LiveRun
from testbed.study.compare.load import of_node, replay_s, seconds

Floats = NDArray[np.float64]

WINDOW_S = 11.0  # of the median: some ten probes
_LEAST_PROBES = 3


def probed_before(run: LiveRun) -> float | None:
    """Return what probes gave while dedicated rates were measured, units/s; None if they were not."""
    found = next((event.probed_units_per_s for event in run.journal if isinstance(event, Calibration)), None)
    return found or None


def core_speeds(run: LiveRun, nodes: pl.DataFrame) -> NodeSpeeds | None:
    """Return the speeds of the run's nodes in its trace time; None if they were not recorded.

    `nodes` are its `node` points.
    """
    before = probed_before(run)
    if before is None or "core_units_per_s" not in nodes.columns:
        return None
    begin_s, end_s = replay_s(run)
    grid_s = np.arange(0.0, max(end_s - begin_s, 1.0), 1.0)
    columns = []
    for name in run.facts.node_names:
        own = of_node(run, nodes, name)
        probes = own["core_units_per_s"].fill_null(0.0).to_numpy()
        told = probes > 0.0
        if int(told.sum()) < _LEAST_PROBES:
            return None
        columns.append(_medians(seconds(own)[told] - begin_s, probes[told], grid_s) / before)
    return NodeSpeeds(grid_s * run.facts.time_scale, np.stack(columns, axis=1))


def _medians(at_s: Floats, values: Floats, grid_s: Floats) -> Floats:
    """Return at each of `grid_s` the median of the values within half a window, or of the nearest few."""
    first = np.searchsorted(at_s, grid_s - WINDOW_S / 2)
    last = np.searchsorted(at_s, grid_s + WINDOW_S / 2, side="right")
    found = []
    for time_s, low, high in zip(grid_s, first, last, strict=True):
        if high - low < _LEAST_PROBES:
            nearest = np.argsort(np.abs(at_s - time_s), kind="stable")[:_LEAST_PROBES]
            found.append(float(np.median(values[nearest])))
        else:
            found.append(float(np.median(values[low:high])))
    return np.array(found)
