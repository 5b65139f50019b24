"""Pairs of a live run and its simulation: every job and every decision in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.scheduling.metrics import bounded_stretch
from testbed.scheduling.simulation.overheads import Overheads
from testbed.scheduling.simulation.speeds import NodeSpeeds
from testbed.study.compare.accounting import Ended, Parts, account
from testbed.study.compare.alignment import Alignment, align
from testbed.study.compare.decisions import of_simulation
from testbed.study.compare.live import LiveRun
from testbed.study.compare.one_step import OneStep, one_step
from testbed.study.report.run.difference import difference
from testbed.study.report.run.simulated import Simulation, simulate_run

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Side:
    """One job in the live run or in the simulation; times in trace seconds."""

    start_s: float
    end_s: float
    turnaround_s: float
    stretch: float
    preemptions: int
    migrations: int
    parts: Parts


@dataclass(frozen=True, slots=True)
class JobPair:
    """One job in the live run and in the simulation."""

    job: int
    tasks: int
    run_time_s: float
    live: Side
    simulated: Side

    @property
    def error_frac(self) -> float:
        """Relative error of the simulated turnaround: positive if it is longer than the live one."""
        return self.simulated.turnaround_s / self.live.turnaround_s - 1.0


@dataclass(frozen=True, slots=True, eq=False)
class RunPair:
    """A run and its simulation; `jobs` in order of their numbers.

    `agreement_frac` is the agreement of the two schedules, node by node. `speeds` are the node speeds in the
    simulation, None for constant ones. `one_step` is None if no model supports the policy.
    """

    run: LiveRun
    simulation: Simulation
    jobs: tuple[JobPair, ...]
    alignment: Alignment
    agreement_frac: float
    one_step: OneStep | None
    speeds: NodeSpeeds | None = None

    def live(self, name: str) -> Floats:
        """Return a field of `Side` by its name for each job (J,) of the live run."""
        return np.array([getattr(job.live, name) for job in self.jobs], dtype=np.float64)

    def simulated(self, name: str) -> Floats:
        """Return a field of `Side` by its name for each job (J,) of the simulation."""
        return np.array([getattr(job.simulated, name) for job in self.jobs], dtype=np.float64)


def pair(run: LiveRun, overheads: Overheads | None, speeds: NodeSpeeds | None = None) -> RunPair:
    """Simulate the jobs of a run whose jobs are all done, and pair each job with its simulated one.

    With `speeds`, the nodes of the simulation have these speeds instead of constant ones.
    Raises `UserError` for a run that cannot be simulated, `RunError` for a simulation that does not end.
    """
    simulation = simulate_run(run.facts.path, overheads, speeds)
    found = simulation.run
    order = sorted(range(len(found.jobs)), key=lambda row: found.jobs[row].job_id)
    rows = [run.facts.job_by_id[found.jobs[row].job_id] for row in order]
    decisions = of_simulation(simulation, run.period_s)
    live_ended = [
        Ended(row.job_id, row.submit_time_s, _known(row.end_time_s), found.jobs[at].run_time_s)
        for row, at in zip(rows, order, strict=True)
    ]
    twin_ended = [
        Ended(job.job_id, job.submit_time_s, float(found.end_s[at]), job.run_time_s)
        for job, at in ((found.jobs[at], at) for at in order)
    ]
    live_parts = account(run.schedule, run.decisions, live_ended)
    twin_parts = account(simulation.schedule, decisions, twin_ended)
    tau_s = run.facts.tau_s
    jobs = tuple(
        JobPair(
            job=row.job_id,
            tasks=row.tasks,
            run_time_s=live.run_time_s,
            live=_side(live, _known(row.start_time_s), row.preemptions, row.migrations, live_parts, tau_s),
            simulated=_side(
                twin, float(found.start_s[at]), int(found.preemptions[at]), int(found.migrations[at]), twin_parts, tau_s
            ),
        )
        for row, at, live, twin in zip(rows, order, live_ended, twin_ended, strict=True)
    )
    until_s = max(ended.end_s for ended in (*live_ended, *twin_ended))
    return RunPair(
        run,
        simulation,
        jobs,
        align(run.decisions, decisions, simulation.schedule, until_s),
        difference(run.schedule, simulation.schedule).agreement_frac,
        one_step(run, simulation, speeds),
        speeds,
    )


def _side(
    ended: Ended, start_s: float, preemptions: int, migrations: int, parts: dict[int, Parts], tau_s: float
) -> Side:
    turnaround_s = ended.end_s - ended.submit_s
    return Side(
        start_s=start_s,
        end_s=ended.end_s,
        turnaround_s=turnaround_s,
        stretch=float(bounded_stretch(turnaround_s, ended.run_time_s, tau_s)),
        preemptions=preemptions,
        migrations=migrations,
        parts=parts[ended.job],
    )


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError("a job without an end or a start: only runs in which all jobs ended are compared")
    return value


def table(pairs: Sequence[RunPair], world: str, name: str) -> Floats:
    """Return a field of `Side` by its name for every run and job (R, J); `world` is `live` or `simulated`."""
    return np.stack([getattr(each, world)(name) for each in pairs])
