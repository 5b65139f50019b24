"""The measures of a run, live or simulated: pure formulas, each with its unit, in one place.

Times are trace seconds, CPU is counted in nodes (1.0 is all of one node). Arrays broadcast as numpy's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

TAU_S = 10.0  # bound of the bounded stretch in [RR 2.2]; [IPDPS] has 30
SECONDS_PER_HOUR = 3600.0


def bounded_stretch(turnaround_s: ArrayLike, run_time_s: ArrayLike, tau_s: float = TAU_S) -> Floats:
    """Return max(turnaround, tau) / max(run time, tau), no unit [RR 2.2].

    `turnaround_s` is completion minus submission, `run_time_s` the processing time on a dedicated cluster.
    """
    return np.maximum(np.asarray(turnaround_s, dtype=np.float64), tau_s) / np.maximum(
        np.asarray(run_time_s, dtype=np.float64), tau_s
    )


def degradation_from_bound(stretches: ArrayLike, bound: float) -> float:
    """Return max stretch / lower bound, no unit [RR 6.1]; 1 is the best possible value.

    `bound` is `testbed.scheduling.bound.max_stretch.bound` of the same jobs, nodes and tau.
    """
    return float(np.max(stretches)) / bound


def traffic_gb_per_s(tasks_moved: ArrayLike, mem_req_frac: ArrayLike, node_memory_gb: float, span_s: float) -> float:
    """Return the mean bandwidth of preemptions, or of migrations, in GB/s [RR Table 3].

    Sum over events of 2 * tasks * memory requirement * node memory, over `span_s`: every task that is paused
    or migrated is written once and read once. Both arrays have one element per event: the number of its tasks, and the
    memory requirement of each as a fraction of a node.
    """
    moved = np.asarray(tasks_moved, dtype=np.float64) * np.asarray(mem_req_frac, dtype=np.float64)
    return 2.0 * float(np.sum(moved)) * node_memory_gb / span_s


def occurrences_per_hour(occurrences: int, span_s: float) -> float:
    """Return events per hour [RR Table 3]; a job counts once per event, whatever the number of its tasks."""
    return occurrences * SECONDS_PER_HOUR / span_s


def occurrences_per_job(occurrences: int, jobs: int) -> float:
    """Return events per job, over all jobs of the trace, counted as for `occurrences_per_hour` [RR Table 3]."""
    return occurrences / jobs


def work_cpu_s(tasks: ArrayLike, cpu_need_frac: ArrayLike, run_time_s: ArrayLike) -> float:
    """Return the work of a trace in node seconds: the sum of tasks * CPU need * run time [RR 6.4]."""
    return float(np.sum(np.asarray(tasks) * np.asarray(cpu_need_frac) * np.asarray(run_time_s)))


def normalised_underutilisation(
    times_s: ArrayLike, demand_cpu: ArrayLike, useful_cpu: ArrayLike, nodes: int, work: float
) -> float:
    """Return the integral of min(|P|, demand) - useful CPU, over the work: no unit [RR 6.4.1].

    Both are step functions on common steps between `times_s[k]` and `times_s[k + 1]`, (K + 1,) and not decreasing.
    `demand_cpu[k]` (K,) is the CPU need of all tasks of submitted and not completed jobs. `useful_cpu[k]` (K,) is the
    CPU allocated to jobs that progress: none during a rescheduling penalty. Both are in nodes, `work` in node seconds.
    Raises ValueError if the lengths of the arrays do not agree, or if times decrease.
    """
    times = np.asarray(times_s, dtype=np.float64)
    demand = np.asarray(demand_cpu, dtype=np.float64)
    useful = np.asarray(useful_cpu, dtype=np.float64)
    lengths = np.diff(times)
    if not lengths.shape == demand.shape == useful.shape:
        raise ValueError(f"{times.size} times enclose {lengths.size} steps: {demand.size}, {useful.size} values")
    if np.any(lengths < 0.0):
        raise ValueError("times decrease")
    return float(np.sum((np.minimum(demand, nodes) - useful) * lengths)) / work


def capped_demand_cpu_s(submit_s: ArrayLike, end_s: ArrayLike, need_cpu: ArrayLike, nodes: int) -> float:
    """Return the integral over time of min(|P|, demand) in node seconds: an upper bound of useful CPU [RR 6.4.1].

    Demand is the sum of `need_cpu` (J,), tasks * CPU need in nodes, over jobs between `submit_s` and `end_s` (J,).
    """
    need = np.asarray(need_cpu, dtype=np.float64)
    times = np.concatenate((np.asarray(submit_s, dtype=np.float64), np.asarray(end_s, dtype=np.float64)))
    order = np.argsort(times, kind="stable")
    demand = np.cumsum(np.concatenate((need, -need))[order])[:-1]
    return float(np.sum(np.clip(demand, 0.0, nodes) * np.diff(times[order])))


def underutilisation_of_integrals(demand_cpu_s: float, useful_cpu_s: float, work: float) -> float:
    """Return (`capped_demand_cpu_s` - useful CPU) / work, no unit: `normalised_underutilisation` from its integrals.

    The useful CPU of a job in node seconds is tasks * CPU need * virtual time, which stands still during penalties.
    """
    return (demand_cpu_s - useful_cpu_s) / work


@dataclass(frozen=True, slots=True)
class Spread:
    """A measure over several traces or runs, in the unit of its values."""

    count: int
    mean: float
    std: float  # of a sample, divided by count - 1; NaN for one value
    maximum: float


def spread(values: Sequence[float]) -> Spread:
    """Return mean, sample standard deviation and maximum, as in the tables of [RR]; raises ValueError for no values."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise ValueError("no values to summarise")
    std = float(np.std(array, ddof=1)) if array.size > 1 else float("nan")
    return Spread(count=array.size, mean=float(np.mean(array)), std=std, maximum=float(np.max(array)))


def kendall_tau(one: ArrayLike, other: ArrayLike) -> float | None:
    """Return Kendall's tau-b of two rankings of the same items (n,), None if all items of one are tied."""
    first, second = (np.sign(np.subtract.outer(values, values)) for values in map(np.asarray, (one, other)))
    untied = float(np.abs(first).sum() * np.abs(second).sum())
    return float((first * second).sum()) / sqrt(untied) if untied else None
