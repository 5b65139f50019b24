"""Foreign load of machines during a run, which is CPU time used outside the lab; and the completeness of samples."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from testbed.run.events import Calibration
from testbed.study.compare.live import LiveRun

Floats = NDArray[np.float64]

CONTROLLERS_MACHINE = "the controller's machine"
_EVERY_S = 1.0  # agents sample once a second by default


class ForeignLoad(NamedTuple):
    """Foreign load of the machine with the most of it, as fractions of all its cores; None if unknown."""

    machine: str
    mean_frac: float | None
    p95_frac: float | None


class ForeignShares(NamedTuple):
    """Foreign load per interval (I,): end in Unix seconds, fraction of all cores, length in seconds."""

    at_s: Floats
    share: Floats
    length_s: Floats


class Sampling(NamedTuple):
    """The completeness of samples, each value for the worst node; None without samples.

    `every_s` is the longest sampling period of any agent.
    """

    missing_frac: float | None
    longest_gap_s: float | None
    every_s: float
    restarts: int


def sampling(run: LiveRun, nodes: pl.DataFrame) -> Sampling:
    """Return the completeness of the samples within the replay."""
    missing, gaps, every_s, restarts = [], [], [_EVERY_S], 0
    begin_s, end_s = replay_s(run)
    for name in run.facts.node_names:
        own = of_node(run, nodes, name)
        times = seconds(own)
        restarts += int((np.diff(own["agent_cpu_s"].to_numpy()) < -1e-9).sum())
        if not times.size:
            return Sampling(None, None, _EVERY_S, restarts)
        gaps.append(float(np.diff([begin_s, *times, end_s]).max()))
        every_s.append(_every_s(times))
        missing.append(1.0 - times.size / max((end_s - begin_s) / every_s[-1] - 1.0, 1.0))
    if not gaps:
        return Sampling(None, None, _EVERY_S, restarts)
    return Sampling(max(0.0, *missing), max(gaps), max(every_s), restarts)


def foreign_load(run: LiveRun, nodes: pl.DataFrame, guests: pl.DataFrame, controller: pl.DataFrame) -> ForeignLoad:
    """Return the foreign load during the replay, of the machine with the most of it.

    It is the CPU use of the machine that a node samples, minus the use of the lab since the previous sample: guests,
    agents and daemons of all nodes on that machine, and on the controller's machine also the controller and the broker
    that it started.
    """
    worst = ForeignLoad("", None, None)
    for machine, names in machines(run).items():
        here = controller if machine == CONTROLLERS_MACHINE else controller.clear()
        shares = foreign_shares(run, names, nodes, guests, here)
        if shares is None:
            continue
        mean = float(np.average(shares.share, weights=shares.length_s))
        if worst.mean_frac is None or mean > worst.mean_frac:
            worst = ForeignLoad(machine, mean, float(np.quantile(shares.share, 0.95)))
    return worst


def machines(run: LiveRun) -> dict[str, list[str]]:
    """Return the nodes of each machine: nodes that the command spawned, and boxes, are on the controller's machine."""
    scenario = run.facts.manifest.get("scenario") or {}
    spawned = {node["name"] for node in scenario.get("nodes", ()) if node.get("spawn")}
    found: dict[str, list[str]] = {}
    for name, facts in run.facts.manifest.get("nodes", {}).items():
        here = name in spawned or scenario.get("box") is not None
        found.setdefault(CONTROLLERS_MACHINE if here else str(facts.get("address") or name), []).append(name)
    return found


def foreign_shares(
    run: LiveRun, names: Sequence[str], nodes: pl.DataFrame, guests: pl.DataFrame, controller: pl.DataFrame
) -> ForeignShares | None:
    """Return the foreign load in each interval between samples of one node of a machine; None if not recorded.

    `names` are the nodes of the machine; `controller` has points if the machine is the controller's.
    """
    watched = _within(run, nodes.filter(pl.col("node").cast(pl.String) == names[0]))
    times = seconds(watched)
    facts = run.facts.manifest["nodes"][names[0]]
    cores = facts.get("machine_cores")
    if times.size < 3 or not cores or "dom0" in facts.get("capabilities", ()):  # dom0 measures its own time only
        return None
    own = np.zeros(times.size)
    for name in names:
        mine = nodes.filter(pl.col("node").cast(pl.String) == name)
        own += _grown(mine, "agent_cpu_s", times)
        if "daemons_cpu_s" in mine.columns:
            own += _grown(mine.drop_nulls("daemons_cpu_s"), "daemons_cpu_s", times)
        for guest in guests.filter(pl.col("node").cast(pl.String) == name).partition_by("job", "task"):
            own += _grown(guest, "cpu_s", times)
    for column in ("cpu_s", "broker_cpu_s") if controller.height else ():
        own += _grown(controller, column, times)
    lengths = np.diff(times)
    busy = watched["cpu_frac"].to_numpy()[1:]
    share = busy - np.diff(own) / (lengths * float(cores))
    return ForeignShares(times[1:], np.clip(share, 0.0, 1.0), lengths)


def owed_frac(run: LiveRun, caps: pl.DataFrame) -> float | None:
    """Return the fraction of the CPU time under their caps that serial jobs did not get; None without windows of them.

    Serial jobs use all CPU time that they get. `caps` has the run's `cap` points, windows of one constant cap.
    """
    serial = [str(job.job_id) for job in run.facts.jobs if job.tasks == 1]
    own = caps.filter(pl.col("job").cast(pl.String).is_in(serial))
    asked, got, window_s = (own[name].to_numpy() for name in ("requested_cores", "achieved_cores", "window_s"))
    asked_s = float((asked * window_s).sum())
    return float((np.maximum(asked - got, 0.0) * window_s).sum()) / asked_s if asked_s > 0.0 else None


def core_speed(run: LiveRun, nodes: pl.DataFrame) -> float | None:
    """Return the core speed in the replay, relative to that while dedicated rates were measured; None if not recorded.

    The speed is the same quantile of the agents' probes as then, for the node that differs most.
    """
    before, quantile = probed_before(run)
    if before is None or "core_units_per_s" not in nodes.columns:
        return None
    ratios = []
    for name in run.facts.node_names:
        told = of_node(run, nodes, name)["core_units_per_s"].drop_nulls().to_numpy()
        if told.size:
            ratios.append(float(np.quantile(told, quantile)) / before)
    return max(ratios, key=lambda ratio: abs(ratio - 1.0), default=None)


def probed_before(run: LiveRun) -> tuple[float | None, float]:
    """Return the probed core speed in units/s while rates were measured, None if unknown, and the quantile it is."""
    found = next((event for event in run.journal if isinstance(event, Calibration)), None)
    if found is None:
        return None, 0.5
    return found.probed_units_per_s or None, min(max(found.probed_quantile, 0.0), 1.0)


def of_node(run: LiveRun, nodes: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return the points of a node within the replay."""
    return _within(run, nodes.filter(pl.col("node").cast(pl.String) == name))


def _grown(frame: pl.DataFrame, column: str, times_s: Floats) -> Floats:
    """Return the growth of a counter until each of `times_s`; a counter that falls was restarted from 0."""
    values, at_s = frame[column].to_numpy(), seconds(frame)
    if not values.size:
        return np.zeros(times_s.size)
    steps = [float(values[0]) if column == "cpu_s" else 0.0]
    steps += [float(b - a if b >= a else b) for a, b in pairwise(values)]
    first_s = at_s[0] - _every_s(at_s)  # a guest without an earlier sample was created since the sample before
    grown = np.interp(times_s, np.concatenate([[first_s], at_s]), np.concatenate([[0.0], np.cumsum(steps)]))
    return np.asarray(grown, dtype=np.float64)


def _every_s(times_s: Floats) -> float:
    """Return the median sampling period in seconds."""
    return float(np.median(np.diff(times_s))) if times_s.size > 1 else _EVERY_S


def _within(run: LiveRun, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows within the replay: before it nodes are calibrated, and after it they are torn down."""
    times = pl.Series(seconds(frame))
    begin_s, end_s = replay_s(run)
    return frame.filter((times >= begin_s) & (times <= end_s))


def replay_s(run: LiveRun) -> tuple[float, float]:
    """Return the begin of the replay and the end of its last job, in Unix seconds."""
    begin_s = (run.facts.anchor_ns or 0) / 1e9 + run.facts.replay_begin_s
    ends_s = [job.end_time_s for job in run.facts.jobs if job.end_time_s is not None]
    return begin_s, begin_s + max(ends_s, default=0.0) / run.facts.time_scale


def seconds(frame: pl.DataFrame) -> Floats:
    """Return the times of points in Unix seconds."""
    return np.asarray(frame["time"].cast(pl.Int64).to_numpy() / 1e9, dtype=np.float64)
