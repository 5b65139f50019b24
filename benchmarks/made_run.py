"""A large synthetic run directory: the schedule of a simulated trace, journalled and measured as a live run would be.

Decisions are those of the policy, with their views. Operations take a fixed time and a time by memory, with noise from
seeded generators. Samples of nodes and guests are added until the wanted number of points is reached.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from testbed.measure.points import Value
from testbed.measure.rundir import RunDirectory
from testbed.run.decisions import decision_event
from testbed.run.events import Begin, Replay, Unknown
from testbed.run.events import Event as RunEvent
from testbed.run.journal import convert, plain
from testbed.scheduling.bound.max_stretch import bound
from testbed.scheduling.metrics import bounded_stretch
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.loading import use_compiled
from testbed.scheduling.policies.view import ClusterView, Decision, Event, Policy
from testbed.scheduling.simulation.loop import run_loop
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.run import Placement, SimulatedRun
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.synthetic import synthetic_trace

POLICY = "GreedyPM */per/OPT=MIN/MINVT=600"
MEMORY_MIB = 8192
WALL_S = 3600.0
ANCHOR_NS = 1_795_256_977_605_226_883
REPLAY_BEGIN_S = 12.0
CAP_WINDOW_S = 10.0


@dataclass
class Shape:
    """The number of points by measurement, of entries of the journal, and of reschedulings."""

    points: Counter[str] = field(default_factory=Counter)
    entries: int = 0
    reschedulings: int = 0
    jobs: int = 0
    nodes: int = 0


class _Recording:
    """The policy, whose decisions are recorded."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.decisions: list[tuple[float, dict[str, object], int, float, float]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._policy, name)

    def decide(self, view: ClusterView, event: Event) -> Decision:
        decision = self._policy.decide(view, event)
        entry = plain(decision_event((0.0, 0.0), 0.0, POLICY, view, event, decision))
        need = view.tasks * view.cpu_need_frac
        useful = float((need * decision.yield_frac).sum())
        running = int((decision.yield_frac > 0).sum())
        self.decisions.append((float(view.time_s), entry, running, float(need.sum()), useful))
        return decision


@dataclass
class _Stay:
    """A task between two changes: wall seconds since the replay began."""

    job: int
    task: int
    node: int
    begin_s: float
    end_s: float
    cap_cores: float


class _Maker:
    """Journals placements, and converts their trace seconds to wall seconds."""

    def __init__(self, directory: RunDirectory, jobs: list[Job], scale: float, seed: int) -> None:
        self.directory, self.jobs, self.scale = directory, jobs, scale
        self.draw = random.Random(seed)  # noqa: S311  # made-up measurements
        self.entries: list[tuple[float, int, str, dict[str, object]]] = []
        self.measured: list[tuple[float, str, dict[str, str], dict[str, Value]]] = []
        self.stays: list[_Stay] = []
        self.now: dict[int, tuple[tuple[int, ...], float, float]] = {}
        self.busy_s: dict[int, float] = {}
        self.saved: dict[int, tuple[float, float]] = {}  # by row: when images were complete, seconds of the save
        self.records: dict[int, list[dict[str, object]]] = {}
        self.actions = 0

    def say(self, at_s: float, kind: str, **entry: object) -> None:
        self.entries.append((at_s, len(self.entries), kind, entry))

    def point(self, at_s: float, name: str, tags: Mapping[str, str], fields: Mapping[str, Value]) -> None:
        self.measured.append((at_s, name, dict(tags), dict(fields)))

    def operation(self, at_s: float, row: int, verb: str, nodes: tuple[int, ...], share: float, moved: int) -> float:
        """Journal an intent and its outcome; return the time of the outcome."""
        job = self.jobs[row].job_id
        begin_s = max(at_s, self.busy_s.get(row, 0.0))
        fixed_s, gb_per_s = (0.01, math.inf) if verb == "cap" else (0.3, 0.5)
        elapsed_s = (fixed_s + moved / 1e9 / gb_per_s) * self.draw.lognormvariate(0.0, 0.2)
        self.actions += 1
        common: dict[str, object] = {"action": self.actions, "verb": verb, "job": job, "nodes": list(nodes)}
        guests = [f"dfrs-bench-j{job}-t{task}" for task in range(len(nodes))]
        self.say(begin_s, "intent", **common, yield_frac=share, guests=guests)
        end_s = begin_s + elapsed_s
        self.say(
            end_s, "outcome", **common, ok=True, error=None, elapsed_s=elapsed_s, waited_s=begin_s - at_s, bytes=moved
        )
        tags = {"job": str(job), "verb": verb}
        fields: dict[str, Value] = {
            "elapsed_s": elapsed_s, "waited_s": begin_s - at_s, "bytes": moved, "ok": True,
        }  # fmt: skip
        self.point(end_s, "action", tags, fields)
        for node in set(nodes):
            trip_s = self.draw.lognormvariate(-6.5, 0.5)
            self.point(begin_s + trip_s, "bus", {"node": f"node-{node:03}"}, {"round_trip_s": trip_s})
        self.busy_s[row] = end_s
        return end_s

    def state(self, at_s: float, row: int, state: str) -> None:
        job = self.jobs[row].job_id
        self.say(at_s, "job", job=job, state=state)
        self.point(at_s, "job", {"job": str(job)}, {"state": state, "trace_s": at_s * self.scale})

    def leave(self, row: int, at_s: float) -> None:
        nodes, share, since_s = self.now.pop(row)
        job = self.jobs[row]
        self.stays += [
            _Stay(job.job_id, task, node, since_s, at_s, share * job.cpu_need_frac)
            for task, node in enumerate(nodes)
            if at_s > since_s
        ]

    def take(self, placed: Placement) -> None:
        """Journal a decision for a job."""
        row, at_s = placed.row, placed.time_s / self.scale
        now = self.now.get(row)
        if not placed.nodes:
            if now is not None:
                self.leave(row, at_s)
                self.state(at_s, row, "paused")
                end_s = self.operation(at_s, row, "save", now[0], 0.0, self.image_bytes(row))
                self.saved[row] = (end_s, end_s - at_s)
            return
        if now is None:
            self.enter(row, at_s, placed)
        elif sorted(now[0]) != sorted(placed.nodes):
            self.leave(row, at_s)
            self.state(at_s, row, "moving")
            end_s = self.operation(at_s, row, "save", now[0], 0.0, self.image_bytes(row))
            self.operation(end_s, row, "transfer", placed.nodes, 0.0, self.image_bytes(row))
            self.saved[row] = (end_s, end_s - at_s)
            self.enter(row, at_s, placed, reason="migration")
        elif now[1] != placed.yield_frac:
            nodes = now[0]
            self.leave(row, at_s)
            end_s = self.operation(at_s, row, "cap", nodes, placed.yield_frac, 0)
            self.now[row] = (nodes, placed.yield_frac, end_s)

    def enter(self, row: int, at_s: float, placed: Placement, reason: str = "preemption") -> None:
        verb = "restore" if row in self.saved else "start"
        if reason == "preemption":
            self.state(at_s, row, "resumed" if verb == "restore" else "running")
        moved = self.image_bytes(row) if verb == "restore" else 0
        end_s = self.operation(at_s, row, verb, placed.nodes, placed.yield_frac, moved)
        first_s = self.draw.uniform(0.01, 0.2)
        job = self.jobs[row].job_id
        for task, node in enumerate(placed.nodes):
            self.say(end_s + first_s, "guest", job=job, task=task, node=node, event="progress", detail={"units": 1})
        self.now[row] = (placed.nodes, placed.yield_frac, end_s + first_s)
        if verb == "restore":
            self.rescheduling(row, at_s, end_s, first_s, reason, moved)
        self.busy_s[row] = end_s + first_s

    def rescheduling(self, row: int, at_s: float, end_s: float, first_s: float, reason: str, moved: int) -> None:
        saved_at_s, save_s = self.saved.pop(row)
        transfer_s = 0.6 * save_s if reason == "migration" else 0.0
        phases = {
            "save_s": save_s, "paused_s": max(0.0, at_s - saved_at_s), "wait_s": 0.0, "transfer_s": transfer_s,
            "restore_s": end_s - max(at_s, saved_at_s), "live_s": 0.0, "downtime_s": 0.0, "first_progress_s": first_s,
            "hold_skew_s": 0.001, "release_skew_s": 0.001,
        }  # fmt: skip
        parts = ("save_s", "wait_s", "transfer_s", "restore_s", "downtime_s", "first_progress_s")
        phases["penalty_s"] = sum(phases[part] for part in parts)
        amounts = {
            "saved_bytes": moved, "transferred_bytes": moved if reason == "migration" else 0, "restored_bytes": moved,
            "migrated_bytes": 0,
        }  # fmt: skip
        job = self.jobs[row].job_id
        tags = {"reason": reason, "mechanism": "save-restore"}
        entry = {"job": job, **tags, "moved_tasks": 0, **amounts, **phases}
        self.say(end_s + first_s, "rescheduling", **entry)
        self.point(end_s + first_s, "rescheduling", {"job": str(job), **tags}, {**phases, **amounts})
        self.records.setdefault(row, []).append(entry)

    def image_bytes(self, row: int) -> int:
        job = self.jobs[row]
        return int(job.tasks * job.mem_req_frac * MEMORY_MIB * 2**20)

    def finish(self, run: SimulatedRun) -> None:
        for row, job in enumerate(self.jobs):
            self.state(job.submit_time_s / self.scale, row, "submitted")
            end_s = max(float(run.end_s[row]) / self.scale, self.busy_s.get(row, 0.0))
            nodes = self.now[row][0]
            self.leave(row, end_s)
            for task, node in enumerate(nodes):
                self.say(end_s, "guest", job=job.job_id, task=task, node=node, event="done", detail={"units": 2})
            self.state(end_s, row, "done")


def make_run(path: Path, *, points: int, jobs: int, nodes: int, seed: int = 1) -> Shape:
    """Make a run directory of about `points` points, at least those of its schedule; return its counts."""
    trace = synthetic_trace(nodes, jobs, seed)
    policy = _Recording(parse(POLICY))
    use_compiled(parse(POLICY))
    run = run_loop(trace, nodes, policy, constant(300.0).table(8.0), record=True, views=True)  # type: ignore[arg-type]  # it replaces a policy
    scale = float(run.end_s.max()) / WALL_S
    tags = {"run": path.name, "lab": "made", "policy": POLICY}
    directory = RunDirectory(path, tags)
    directory.open()
    maker = _Maker(directory, trace, scale, seed)
    for _, changes in run.decided():
        for placed in changes:
            maker.take(placed)
    maker.finish(run)
    _decisions(maker, policy)
    _caps(maker)
    _samples(maker, points - len(maker.measured), nodes)
    shape = Shape(jobs=jobs, nodes=nodes, reschedulings=sum(map(len, maker.records.values())))
    _write(maker, path, shape)
    _results(maker, run, nodes)
    directory.close()
    return shape


def _decisions(maker: _Maker, policy: _Recording) -> None:
    for time_s, entry, running, demand, useful in policy.decisions:
        at_s, decide_s = time_s / maker.scale, maker.draw.lognormvariate(-7.0, 0.6)
        maker.say(at_s, **{**entry, "decide_s": decide_s})
        view = entry["view"]
        count = len(view["job_id"]) if isinstance(view, dict) else 0
        maker.point(at_s, "decision", {}, {
            "decide_s": decide_s, "jobs": count, "running": running, "min_yield_frac": 0.5, "demand_frac": demand,
            "useful_frac": useful,
        })  # fmt: skip


def _caps(maker: _Maker) -> None:
    for stay in maker.stays:
        tags = {"node": f"node-{stay.node:03}", "job": str(stay.job), "task": str(stay.task)}
        for window in range(int((stay.end_s - stay.begin_s) // CAP_WINDOW_S)):
            used = stay.cap_cores * (1 + maker.draw.gauss(-0.003, 0.008))
            maker.point(stay.begin_s + (window + 1) * CAP_WINDOW_S, "cap", tags, {
                "requested_cores": stay.cap_cores, "achieved_cores": used, "window_s": CAP_WINDOW_S,
            })  # fmt: skip


def _samples(maker: _Maker, left: int, nodes: int) -> None:
    """Write the remaining points: samples of nodes, guests and supersteps at even intervals."""
    parallel = {job.job_id for job in maker.jobs if job.tasks > 1}
    weights = [(stay.end_s - stay.begin_s) * (2 if stay.job in parallel else 1) for stay in maker.stays]
    if left <= 0:
        return
    every_s = (nodes * WALL_S + sum(weights)) / left
    draw = maker.draw
    for step in range(int(WALL_S / every_s)):
        at_s = (step + 0.5) * every_s
        for node in range(nodes):
            maker.point(at_s, "node", {"node": f"node-{node:03}"}, {
                "cpu_frac": draw.random(), "memory_used_mib": draw.uniform(500, 8000), "disk_read_mib": at_s * 3,
                "disk_written_mib": at_s * 4, "net_received_mib": at_s, "net_sent_mib": at_s, "agent_cpu_s": at_s / 90,
                "agent_rss_mib": 41.5,
            })  # fmt: skip
    for stay in maker.stays:
        tags = {"node": f"node-{stay.node:03}", "job": str(stay.job), "task": str(stay.task)}
        for step in range(math.ceil(stay.begin_s / every_s - 0.5), math.ceil(stay.end_s / every_s - 0.5)):
            at_s = (step + 0.5) * every_s
            maker.point(at_s, "guest", tags, {
                "cap_cores": stay.cap_cores, "cpu_s": at_s * stay.cap_cores, "rss_mib": draw.uniform(60, 800),
                "read_mib": 0.0, "written_mib": 0.0, "units_done": int(at_s * 20000),
            })  # fmt: skip
            if stay.job in parallel:
                mean_s = draw.lognormvariate(-3.2, 0.1)
                maker.point(at_s, "superstep", tags, {
                    "steps": 25, "mean_s": mean_s, "max_s": mean_s * (1 + draw.expovariate(3)),
                    "compute_s": 20 * mean_s, "comm_s": 5 * mean_s,
                })  # fmt: skip


def known(entry: Mapping[str, object]) -> RunEvent:
    """Return the event of an entry of a kind that this version has."""
    event = convert(entry)
    if isinstance(event, Unknown):
        raise TypeError(f"{event.kind}: expected a kind of this version")
    return event


def _write(maker: _Maker, path: Path, shape: Shape) -> None:
    directory = maker.directory
    names = [f"node-{node:03}" for node in range(shape.nodes)]
    facts = {
        "cpus": 1.0,
        "memory_mib": MEMORY_MIB,
        "machine_cores": 1,
        "driver": "null",
        "kernel": "made",
        "capabilities": [],
    }
    scenario = {
        "name": "made", "description": "A made run", "time_scale": maker.scale, "period_s": 600.0, "seed": 1,
        "nodes": [{"name": name, "memory_mib": MEMORY_MIB} for name in names],
        "programs": {"serial": "eatcpu", "parallel": "patterns"}, "bound": {"kind": "theorem1", "tau_s": 10.0},
    }  # fmt: skip
    clocks = {"anchor_unix_ns": ANCHOR_NS, "replay_begin_s": REPLAY_BEGIN_S, "time_scale": maker.scale}
    directory.journal(Begin(0.0, 0.0, scenario="made", policy=POLICY, run_tag="made"))
    directory.write_manifest({
        "run": path.name, "run_tag": "made", "policy": POLICY, "period_s": 600.0, "seed": 1, "scenario": scenario,
        "versions": {}, "controller": {}, "nodes": dict.fromkeys(names, facts), "clocks": clocks,
    })  # fmt: skip
    directory.journal(Replay(REPLAY_BEGIN_S, 0.0, jobs=shape.jobs))
    for at_s, _number, kind, entry in sorted(maker.entries, key=lambda each: each[:2]):
        times = {"t_s": round(REPLAY_BEGIN_S + at_s, 6), "trace_s": round(at_s * maker.scale, 3)}
        directory.journal(known({**entry, **times, "kind": kind}))
    for at_s, name, tags, fields in sorted(maker.measured, key=lambda each: each[0]):
        directory.point(name, tags, fields, ANCHOR_NS + int((REPLAY_BEGIN_S + at_s) * 1e9))
        shape.points[name] += 1
    shape.entries = len(maker.entries) + 2


def _results(maker: _Maker, run: SimulatedRun, nodes: int) -> None:
    stretches = bounded_stretch([end - job.submit_time_s for end, job in zip(run.end_s, run.jobs, strict=True)],
                                [job.run_time_s for job in run.jobs])  # fmt: skip
    rows = []
    for row, job in enumerate(run.jobs):
        own = maker.records.get(row, [])
        moved = sum(int(str(entry[key])) for entry in own for key in entry if key.endswith("_bytes"))
        rows.append((
            job.job_id, job.submit_time_s, job.tasks, job.cpu_need_frac, job.mem_req_frac, job.run_time_s,
            round(float(run.start_s[row]), 3), round(float(run.end_s[row]), 3), round(float(stretches[row]), 6),
            job.run_time_s, int(run.preemptions[row]), int(run.migrations[row]),
            sum(float(str(entry["penalty_s"])) for entry in own), moved, 0,
        ))  # fmt: skip
    maker.directory.write_jobs(rows)
    lower = bound(list(run.jobs), nodes)
    metrics: dict[str, tuple[float, str]] = {
        "max_stretch": (float(stretches.max()), "1"), "mean_stretch": (float(stretches.mean()), "1"),
        "bound": (lower, "1"), "degradation": (float(stretches.max()) / lower, "1"),
        "preemptions": (int(run.preemptions.sum()), "count"), "migrations": (int(run.migrations.sum()), "count"),
        "makespan_trace": (float(run.end_s.max()), "trace s"), "makespan_wall": (WALL_S, "wall s"),
    }  # fmt: skip
    maker.directory.write_summary({
        "scenario": "made", "policy": POLICY, "complete": True, "jobs": len(rows), "done": len(rows), "failed": {},
        "stretch_bound_s": 10.0, "bound_kind": "theorem1",
        "metrics": {name: {"value": value, "unit": unit} for name, (value, unit) in metrics.items()},
    })  # fmt: skip
