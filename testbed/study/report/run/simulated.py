"""The simulation of a run [RR 5.1]: the same jobs, nodes and policy in virtual time."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from testbed.bus.need_profile import WHOLE, WHOLE_PARTS, parts_of
from testbed.errors import UserError
from testbed.measure.rundir import read_json
from testbed.needs.estimator import NEED_WINDOW_S
from testbed.run.events import Arrived, Decision, Replay, Rescheduling, TraceJob, View
from testbed.run.journal import is_decision, never, read_events
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import Policy
from testbed.scheduling.simulation.compiling import NEVER, Compiling, When
from testbed.scheduling.simulation.needs import NeedsModel
from testbed.scheduling.simulation.overheads import Overheads, constant
from testbed.scheduling.simulation.ranks import SharingModel
from testbed.scheduling.simulation.run import Placement, SimulatedRun
from testbed.scheduling.simulation.simulate import can_pace, needs_of, simulate
from testbed.scheduling.simulation.speeds import NodeSpeeds
from testbed.scheduling.workload.jobs import Job
from testbed.study.report.run.facts import work_is_cpu_time
from testbed.study.report.run.schedule import DONE, RESTORE, RUN, JobFacts, Schedule, Span
from testbed.study.report.run.share_moves import simulated_moves

_MANY_JOBS = 100  # for fewer jobs, loading the machine code of the loop takes longer than the simulation


@dataclass(frozen=True, slots=True)
class SimulatedDecision:
    """The jobs that run after one decision at trace second `time_s`: nodes of the tasks and yield, by job id.

    Nodes are numbered from 0. The nodes of a job are a multiset, as its tasks are interchangeable. Jobs that do not run
    are missing.
    """

    time_s: float
    placements: dict[int, tuple[tuple[int, ...], float]]


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """The simulation of a run: its results in trace seconds, and its schedule on the run's axis of wall seconds.

    `run` has arrays by job, in the order of `run.jobs`. `decisions` are all decisions in order of time, also those
    without changes (under FCFS and EASY: one per instant of submissions or completions). `overheads` are in trace
    seconds, `node_memory_gb` in 1e9 bytes.
    """

    run: SimulatedRun
    schedule: Schedule
    policy: Policy
    overheads: Overheads
    node_memory_gb: float
    decisions: list[SimulatedDecision]


def simulate_schedule(
    jobs: Sequence[Job],
    node_names: Sequence[str],
    policy: Policy,
    overheads: Overheads,
    *,
    node_memory_gb: float,
    time_scale: float = 1.0,
    name: str = "",
    sharing: SharingModel | None = None,
    node_cores: float = 1.0,
    speeds: NodeSpeeds | None = None,
    needs: NeedsModel | None = None,
) -> Simulation:
    """Simulate `jobs`, in order of submission, and record their schedule; the results equal those of `simulate`.

    `name` is the name of the schedule, by default that of the overheads. `sharing`, `speeds`, `needs` and the errors
    are as for `simulate`. Shares that move are in cores of nodes with `node_cores` each.
    """
    nodes = len(node_names)
    compiling = NEVER if len(jobs) <= _MANY_JOBS else Compiling(When.IF_SOONER)
    run = simulate(
        jobs, nodes, policy, overheads, node_memory_gb=node_memory_gb, compiling=compiling, record=True,
        sharing=sharing, speeds=speeds, needs=needs,
    )  # fmt: skip
    spans = _Spans(jobs, time_scale)
    decisions: list[SimulatedDecision] = []
    placed: dict[int, Placement] = {}
    for time_s, changes in run.decided():
        for change in changes:
            spans.take(change)
            placed[change.row] = change
        placed = {row: each for row, each in sorted(placed.items()) if each.nodes and run.end_s[row] > time_s}
        running = {jobs[row].job_id: (each.nodes, each.yield_frac) for row, each in placed.items()}
        decisions.append(SimulatedDecision(time_s, running))
    schedule = Schedule(
        name=name or f"simulated, {overheads.name}",
        spans=spans.finish(run),
        jobs=_facts(run, time_scale),
        nodes=nodes,
        node_names=tuple(node_names),
        time_scale=time_scale,
        end_s=float(run.end_s.max()) / time_scale,
        share_moves=simulated_moves(run, time_scale, node_cores),
        policy=policy.name,
    )
    return Simulation(run, schedule, policy, overheads, node_memory_gb, decisions)


def _facts(run: SimulatedRun, time_scale: float) -> dict[int, JobFacts]:
    return {
        job.job_id: JobFacts(
            job=job.job_id,
            state=DONE,
            tasks=job.tasks,
            cpu_need_frac=job.cpu_need_frac,
            mem_req_frac=job.mem_req_frac,
            submit_s=job.submit_time_s / time_scale,
            start_s=float(run.start_s[row]) / time_scale,
            end_s=float(run.end_s[row]) / time_scale,
            preemptions=int(run.preemptions[row]),
            migrations=int(run.migrations[row]),
            penalty_s=float(run.penalty_s[row]) / time_scale,
        )
        for row, job in enumerate(run.jobs)
    }


class _Spans:
    """Builder of spans from successive placements."""

    def __init__(self, jobs: Sequence[Job], time_scale: float) -> None:
        self._jobs = jobs
        self._scale = time_scale
        self._spans: list[Span] = []
        self._now: dict[int, Placement] = {}

    def take(self, new: Placement) -> None:
        """Apply a changed placement of a job: its earlier spans end."""
        now = self._now.get(new.row)
        if now is not None:
            self._close(now, new.time_s)
        if new.nodes:
            self._now[new.row] = new

    def _close(self, was: Placement, end_s: float) -> None:
        del self._now[was.row]
        free_s = min(max(was.free_at_s, was.time_s), end_s)
        for kind, begin_s, until_s in ((RESTORE, was.time_s, free_s), (RUN, free_s, end_s)):
            if begin_s < until_s:
                job, begin_wall_s, until_wall_s = (
                    self._jobs[was.row].job_id,
                    begin_s / self._scale,
                    until_s / self._scale,
                )
                self._spans += [
                    Span(job, task, node, begin_wall_s, until_wall_s, kind, was.yield_frac)
                    for task, node in enumerate(was.nodes)
                ]

    def finish(self, run: SimulatedRun) -> list[Span]:
        """Return all spans; the last spans of each job end with the job."""
        for now in list(self._now.values()):
            self._close(now, float(run.end_s[now.row]))
        return self._spans


def simulate_run(run: Path, overheads: Overheads | None = None, speeds: NodeSpeeds | None = None) -> Simulation:
    """Simulate the jobs of a run directory on as many nodes under its policy.

    `speeds` are the node speeds, None for constant ones; they are used under policies that `can_pace`.

    `overheads` default to the run's measured mean penalty, in trace seconds, for every resume and migration, or to none
    if the run measured none. Overheads of a file are wall seconds of the lab, and are multiplied by the run's time
    scale; those of other models are trace seconds already. If all nodes are on one machine, the number of tasks that
    move at once is counted over the whole cluster instead of per node, because the nodes share cores and disk. Work in
    CPU time progresses at the yield, because caps are CPU time; measured rates of progress are those of units. Run
    times are those on dedicated nodes (jobs.csv), and batch policies get the estimates that the run's policy got.
    Raises `UserError` if a file of the run is missing or broken, and as `simulate_schedule` does.
    """
    manifest: Mapping[str, Any] = read_json(run / "manifest.json")
    try:
        names = tuple(manifest["nodes"])
        time_scale = float(manifest["clocks"]["time_scale"])
        policy = parse(manifest["policy"], manifest["period_s"] or manifest["scenario"]["period_s"])
        memory_gb = manifest["scenario"]["nodes"][0]["memory_mib"] * 2**20 / 1e9
        node_cores = float(manifest["nodes"][names[0]].get("cpus", 1.0))
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(f"{run / 'manifest.json'}: expected the manifest of a run: {error!r}") from error
    penalties_s: list[float] = []
    estimates: dict[int, float] = {}
    traced: dict[int, TraceJob] = {}
    for event in read_events(run / "events.jsonl", never if policy.needs_estimates else is_decision):
        if isinstance(event, Rescheduling):
            penalties_s.append(event.penalty_s)
        elif isinstance(event, Decision):
            estimates.update(_estimates(event.view))
        elif isinstance(event, Replay):
            traced |= {job.job: job for job in event.trace}
        elif isinstance(event, Arrived):  # in a served run
            traced[event.arrival.job] = event.arrival
    name = ""
    if overheads is None:
        overheads = constant(sum(penalties_s) / len(penalties_s) * time_scale if penalties_s else 0.0)
        name = f"simulated, penalty {float(overheads.resume_s[0, 0]):.3g} s" if penalties_s else "simulated, no penalty"
    overheads = _in_run(overheads, manifest, time_scale)
    jobs = read_jobs(run / "jobs.csv", estimates, traced)
    needs = needs_of(jobs, policy, _needs_model(manifest["scenario"], time_scale))
    return simulate_schedule(
        jobs, names, policy, overheads, node_memory_gb=memory_gb, time_scale=time_scale, name=name,
        sharing=_sharing(manifest["scenario"], time_scale), node_cores=node_cores,
        speeds=speeds if can_pace(policy) and needs is None else None, needs=needs,
    )  # fmt: skip


def _in_run(overheads: Overheads, manifest: Mapping[str, Any], time_scale: float) -> Overheads:
    if overheads.wall_clock:
        overheads = overheads.scaled(time_scale)
    if work_is_cpu_time(manifest):
        overheads = replace(overheads, progress=None)
    if overheads.per_node and _on_one_machine(manifest["nodes"]):
        overheads = replace(overheads, per_node=False)
    return overheads


def _needs_model(scenario: Mapping[str, Any], time_scale: float) -> NeedsModel:
    """Return the model of CPU needs: their profile over the work of the scenario's programs, and the nodes' window."""
    profile = parts_of(scenario.get("programs", {}).get("profile") or WHOLE)
    return NeedsModel(
        tuple((begins / WHOLE_PARTS, part / WHOLE_PARTS) for begins, part in profile),
        window_s=NEED_WINDOW_S * time_scale,
    )


def _of_trace(told: TraceJob | None) -> dict[str, Any]:
    """Return the properties of a job that the journal has and jobs.csv lacks."""
    if told is None:
        return {}
    return {"urgent": told.urgent, "weight": told.weight, "least_yield_frac": told.least_yield_frac,
            "true_need_frac": told.true_need_frac}  # fmt: skip


def _sharing(scenario: Mapping[str, Any], time_scale: float) -> SharingModel:
    """Return the model of jobs that compete by shares, with the periods of their exchange in trace seconds."""
    programs, shares = scenario.get("programs", {}), scenario.get("shares", {})
    plain = SharingModel()
    return SharingModel(
        tuple(programs.get("topologies", plain.topologies)), programs.get("imbalance", plain.imbalance),
        shares.get("period_s", plain.period_s) * time_scale, shares.get("grant_s", plain.grant_s) * time_scale,
        programs.get("iteration_s", plain.iteration_s) * time_scale,
    )  # fmt: skip


def _on_one_machine(nodes: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether all agents have the same address."""
    addresses = {facts.get("address") for facts in nodes.values()}
    return len(addresses) == 1 and None not in addresses


def _estimates(view: View) -> dict[int, float]:
    return {job: told for job, told in zip(view.job_id, view.estimate_s, strict=True) if told is not None}


def read_jobs(path: Path, estimates: Mapping[int, float], traced: Mapping[int, TraceJob]) -> list[Job]:
    """Read the jobs of a run's jobs.csv, in order of submission. Raises `UserError`."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            jobs = [
                Job(
                    job_id=int(row["job_id"]),
                    submit_time_s=float(row["submit_time_s"]),
                    tasks=int(row["tasks"]),
                    cpu_need_frac=float(row["cpu_need_frac"]),
                    mem_req_frac=float(row["mem_req_frac"]),
                    run_time_s=float(row["run_time_s"]),
                    estimate_s=estimates.get(int(row["job_id"])),
                    **_of_trace(traced.get(int(row["job_id"]))),
                )
                for row in csv.DictReader(file)
            ]
    except OSError as error:
        raise UserError(
            f"{path}: cannot read: {error.strerror}; expected the jobs of a run that ended or was aborted"
        ) from error
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path}: expected the columns and numbers of a run's jobs: {error!r}") from error
    if not jobs:
        raise UserError(f"{path}: no jobs: expected at least one")
    return sorted(jobs, key=lambda job: job.submit_time_s)
