"""One run from its beginning to its end: directory, lab, lease, calibration, replay, teardown, results."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec
import psutil

from testbed import __version__
from testbed.bus.lease import new_token
from testbed.bus.messages import Calibrate, NodeFacts
from testbed.bus.migration import Destination
from testbed.bus.protocol import Bus
from testbed.bus.requests import Requester
from testbed.control.addresses import guest_addresses
from testbed.control.clock import ReplayClock
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.conductor import Conductor
from testbed.control.dedicated import Shape, core_rate, measure, representatives
from testbed.control.ended_by import ended_by, ended_by_error_of
from testbed.control.fleet import Fleet, limit_text, rule_of
from testbed.control.guests import check_floor, check_images, prepare_jobs
from testbed.control.labs import OpenLab, dry_lab
from testbed.control.lease import hold_lease
from testbed.control.live_migration import LiveMigration
from testbed.control.local_agents import last_words
from testbed.control.migration_targets import migration_targets
from testbed.control.node_facts import check_alike
from testbed.control.operations import Operations
from testbed.control.recorder import Recorder
from testbed.control.result_checks import Verdicts, check_results
from testbed.control.results import job_row, summarize
from testbed.control.scenario import BoxTable, Scenario
from testbed.control.snapshot import Display, UseMeter, take_snapshot
from testbed.control.work_rates import MeasuredRates, WorkRates
from testbed.errors import RunError, TestbedError, UserError, nearest
from testbed.failure_codes import Failure, FailureCode
from testbed.limits import MOST_EVENTS
from testbed.measure.recorders import Recorders, make_recorders
from testbed.measure.rundir import RunDirectory
from testbed.policies.equipartition import Equipartition
from testbed.policies.view import Policy
from testbed.run import events
from testbed.workload.jobs import Job

SNAPSHOT_S = 0.25
_log = logging.getLogger(__name__)
CORE_CPU_S = 0.5


@dataclass(frozen=True, slots=True)
class RunResult:
    """Where the run was written, and its summary.json."""

    path: Path
    summary: dict[str, object]


def check_jobs(jobs: Sequence[Job], policy: Policy, scenario: Scenario) -> None:
    """Raise `UserError` for a policy or a job that can never run, before anything is started."""
    if isinstance(policy, Equipartition):
        raise UserError(
            f"policy {policy.name}: it shares one machine without places: expected one that nodes can follow"
        )
    shapes = {(node.cpus, node.memory_mib) for node in scenario.nodes}
    if len(shapes) > 1:
        raise UserError(f"nodes: expected the same cpus and memory_mib on every node, found {sorted(shapes)}")
    count = len(scenario.nodes)
    for job in jobs:
        if not policy.can_ever_run(job.tasks, job.mem_req_frac, count):
            raise UserError(
                f"job {job.job_id}: tasks = {job.tasks} with mem_req_frac = {job.mem_req_frac:g} do not fit on {count} "
                f"nodes under {policy.name}: expected a smaller job or more nodes"
            )


def check_events(jobs: Sequence[Job], policy: Policy, scenario: Scenario) -> None:
    """Raise `UserError` for a dry run that has more events than anybody would wait for, with the key that causes it.

    Each node reports once a wall second, a policy with a period acts at each multiple of it while there are jobs.
    """
    nodes, most = len(scenario.nodes), f"expected at most {MOST_EVENTS:.3g}"
    wall_s = max((job.submit_time_s + job.run_time_s for job in jobs), default=0.0) / scenario.time_scale
    if wall_s * nodes > MOST_EVENTS:
        raise UserError(
            f"time_scale = {scenario.time_scale:g}: a dry run of {wall_s:.3g} wall seconds on {nodes} nodes has "
            f"{wall_s * nodes:.3g} events: {most}, by a larger time_scale or a shorter trace"
        )
    longest_s = max((job.run_time_s for job in jobs), default=0.0)
    if policy.period_s and longest_s / policy.period_s > MOST_EVENTS:
        raise UserError(
            f"period_s = {policy.period_s:g}: a job of {longest_s:g} s has {longest_s / policy.period_s:.3g} periods: "
            f"{most}, by a longer period or shorter jobs"
        )


def check_disk(path: Path, scenario: Scenario) -> None:
    """Raise `UserError` if this machine has not the memory of one of its nodes, or no room for their images.

    Images need twice the nodes' memory: the source of a transfer is kept until its copy has made progress.
    """
    machine_mib = psutil.virtual_memory().total >> 20
    for index, node in enumerate(scenario.nodes):
        if node.spawn and node.driver != "null" and node.memory_mib > machine_mib:
            raise UserError(
                f"nodes.{index}.memory_mib = {node.memory_mib}: node {node.name} is on this machine, which has "
                f"{machine_mib} MiB: expected at most that"
            )
    need_mib = 2 * sum(node.memory_mib for node in scenario.nodes if node.spawn)
    free_mib = shutil.disk_usage(path).free >> 20
    if free_mib < need_mib:
        raise UserError(
            f"{path}: {free_mib} MiB free on its disk: expected at least {need_mib} MiB for images of saved guests, "
            "twice the memory_mib of all nodes on this machine; choose another place with --out, or smaller nodes"
        )


def check_programs(jobs: Sequence[Job], scenario: Scenario, programs: Mapping[str, Sequence[str]]) -> None:
    """Raise `UserError` if a node lacks a program that the jobs run.

    `programs` are those of each node, by its name; none if it does not say.
    """
    table = scenario.programs
    for parallel, key, name in ((False, "serial", table.serial), (True, "parallel", table.parallel)):
        if any((job.tasks > 1) == parallel for job in jobs):
            for node, known in programs.items():
                if known and name not in known:
                    raise UserError(
                        f"programs.{key} = {name!r}: node {node} has {', '.join(known)}"
                        + (nearest(name, known) or "; others are plug-ins, to be installed on the nodes")
                    )


async def run_session(
    scenario: Scenario, policy: Policy, jobs: Sequence[Job], path: Path, open_lab: OpenLab, display: Display
) -> RunResult:
    """Replay `jobs` under `policy` on a lab and write the run directory `path`.

    What was measured is kept whatever happens: on cancellation the results so far are written, marked incomplete, and
    `CancelledError` goes on. When the run directory cannot be written any more the run is ended: guests are destroyed,
    the lab is taken down, and results are written as far as they fit. Raises `UserError` for what the user can mend,
    `RunError` otherwise; a rehearsal also raises `PointError`, at its end, if a point did not fit the schema.
    """
    check_jobs(jobs, policy, scenario)
    run_tag = os.urandom(3).hex()
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    tags = {"run": path.name, "lab": scenario.lab, "policy": policy.name}
    directory = RunDirectory(
        path, tags, Recorders(make_recorders(scenario.recorders)), part_bytes=scenario.run.part_mib << 20,
        is_dry=open_lab is dry_lab,
    )  # fmt: skip
    directory.open()
    clock = ReplayClock(scenario.time_scale)
    recorder = Recorder(
        directory, lambda: loop.time() - begin_s, clock.trace_s, anchor_ns=time.time_ns(), watch=display.line,
        node_names=[node.name for node in scenario.nodes], tau_s=scenario.bound.tau_s,
    )  # fmt: skip
    recorder.journal(
        events.Begin(
            *recorder.times(), scenario=scenario.name, policy=policy.name, run_tag=run_tag, version=events.VERSION
        )
    )
    headline = (
        f"{'rehearsing' if open_lab is dry_lab else 'running'} {len(jobs)} jobs of {scenario.name} on "
        f"{len(scenario.nodes)} nodes under {policy.name}, {scenario.time_scale:g} trace seconds a second"
    )
    session = _Session(scenario, policy, jobs, path, run_tag, clock, recorder, display, headline)
    try:
        if open_lab is not dry_lab:  # whose guests have no memory, and images of some bytes
            check_disk(path, scenario)
        async with open_lab(scenario, path, f"controller-{run_tag}") as bus:
            await session.drive(bus)
            teardown_s = loop.time()
        elapsed_s = loop.time() - teardown_s
        recorder.journal(events.Teardown(*recorder.times(), elapsed_s=round(elapsed_s, 6)))
        if open_lab is not dry_lab:  # against the anchor it shows whether the wall clock was set
            recorder.journal(events.Clock(*recorder.times(), unix_ns=time.time_ns()))
        recorder.stage("teardown", elapsed_s)
        directory.sync()
        result = session.finish(complete=True)
    except BaseException as error:
        directory.begin_results()
        recorder.journal(events.Aborted(*recorder.times(), reason=str(error) or type(error).__name__))
        if not session.replays and isinstance(error, TestbedError):
            directory.discard()  # nothing was measured: a refused run leaves nothing
        else:
            session.keep(error)
        raise
    finally:
        recorder.close()
    if directory.failure is not None:  # only the end of the journal: all else was durable before the results
        raise directory.failure
    if recorder.first_refusal is not None:
        display.line(clock.trace_s(), f"points left out, by field: {dict(recorder.refused)}; see the journal")
        if open_lab is dry_lab:
            raise recorder.first_refusal
    return result


@contextlib.asynccontextmanager
async def _ended_by_failure(directory: RunDirectory) -> AsyncIterator[None]:
    """End what is inside the block when the run directory cannot be written, and raise its failure instead."""
    loop = asyncio.get_running_loop()
    async with ended_by() as end:
        directory.on_failure = lambda failure: _call_soon(loop, partial(end, failure))  # maybe from a thread
        if directory.failure is not None:
            raise directory.failure
        yield


def _call_soon(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is left to be ended
        loop.call_soon_threadsafe(act)


class _Session:
    """State of one run between its phases."""

    def __init__(
        self, scenario: Scenario, policy: Policy, jobs: Sequence[Job], path: Path, run_tag: str, clock: ReplayClock,
        recorder: Recorder, display: Display, headline: str,
    ) -> None:  # fmt: skip
        self._scenario = scenario
        self._policy = policy
        self._jobs = jobs
        self._path = path
        self._run_tag = run_tag
        self._clock = clock
        self._recorder = recorder
        self._display = display
        self._headline = headline
        self._addresses = guest_addresses((scenario.box or BoxTable()).guest_network)
        self.cluster: Cluster | None = None
        self.replays = False  # whether anything is measured
        self._measured: MeasuredRates | None = None
        self._verdicts: Verdicts | None = None

    async def drive(self, bus: Bus) -> None:
        """Take the lab and replay the jobs."""
        scenario = self._scenario
        token = new_token()
        requester = Requester(bus, scenario.lab, f"controller-{self._run_tag}", lambda: token)
        requester.on_round_trip = lambda node, round_trip_s: self._recorder.point(
            "bus", {"node": node}, {"round_trip_s": round_trip_s}
        )
        acts = self._recorder.acts
        requester.on_bad_reply = acts.note
        names = [node.name for node in scenario.nodes]
        fleet = Fleet(bus, scenario.lab, names, requester, rule_of(scenario.deadlines), scenario.nodes, acts)
        holding = hold_lease(
            bus, scenario.lab, token, scenario.deadlines.lease_ttl_s, on_controller_loss=scenario.on_controller_loss
        )
        fleet.on_limit = lambda node, limit: self._recorder.limit(node.name, limit, limit_text(node.name, limit))
        async with (
            holding,
            requester,
            _ended_by_failure(self._recorder.directory),
        ):
            await fleet.open()
            try:
                await fleet.wait_for_all(scenario.deadlines.announce_s)
            except UserError as error:
                raise UserError(f"{error}{last_words(self._path)}") from error
            await fleet.wait_until_empty(scenario.deadlines.announce_s)
            facts = [fleet.facts(node.index) for node in fleet.nodes]
            check_alike(dict(zip(names, facts, strict=True)))
            for name, fact in zip(names, facts, strict=True):
                check_floor(self._jobs, name, fact.memory_mib, fact.guest_floor_mib)
            check_images(dict(zip(names, (fact.capabilities for fact in facts), strict=True)))
            self._targets(facts)  # before anything is measured
            check_programs(self._jobs, scenario, dict(zip(names, (fact.programs for fact in facts), strict=True)))
            self._display.line(0.0, self._headline)
            self._display.line(0.0, f"{len(facts)} nodes are there: {', '.join(names)}")
            rates = await self._rates(fleet)
            await self._replay(fleet, rates)

    async def _rates(self, fleet: Fleet) -> dict[Shape, float]:
        """Work units a second of a core for each kind of job of this run, measured unless the scenario gives one."""
        programs = self._scenario.programs
        kinds = representatives(self._jobs, len(fleet.nodes))
        if programs.units_per_core_s is not None:
            rates = dict.fromkeys(kinds, programs.units_per_core_s)
            self._recorder.calibration(_by_name(rates))
            return rates
        self._display.line(0.0, f"measuring how fast each kind of job works alone: {'; '.join(map(str, kinds))}")
        core = await fleet.call(
            0, Calibrate(cpu_s=CORE_CPU_S), CORE_CPU_S * 10 + max(20.0, self._scenario.deadlines.command_s)
        )
        core_units_per_s = core_rate(fleet.nodes[0].name, core)
        operations = Operations(fleet, self._scenario.deadlines)
        speeds: list[float] = []
        fleet.on_telemetry = lambda _node, record, _taken_ns: speeds.append(record.core_units_per_s)
        rates = await measure(
            kinds, fleet, operations, self._scenario, self._run_tag, core_units_per_s, self._addresses
        )
        told = [speed for speed in speeds if speed > 0.0]
        probed_units_per_s = sum(told) / len(told) if told else None
        by_job = {job.job_id: rates[Shape.of(job)] for job in self._jobs}
        self._measured = MeasuredRates(core_units_per_s, by_job, probed_units_per_s or 0.0)
        self._recorder.journal(
            events.Calibration(
                *self._recorder.times(),
                core_units_per_s=core_units_per_s,
                probed_units_per_s=probed_units_per_s,
                units_per_core_s=_by_name(rates),
            )
        )
        self._recorder.calibration(_by_name(rates))
        return rates

    async def _replay(self, fleet: Fleet, rates: Mapping[Shape, float]) -> None:
        scenario, clock, recorder = self._scenario, self._clock, self._recorder
        facts = [fleet.facts(node.index) for node in fleet.nodes]
        jobs = prepare_jobs(
            self._jobs, scenario, self._run_tag, facts[0].cpus, facts[0].memory_mib, lambda job: rates[Shape.of(job)],
            self._addresses,
        )  # fmt: skip
        targets = self._targets(facts)
        begin_s = recorder.now_s()
        self.replays = True
        clock.start()
        self._write_manifest(fleet, rates)
        recorder.journal(
            events.Replay(
                *recorder.times(),
                jobs=len(jobs),
                trace=tuple([job.in_trace() for job in jobs]),
                nodes=tuple(recorder.node_names),
            )
        )
        history = recorder.history
        self.cluster = Cluster([LiveJob.of(job, history.jobs[job.job.job_id]) for job in jobs], history)
        operations = Operations(fleet, scenario.deadlines)
        migration = LiveMigration(
            fleet, operations, scenario.deadlines, scenario.migration, targets, recorder.migration
        )
        conductor = Conductor(
            self.cluster, self._policy, clock, operations, recorder, [fact.memory_mib for fact in facts],
            scenario.deadlines, migration, frozenset(targets),
            restarts=scenario.on_guest_loss == "restart",
        )  # fmt: skip
        conductor.tracker.work_rates = WorkRates(self._measured, {node: fact.driver for node, fact in enumerate(facts)})
        fleet.on_guest_event = conductor.tracker.guest_event
        fleet.on_telemetry = conductor.telemetry
        fleet.on_node_change = conductor.losses.node_changed
        recorder.stage("prepare", begin_s)
        watching = asyncio.create_task(fleet.watch(), name="watch nodes")
        beside = [watching, asyncio.create_task(self._show(conductor, fleet), name="display")]
        try:
            try:
                async with ended_by_error_of(watching):
                    await conductor.run()
            finally:
                fleet.resign()
                await conductor.close()
            recorder.stage("replay", recorder.now_s() - begin_s)
            await self._check_results(conductor, facts)
        finally:
            fleet.on_node_change = lambda _node, _change: None  # from here on agents end because the run stops them
            for task in beside:
                task.cancel()
            for name, ended in zip(
                ("watch nodes", "display"), await asyncio.gather(*beside, return_exceptions=True), strict=True
            ):
                if isinstance(ended, Exception):
                    _log.error("%s failed", name, exc_info=ended)

    async def _check_results(self, conductor: Conductor, facts: Sequence[NodeFacts]) -> None:
        """Compare results now that no job is measured any more; jobs whose result is wrong fail."""
        jobs = conductor.cluster.jobs
        verdicts = await check_results(
            jobs.values(), [fact.capabilities for fact in facts], self._scenario.programs.check_results_s
        )
        for job_id, reason in verdicts.wrong.items():
            self._recorder.fail(jobs[job_id], Failure(FailureCode.WRONG_RESULT, reason))
        self._verdicts = verdicts
        self._recorder.journal(verdicts.event(self._recorder.times()))

    def _targets(self, facts: Sequence[NodeFacts]) -> Mapping[int, Destination]:
        """Return where running jobs shall migrate live."""
        if self._scenario.migration.mechanism != "live":
            return {}
        names = [node.name for node in self._scenario.nodes]
        return migration_targets(self._scenario, dict(zip(names, facts, strict=True)))

    async def _show(self, conductor: Conductor, fleet: Fleet) -> None:
        meter = UseMeter()
        while True:
            self._display.show(
                take_snapshot(
                    conductor.cluster,
                    conductor.executor,
                    fleet,
                    meter,
                    self._clock.trace_s(),
                    self._clock.wall_s(),
                )
            )
            await asyncio.sleep(SNAPSHOT_S)

    def _write_manifest(self, fleet: Fleet, rates: Mapping[Shape, float]) -> None:
        scenario = self._scenario
        self._recorder.directory.write_manifest(
            {
                "run": self._path.name,
                "run_tag": self._run_tag,
                "policy": self._policy.name,
                "period_s": self._policy.period_s,
                "seed": scenario.seed,
                "scenario": scenario.model_dump(mode="json"),
                "versions": {
                    "testbed": __version__,
                    "python": platform.python_version(),
                    **{name: version(name) for name in ("numpy", "aiomqtt", "mpi4py", "mpich", "psutil")},
                },
                "controller": {"kernel": platform.release(), "cores": os.cpu_count()},
                "nodes": {node.name: msgspec.to_builtins(node.facts) for node in fleet.nodes},
                "units_per_core_s": _by_name(rates),
                "clocks": {
                    "anchor_unix_ns": self._recorder.anchor_ns,
                    "replay_begin_s": self._recorder.now_s(),
                    "time_scale": scenario.time_scale,
                    "note": "t_s counts from the anchor; trace second 0 is at replay_begin_s",
                },
            }
        )

    def finish(self, *, complete: bool) -> RunResult:
        """Write jobs.csv and summary.json from what is known now; raises `RunError` if they cannot be."""
        self._recorder.directory.begin_results()
        cluster = self.cluster or Cluster([], self._recorder.history)
        tau_s = self._scenario.bound.tau_s
        self._recorder.directory.write_jobs(job_row(live, tau_s) for live in cluster.jobs.values())
        ends = [live.state.end_trace_s for live in cluster.jobs.values()]
        trace_s = max((end_s for end_s in ends if end_s is not None), default=0.0)
        summary = {
            "scenario": self._scenario.name,
            **summarize(
                cluster,
                self._recorder,
                self._scenario.bound,
                nodes=len(self._scenario.nodes),
                policy=self._policy.name,
                complete=complete,
                wall_s=trace_s / self._scenario.time_scale,
                trace_s=trace_s,
            ),
            **({"results": self._verdicts.summary()} if self._verdicts is not None else {}),
        }
        self._recorder.directory.write_summary(summary)
        return RunResult(self._path, summary)

    def keep(self, error: BaseException) -> None:
        """The run was ended by `error`: write the results so far, as far as they fit.

        Raises `RunError` if that, or what was measured before, could not be written; it says what was kept.
        """
        directory = self._recorder.directory
        unwritten: RunError | None = None
        try:
            self.finish(complete=False)
        except RunError as no_room:
            unwritten = no_room
        failure = directory.failure or unwritten
        if failure is None:
            return
        results = ", ".join(name for name in ("jobs.csv", "summary.json") if (self._path / name).exists())
        raise RunError(
            f"{failure}: the run was ended and its guests destroyed; kept in {self._path}: {directory.kept()}, "
            + (results or "no results: there was no room for them")
        ) from error


def _by_name(rates: Mapping[Shape, float]) -> dict[str, float]:
    return {str(shape): rate for shape, rate in rates.items()}
