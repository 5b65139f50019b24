"""One run from its beginning to its end: directory, lab, lease, calibration, replay, teardown, results."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec

from testbed import __version__
from testbed.bus.drivers import traits_in
from testbed.bus.failure_codes import Failure
from testbed.bus.messages import NodeFacts
from testbed.bus.migration import Destination
from testbed.bus.protocol import Bus
from testbed.bus.results import Verdicts
from testbed.control.admission import check_disk, check_jobs, check_programs
from testbed.control.clock import ReplayClock
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.conductor import Conductor
from testbed.control.dedicated import Shape, measure, representatives
from testbed.control.order_socket import taking_orders
from testbed.control.recorder import Recorder
from testbed.control.result_checks import check_results, results_event
from testbed.control.results import job_row, summarize
from testbed.control.snapshot import Display, UseMeter, take_snapshot
from testbed.control.work_rates import MeasuredRates, WorkRates
from testbed.errors import FailureCode, RunError, TestbedError
from testbed.lab.bring_up import BringUp, dry_lab
from testbed.lab.core_speed import measure_core
from testbed.lab.ended_by import ended_by, ended_by_error_of
from testbed.lab.fleet import Fleet, limit_text
from testbed.lab.guests import PreparedJob, check_floor, check_images, prepare_jobs
from testbed.lab.lab import Lab, addresses_of
from testbed.lab.leased import lease_scenario
from testbed.lab.live_migration import LiveMigration
from testbed.lab.migration_targets import migration_targets
from testbed.lab.node_facts import check_alike
from testbed.lab.operations import Operations
from testbed.measure.recorders import Recorders, make_recorders
from testbed.measure.rundir import RunDirectory
from testbed.run import events
from testbed.scenario.schema import Scenario
from testbed.scheduling.policies.view import Policy
from testbed.scheduling.workload.jobs import Job

SNAPSHOT_S = 0.25
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The run directory and its summary.json."""

    path: Path
    summary: dict[str, object]


async def run_session(
    scenario: Scenario, policy: Policy, jobs: Sequence[Job], path: Path, open_lab: BringUp, display: Display
) -> RunResult:
    """Replay `jobs` under `policy` on a lab and write the run directory `path`.

    Measured data is always kept: on cancellation the results so far are written, marked incomplete, and
    `CancelledError` is raised again. When the run directory cannot be written any more the run is ended: guests are
    destroyed, the lab is taken down, and results are written as far as they fit. Raises `UserError` for errors that the
    user can fix, `RunError` otherwise; a dry run also raises `PointError`, at its end, if a point did not fit the
    schema.
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
        if open_lab is not dry_lab:  # whose guests have no memory, and whose images are a few bytes
            check_disk(path, scenario)
        async with open_lab(scenario, path, f"controller-{run_tag}") as bus:
            await session.drive(bus)
            teardown_s = loop.time()
        elapsed_s = loop.time() - teardown_s
        recorder.journal(events.Teardown(*recorder.times(), elapsed_s=round(elapsed_s, 6)))
        if open_lab is not dry_lab:  # compared with the anchor it shows whether the wall clock was set
            recorder.journal(events.Clock(*recorder.times(), unix_ns=time.time_ns()))
        recorder.stage("teardown", elapsed_s)
        directory.sync()
        result = session.finish(complete=True)
    except BaseException as error:
        directory.begin_results()
        recorder.journal(events.Aborted(*recorder.times(), reason=str(error) or type(error).__name__))
        if not session.replays and isinstance(error, TestbedError):
            directory.discard()  # no data was measured: a refused run leaves no directory
        else:
            session.keep(error)
        raise
    finally:
        recorder.close()
    if directory.failure is not None:  # only the end of the journal: the rest was durable before the results
        raise directory.failure
    if recorder.first_refusal is not None:
        display.line(clock.trace_s(), f"points left out, by field: {dict(recorder.refused)}; see the journal")
        if open_lab is dry_lab:
            raise recorder.first_refusal
    return result


@contextlib.asynccontextmanager
async def _ended_by_failure(directory: RunDirectory) -> AsyncIterator[None]:
    """Cancel the block when the run directory cannot be written, and raise the directory's failure instead."""
    loop = asyncio.get_running_loop()
    async with ended_by() as end:
        directory.on_failure = lambda failure: _call_soon(loop, partial(end, failure))  # maybe from a thread
        if directory.failure is not None:
            raise directory.failure
        yield


def _call_soon(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: there is no block to cancel
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
        self._addresses = addresses_of(scenario)
        self.cluster: Cluster | None = None
        self.replays = False  # whether data is being measured
        self._measured: MeasuredRates | None = None
        self._verdicts: Verdicts | None = None

    async def drive(self, bus: Bus) -> None:
        """Take the lab and replay the jobs."""
        scenario = self._scenario
        client = f"controller-{self._run_tag}"
        async with (
            lease_scenario(bus, scenario, client, acts=self._recorder.acts) as leased,
            _ended_by_failure(self._recorder.directory),
        ):
            fleet = leased.fleet
            leased.requester.on_round_trip = lambda node, round_trip_s: self._recorder.point(
                "bus", {"node": node}, {"round_trip_s": round_trip_s}
            )
            fleet.on_limit = lambda node, limit: self._recorder.limit(node.name, limit, limit_text(node.name, limit))
            await leased.ready(self._path)
            names = [node.name for node in fleet.nodes]
            facts = [fleet.facts(node.index) for node in fleet.nodes]
            check_alike(dict(zip(names, facts, strict=True)))
            for name, fact in zip(names, facts, strict=True):
                check_floor(self._jobs, name, fact.memory_mib, fact.guest_floor_mib)
            check_images(dict(zip(names, facts, strict=True)))
            self._targets(facts)  # before anything is measured
            check_programs(self._jobs, scenario, dict(zip(names, (fact.programs for fact in facts), strict=True)))
            self._display.line(0.0, self._headline)
            self._display.line(0.0, f"{len(facts)} nodes are there: {', '.join(names)}")
            rates = await self._rates(fleet)
            await self._replay(fleet, rates)

    async def _rates(self, fleet: Fleet) -> dict[Shape, float]:
        """Work units per second of a core for each kind of job of this run, measured unless given in the scenario."""
        programs = self._scenario.programs
        kinds = representatives(self._jobs, len(fleet.nodes))
        if programs.units_per_core_s is not None:
            rates = dict.fromkeys(kinds, programs.units_per_core_s)
            self._recorder.calibration(_by_name(rates))
            return rates
        self._display.line(0.0, f"measuring how fast each kind of job works alone: {'; '.join(map(str, kinds))}")
        core_units_per_s = await measure_core(fleet, self._scenario.deadlines.command_s)
        lab = Lab(self._scenario, fleet, self._run_tag, core_units_per_s, self._addresses)
        speeds: list[float] = []
        fleet.on_telemetry = lambda _node, record, _taken_ns: speeds.append(record.core_units_per_s)
        rates = await measure(lab, kinds)
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
                trace=tuple(map(_trace_job, jobs)),
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
        conductor.tracker.work_rates = WorkRates(
            self._measured, [node for node, fact in enumerate(facts) if traits_in(fact).runs_own_programs]
        )
        fleet.on_guest_event = conductor.tracker.guest_event
        fleet.on_telemetry = conductor.telemetry
        fleet.on_node_change = conductor.losses.node_changed
        recorder.stage("prepare", begin_s)
        watching = asyncio.create_task(fleet.watch(), name="watch nodes")
        beside = [watching, asyncio.create_task(self._show(conductor, fleet), name="display")]
        try:
            try:
                async with (
                    taking_orders(conductor.orders, self._path, dry=self._recorder.directory.is_dry),
                    ended_by_error_of(watching),
                ):
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
        self._recorder.journal(results_event(verdicts, self._recorder.times()))

    def _targets(self, facts: Sequence[NodeFacts]) -> Mapping[int, Destination]:
        """Return the destinations of live migrations."""
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
        """Write jobs.csv and summary.json from the present state; raises `RunError` if the write fails."""
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

        Raises `RunError` if they or earlier data could not be written, with a list of the kept data.
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


def _trace_job(prepared: PreparedJob) -> events.TraceJob:
    """Return a job of the trace for the journal: a run whose controller was killed has no other list of jobs."""
    job, spec = prepared.job, prepared.specs[0]
    return events.TraceJob(
        job=job.job_id,
        submit_time_s=job.submit_time_s,
        tasks=job.tasks,
        cpu_need_frac=job.cpu_need_frac,
        mem_req_frac=job.mem_req_frac,
        run_time_s=job.run_time_s,
        memory_mib=spec.memory_mib,
        cpu_cores=spec.cpu_cores,
    )


def _by_name(rates: Mapping[Shape, float]) -> dict[str, float]:
    return {str(shape): rate for shape, rate in rates.items()}
