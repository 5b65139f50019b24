"""Speed of the cores of a run's nodes over time, relative to the speed while its dedicated rates were measured.

Agents probe their core once a second, for half a millisecond. An interrupted probe is too slow, so the speed at an
instant is a quantile of the probes around it: the same as in the journal's entry `calibration`. The speed changes in
steps of one wall second.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from testbed.bus.limits import LEAST_UNITS_PER_CORE_S
from testbed.run.events import Calibration
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.configuration import DEFAULT_PERIOD_S
from testbed.scheduling.simulation.simulate import can_pace
from testbed.scheduling.simulation.speeds import NodeSpeeds
from testbed.study.compare.live import LiveRun
from testbed.study.compare.load import of_node, probed_before, replay_s, seconds

Floats = NDArray[np.float64]

WINDOW_S = 11.0  # window of the quantile: about ten probes
_LEAST_PROBES = 3
LEAST_RELATIVE, MOST_RELATIVE = 0.01, 10.0  # bounds on what is believed of the speed of a core
_WITHIN_S = 2.5  # two samples further apart may belong to two lives of a guest
_LEAST_CPU_S = 1.0  # least CPU time of a guest whose speed is used
SERIAL = "serial"  # prefix of the names of serial jobs' shapes


def core_speeds(run: LiveRun, nodes: pl.DataFrame) -> NodeSpeeds | None:
    """Return the relative speeds of the run's nodes over trace time; None if they were not recorded.

    `nodes` has the run's `node` points.
    """
    before, quantile = probed_before(run)
    if before is None or "core_units_per_s" not in nodes.columns:
        return None
    begin_s, end_s = replay_s(run)
    grid_s = np.arange(0.0, max(end_s - begin_s, 1.0), 1.0)
    columns = []
    for name in run.facts.node_names:
        own = of_node(run, nodes, name)
        probes = own["core_units_per_s"].fill_null(0.0).to_numpy()
        told = (probes >= LEAST_UNITS_PER_CORE_S) & (probes < before * MOST_RELATIVE)
        if int(told.sum()) < _LEAST_PROBES:
            return None
        relative = _quantiles(seconds(own)[told] - begin_s, probes[told], grid_s, quantile) / before
        columns.append(np.maximum(relative, LEAST_RELATIVE))
    return NodeSpeeds(grid_s * run.facts.time_scale, np.stack(columns, axis=1))


def followed_speeds(run: LiveRun, nodes: pl.DataFrame) -> NodeSpeeds | None:
    """Return the speeds that a simulation of the run uses; None if it uses constant speeds."""
    policy = parse(run.facts.policy, run.period_s or DEFAULT_PERIOD_S)
    if run.facts.work_is_cpu_time or not can_pace(policy):
        return None
    return core_speeds(run, nodes)


def guest_speed_gap(run: LiveRun, guests: pl.DataFrame, speeds: NodeSpeeds) -> float | None:
    """Return the mean difference between the speeds of serial jobs' guests and of their nodes' cores, by CPU time.

    The speed of a guest is its work per second of its own CPU time, relative to the same while dedicated rates were
    measured. `guests` has the run's `guest` points. Return None if no guest had enough CPU time, or if it is unknown
    which dedicated rate belongs to which job.
    """
    rates = next((event.units_per_core_s for event in run.journal if isinstance(event, Calibration)), {})
    serial = [rate for shape, rate in rates.items() if shape.startswith(SERIAL)]
    if len(set(serial)) != 1:  # the journal does not record which rate belongs to which job
        return None
    begin_s, _end_s = replay_s(run)
    place = {name: number for number, name in enumerate(run.facts.node_names)}
    gaps, weights = [], []
    own = guests.filter(pl.col("job").cast(pl.String).is_in([str(j.job_id) for j in run.facts.jobs if j.tasks == 1]))
    for one in own.sort("time").partition_by("job", "task", "node"):
        at_s, cpu_s, units = seconds(one), one["cpu_s"].to_numpy(), one["units_done"].to_numpy().astype(np.float64)
        took_s, used_s, done = np.diff(at_s), np.diff(cpu_s), np.diff(units)
        life = (took_s < _WITHIN_S) & (used_s > 0.0) & (done > 0.0)
        life[1:] &= life[:-1].copy()  # drop the first interval: a program uses CPU time before its first work unit
        life[:1] = False
        total_s = float(used_s[life].sum())
        if total_s < _LEAST_CPU_S:
            continue
        node = place[str(one["node"][0])]
        rows = np.searchsorted(speeds.at_s, (at_s[1:][life] - begin_s) * run.facts.time_scale, side="right") - 1
        told = speeds.relative[np.clip(rows, 0, None), node]
        expected = float((told * used_s[life]).sum()) * serial[0]
        gaps.append(abs(float(done[life].sum()) / expected - 1.0))
        weights.append(total_s)
    return float(np.average(gaps, weights=weights)) if gaps else None


def _quantiles(at_s: Floats, values: Floats, grid_s: Floats, quantile: float) -> Floats:
    """Return for each time in `grid_s` the quantile of values within half a window, or of the nearest few values."""
    first = np.searchsorted(at_s, grid_s - WINDOW_S / 2)
    last = np.searchsorted(at_s, grid_s + WINDOW_S / 2, side="right")
    found = []
    for time_s, low, high in zip(grid_s, first, last, strict=True):
        if high - low < _LEAST_PROBES:
            nearest = np.argsort(np.abs(at_s - time_s), kind="stable")[:_LEAST_PROBES]
            found.append(float(np.quantile(values[nearest], quantile)))
        else:
            found.append(float(np.quantile(values[low:high], quantile)))
    return np.array(found)
