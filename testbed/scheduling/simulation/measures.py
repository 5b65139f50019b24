"""The measures of a simulated run, from the formulas that live runs use as well."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from testbed.scheduling.metrics import (
    TAU_S,
    capped_demand_cpu_s,
    degradation_from_bound,
    occurrences_per_hour,
    occurrences_per_job,
    traffic_gb_per_s,
    underutilisation_of_integrals,
    work_cpu_s,
)
from testbed.scheduling.simulation.run import MIGRATION, PREEMPTION, SimulatedRun


@dataclass(frozen=True, slots=True)
class Measures:
    """One run in figures. Rates are over the span from the first submission to the last completion, the makespan."""

    max_stretch: float  # bounded stretch, no unit [RR 2.2]
    mean_stretch: float
    bound: float | None  # lower bound on the maximum stretch, None if it was not computed
    degradation: float | None  # max stretch / bound [RR 6.1]
    underutilization: float  # (capped demand - useful CPU) / work [RR 6.4.1]; see `measure`
    preemptions_per_job: float  # a job counts once per instant, whatever the number of its tasks [RR Table 3]
    migrations_per_job: float
    preemptions_per_hour: float
    migrations_per_hour: float
    preemption_gb_per_s: float  # every task that is paused or moved is written and read once, in 1e9 bytes
    migration_gb_per_s: float
    makespan_s: float  # trace seconds
    decide_mean_s: float | None  # wall seconds per decision, None if no policy made any
    decide_max_s: float | None

    def as_dict(self) -> dict[str, float | None]:
        """Return the figures by name, in order."""
        return asdict(self)


def measure(run: SimulatedRun, bound: float | None, node_memory_gb: float, tau_s: float = TAU_S) -> Measures:
    """Return the measures of `run` on nodes of `node_memory_gb`; `bound` is for the same jobs, nodes and tau.

    Useful CPU is the CPU of the work that was done: needs times virtual time. If progress is the yield, it is the CPU
    that jobs got [RR 6.4.1]. With another overhead model, CPU without progress is not useful, as in a penalty; and a
    job that progresses faster than its yield needed less CPU than declared. So every completed job counts as much as
    on dedicated nodes, and models can be compared. The lower bounds assume that progress is the yield, so such jobs
    may be below the bounds.
    """
    stretches = run.stretches(tau_s)
    span_s = run.makespan_s
    tasks = np.array([job.tasks for job in run.jobs], dtype=np.int64)
    need_frac = np.array([job.cpu_need_frac for job in run.jobs], dtype=np.float64)
    mem_req_frac = np.array([job.mem_req_frac for job in run.jobs], dtype=np.float64)
    paused, moved = (run.moves.kind == kind for kind in (PREEMPTION, MIGRATION))

    def traffic(chosen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float:
        return traffic_gb_per_s(run.moves.tasks[chosen], mem_req_frac[run.moves.row[chosen]], node_memory_gb, span_s)

    timed = run.decide_max_s > 0.0
    return Measures(
        max_stretch=float(stretches.max()),
        mean_stretch=float(stretches.mean()),
        bound=bound,
        degradation=None if bound is None else degradation_from_bound(stretches, bound),
        underutilization=underutilisation_of_integrals(
            capped_demand_cpu_s(run.submit_s, run.end_s, tasks * need_frac, run.nodes),
            work_cpu_s(tasks, need_frac, run.virtual_time_s),
            work_cpu_s(tasks, need_frac, run.run_time_s),
        ),
        preemptions_per_job=occurrences_per_job(int(paused.sum()), len(run.jobs)),
        migrations_per_job=occurrences_per_job(int(moved.sum()), len(run.jobs)),
        preemptions_per_hour=occurrences_per_hour(int(paused.sum()), span_s),
        migrations_per_hour=occurrences_per_hour(int(moved.sum()), span_s),
        preemption_gb_per_s=traffic(paused),
        migration_gb_per_s=traffic(moved),
        makespan_s=span_s,
        decide_mean_s=run.decide_total_s / run.decisions if timed else None,
        decide_max_s=run.decide_max_s if timed else None,
    )
