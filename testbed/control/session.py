"""One run from start to end: run directory, lab, lease, calibration, replay, teardown, results."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from testbed.bus.drivers import traits_in
from testbed.bus.failure_codes import Failure
from testbed.bus.messages import NodeFacts, OnControllerLoss
from testbed.bus.migration import Destination
from testbed.bus.protocol import Bus
from testbed.bus.results import Verdicts
from testbed.control.admission import check_disk, check_jobs, check_nodes
from testbed.control.clock import ReplayClock
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.conductor import Conductor
from testbed.control.data_failure import ended_by_failure
from testbed.control.dedicated import Shape
from testbed.control.fence_renewals import FenceRenewals
from testbed.control.lost_run import LostRun
from testbed.control.manifest import manifest_of, trace_job
from testbed.control.move_costs import known_costs, way_costs
from testbed.control.order_socket import taking_orders
from testbed.control.own_cpu import OwnCpu
from testbed.control.preparation import Preparation
from testbed.control.recorder import Recorder
from testbed.control.recovery import Recovery
from testbed.control.result_checks import check_results, results_event
from testbed.control.results import job_row, summarize
from testbed.control.serving import Serving
from testbed.control.snapshot import Display, UseMeter, take_snapshot
from testbed.control.work_rates import WorkRates
from testbed.errors import FailureCode, RunError, TestbedError
from testbed.lab.bring_up import BringUp, dry_lab
from testbed.lab.ended_by import ended_by_error_of
from testbed.lab.fences import FenceBook, check_clocks, note_unenforced
from testbed.lab.fleet import Fleet, limit_text
from testbed.lab.guests import PreparedJob, measure_of_work
from testbed.lab.lab_record import LabRecord
from testbed.lab.lease import holder_name
from testbed.lab.leased import LeasedLab, lease_scenario
from testbed.lab.live_migration import LiveMigration
from testbed.lab.migration_targets import migration_targets
from testbed.lab.operations import Operations
from testbed.lab.sharing import Sharing
from testbed.measure.provenance import packages, source
from testbed.measure.recorders import Recorders, make_recorders
from testbed.measure.run_lock import RunLock
from testbed.measure.rundir import RunDirectory
from testbed.run import events
from testbed.scenario.schema import Scenario
from testbed.scheduling.policies.view import Policy
from testbed.scheduling.policies.within import DividingPolicy
from testbed.scheduling.policies.xge_slots import partitions_of
from testbed.scheduling.workload.jobs import Job

SNAPSHOT_S = 0.25
KEPT_FROM_S = 600.0  # guests of longer runs outlive their controller, unless the scenario says otherwise
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The run directory and its summary.json."""

    path: Path
    summary: dict[str, object]


async def run_session(
    scenario: Scenario, policy: Policy, jobs: Sequence[Job], path: Path, open_lab: BringUp, display: Display, *,
    served: bool = False,
) -> RunResult:  # fmt: skip
    """Replay `jobs` under `policy` on a lab and write the run directory `path`.

    A `served` lab has no jobs at first: users submit them (`testbed.control.serving`) until the operator closes it.

    Measured data is always kept: on cancellation the results so far are written, marked incomplete, and
    `CancelledError` is raised again. When the run directory cannot be written any more, the run ends: guests are
    destroyed, the lab is taken down, and results are written as far as disk space permits. Raises `UserError` for
    errors that the user can fix, `RunError` otherwise. A dry run also raises `PointError` at its end if a point did not
    fit the schema.
    """
    check_jobs(jobs, policy, scenario)
    scenario = with_loss_rule(scenario, jobs, served=served)
    serving = Serving(scenario) if served else None
    run_tag = os.urandom(3).hex()
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    directory = _directory(path, scenario, policy, is_dry=open_lab is dry_lab)
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
    what = "serving jobs" if served else f"{len(jobs)} jobs of {scenario.name}"
    headline = (
        f"{'dry run of' if open_lab is dry_lab else 'running'} {what} on "
        f"{len(scenario.nodes)} nodes under {policy.name}, {scenario.time_scale:g} trace seconds per second"
    )
    session = _Session(scenario, policy, jobs, path, run_tag, clock, recorder, display, headline, serving=serving)
    return await _drive(session, open_lab)


async def resume_session(lost: LostRun, lock: RunLock, open_lab: BringUp, display: Display) -> RunResult:
    """Resume a run whose controller was lost; this process holds the `lock` of its directory.

    Data, cancellation and errors are as in `run_session`. If the run had ended, only its results are written.
    """
    scenario, path = lost.scenario, lost.path
    loop = asyncio.get_running_loop()
    begin_s = loop.time() - lost.now_s()
    directory = _directory(path, scenario, lost.policy, is_dry=open_lab is dry_lab)
    directory.go_on(lock)
    clock = ReplayClock(scenario.time_scale)
    clock.start_at(lost.trace_s)
    recorder = Recorder(
        directory, lambda: loop.time() - begin_s, clock.trace_s, anchor_ns=lost.anchor_ns, watch=display.line,
        node_names=[node.name for node in scenario.nodes], tau_s=scenario.bound.tau_s, past=lost.history,
        decide_s=list(lost.decide_s), cap_windows=list(lost.cap_windows), refused=Counter(lost.refused),
    )  # fmt: skip
    for torn in lost.torn:
        recorder.say(str(torn))
    active = len(lost.history.active)
    headline = f"resuming {path.name} under {lost.policy.name}: {active} jobs are in the system"
    session = _Session(
        scenario, lost.policy, lost.jobs, path, lost.run_tag, clock, recorder, display, headline, lost=lost,
        serving=Serving.resumed(scenario, lost) if lost.history.is_served else None,
    )  # fmt: skip
    if lost.history.ended:
        return _write_results(session, lost)
    recorder.journal(
        events.Resumed(
            *recorder.times(), since_s=round(lost.since_s, 6), by=holder_name(),
            torn_bytes=sum(torn.bytes for torn in lost.torn),
        )
    )  # fmt: skip
    if scenario.on_controller_loss == "keep":
        LabRecord.open(path).take_over()
    return await _drive(session, open_lab)


def _write_results(session: _Session, lost: LostRun) -> RunResult:
    """Write the results of a run whose controller was lost after the end of the run, but before its results."""
    recorder = session.recorder
    try:
        recorder.say("the run had ended: only its results are written")
        session.end_with(lost)
        result = session.finish(complete=not lost.history.aborted)
    finally:
        LabRecord.of(lost.path).remove()
        recorder.close()
    if recorder.directory.failure is not None:
        raise recorder.directory.failure
    return result


def with_loss_rule(scenario: Scenario, jobs: Sequence[Job], *, served: bool = False) -> Scenario:
    """Return the scenario with a value of `on_controller_loss`, chosen by the length of the run if it has none.

    A served lab keeps its guests. The length is the shortest possible one: the latest end of a job if each job runs at
    its submission, alone and at full speed.
    """
    if scenario.on_controller_loss is not None:
        return scenario
    least_s = max((job.submit_time_s + job.run_time_s for job in jobs), default=0.0) / scenario.time_scale
    rule: OnControllerLoss = "keep" if served or least_s > KEPT_FROM_S else "remove"
    return scenario.model_copy(update={"on_controller_loss": rule})


def _directory(path: Path, scenario: Scenario, policy: Policy, *, is_dry: bool = False) -> RunDirectory:
    """Return the run directory of a run, not opened yet."""
    tags = {"run": path.name, "lab": scenario.lab, "policy": policy.name}
    recorders = Recorders(make_recorders(scenario.recorders))
    return RunDirectory(path, tags, recorders, part_bytes=scenario.run.part_mib << 20, is_dry=is_dry)


async def _drive(session: _Session, open_lab: BringUp) -> RunResult:
    """Drive a session on its lab, and write its results; see `run_session`."""
    recorder, display, path = session.recorder, session.display, session.path
    directory, loop = recorder.directory, asyncio.get_running_loop()
    try:
        if not directory.is_dry:  # in a dry run guests have no memory, and images are a few bytes
            check_disk(path, session.scenario)
        async with open_lab(session.scenario, path, session.client) as bus:
            await session.drive(bus)
            teardown_s = loop.time()
        elapsed_s = loop.time() - teardown_s
        recorder.journal(events.Teardown(*recorder.times(), elapsed_s=round(elapsed_s, 6)))
        if not directory.is_dry:  # a comparison with the anchor shows whether the wall clock was set
            recorder.journal(events.Clock(*recorder.times(), unix_ns=time.time_ns()))
        recorder.stage("teardown", elapsed_s)
        directory.sync()
        result = session.finish(complete=True)
    except BaseException as error:
        if session.takes_over:  # agents and guests wait for the next controller
            recorder.say("the run was not taken over: it can be resumed again")
            raise
        directory.begin_results()
        recorder.journal(events.Aborted(*recorder.times(), reason=str(error) or type(error).__name__))
        if not session.replays and isinstance(error, TestbedError):
            directory.discard()  # no data was measured: a refused run leaves no directory
        else:
            session.keep(error)
        raise
    finally:
        if not session.takes_over:
            LabRecord.of(path).remove()
        recorder.close()
    if directory.failure is not None:  # this concerns only the end of the journal: the rest is durable already
        raise directory.failure
    if recorder.first_refusal is not None:
        display.line(recorder.trace_s(), f"points left out, by field: {dict(recorder.refused)}; see the journal")
        if directory.is_dry:
            raise recorder.first_refusal
    return result


class _Session:
    """The state of one run, from its start to its results."""

    def __init__(
        self, scenario: Scenario, policy: Policy, jobs: Sequence[Job], path: Path, run_tag: str, clock: ReplayClock,
        recorder: Recorder, display: Display, headline: str, lost: LostRun | None = None,
        serving: Serving | None = None,
    ) -> None:  # fmt: skip
        self.scenario = scenario
        self._policy = policy
        self._jobs = jobs
        self.path = path
        self.client = f"controller-{run_tag}"
        self._run_tag = run_tag
        self._clock = clock
        self.recorder = recorder
        self.display = display
        self._headline = headline
        self._lost = lost
        self._serving = serving
        self.takes_over = lost is not None  # until the takeover is complete
        self.cluster: Cluster | None = None
        self.replays = lost is not None  # whether data is being measured
        self._preparation = Preparation(scenario, policy, jobs, run_tag, serving, lost)
        self._verdicts: Verdicts | None = None
        self._leased_s = 0.0
        restarts = scenario.on_node_loss == "restart"
        self._book = FenceBook(scenario.deadlines.fence_for_s) if restarts else None
        source(), packages()  # fill the caches for the manifest: the first calls block, and must not delay the replay

    async def drive(self, bus: Bus) -> None:
        """Take the lab and replay the jobs."""
        scenario = self.scenario
        record = LabRecord.open(self.path) if scenario.on_controller_loss == "keep" else None
        async with (
            lease_scenario(
                bus, scenario, self.client, acts=self.recorder.acts, run=self._run_tag, record=record
            ) as leased,
            ended_by_failure(self.recorder.directory),
        ):
            fleet, self._leased_s = leased.fleet, asyncio.get_running_loop().time()
            leased.requester.on_round_trip = lambda node, round_trip_s: self.recorder.point(
                "bus", {"node": node}, {"round_trip_s": round_trip_s}
            )
            fleet.on_limit = lambda node, limit: self.recorder.limit(node.name, limit, limit_text(node.name, limit))
            if self._book is not None:
                fleet.on_clock = self._book.hear
            if self._lost is not None:
                self.display.line(self._clock.trace_s(), self._headline)
                await self._replay(leased, self._lost.rates)
                return
            await leased.ready(self.path)
            check_clocks([node.name for node in fleet.nodes], self._book)
            facts = {node.name: fleet.facts(node.index) for node in fleet.nodes}
            kinds = self._preparation.kinds(len(facts))
            check_nodes(facts, self._jobs, list(kinds.values()), self._policy, scenario)
            self._targets(list(facts.values()))  # raises errors before anything is measured
            self.display.line(0.0, self._headline)
            self.display.line(0.0, f"{len(facts)} nodes are online: {', '.join(facts)}")
            rates = await self._preparation.rates(fleet, kinds, self.recorder, self.display)
            await self._replay(leased, rates)

    async def _replay(self, leased: LeasedLab, rates: Mapping[Shape, float]) -> None:
        scenario, clock, recorder = self.scenario, self._clock, self.recorder
        fleet = leased.fleet
        facts = self._facts(fleet)
        jobs = self._preparation.all(facts[0], rates)
        note_unenforced([fact.capabilities for fact in facts], self._book)
        targets = self._targets(facts)
        begin_s = recorder.now_s()
        self.replays = True
        self.cluster = Cluster(self._live_jobs(fleet, rates, jobs), recorder.history)
        operations = Operations(fleet, scenario.deadlines, self._book, self._sharing(fleet))
        for live in self.cluster.active():
            if live.state.running_on is not None:
                operations.take_over(live)
        migration = LiveMigration(
            fleet, operations, scenario.deadlines, scenario.migration, targets, recorder.migration
        )
        conductor = Conductor(
            self.cluster, self._policy, clock, operations, recorder, [fact.memory_mib for fact in facts],
            scenario.deadlines, migration, frozenset(targets),
            restarts=self._book is not None, book=self._book, replicas=scenario.images.replicas,
            costs=known_costs(self._policy, scenario), ways=way_costs(scenario),
            saves_at_once=scenario.migration.saves_at_once,
        )  # fmt: skip
        conductor.tracker.divides = isinstance(self._policy, DividingPolicy)
        conductor.tracker.work_rates = WorkRates(
            self._preparation.measured, [node for node, fact in enumerate(facts) if traits_in(fact).runs_own_programs]
        )
        fleet.on_guest_event = conductor.tracker.guest_event
        fleet.on_telemetry = conductor.telemetry
        fleet.on_node_change = conductor.losses.node_changed
        recorder.stage("prepare", begin_s)
        watching = asyncio.create_task(fleet.watch(), name="watch nodes")
        beside = [watching, *self._beside(conductor, fleet)]
        try:
            try:
                async with (
                    taking_orders(conductor.orders, self.path, dry=self.recorder.directory.is_dry),
                    ended_by_error_of(watching),
                    contextlib.AsyncExitStack() as stack,
                ):
                    if self._lost is not None:
                        await self._take_over(leased, operations, conductor)
                    if self._serving is not None:
                        prepare = partial(self._preparation.one, facts[0], rates)
                        taking = self._serving.taking(self._policy, conductor, recorder, prepare, rates, facts[0])
                        await stack.enter_async_context(taking)
                    await conductor.run()
            finally:
                fleet.resign()
                await conductor.close()
            recorder.stage("replay", recorder.now_s() - begin_s)
            await self._check_results(conductor, facts)
        finally:
            fleet.on_node_change = lambda _node, _change: None  # from here on the run itself stops agents
            for task in beside:
                task.cancel()
            for task, ended in zip(beside, await asyncio.gather(*beside, return_exceptions=True), strict=True):
                if isinstance(ended, Exception):
                    _log.error("%s failed", task.get_name(), exc_info=ended)

    def _beside(self, conductor: Conductor, fleet: Fleet) -> list[asyncio.Task[None]]:
        """Start the background tasks of the replay."""
        works = {"display": self._show(conductor, fleet)}
        if not self.recorder.directory.is_dry:
            works["own CPU time"] = OwnCpu(self.recorder).run()
        if self._book is not None:
            works["renew fences"] = FenceRenewals(conductor.cluster, fleet, self._book).run()
        return [asyncio.create_task(work, name=name) for name, work in works.items()]

    async def _take_over(self, leased: LeasedLab, operations: Operations, conductor: Conductor) -> None:
        """Take over the guests, images and operations of a lost controller."""
        await leased.any_announced()  # the recovery needs the reports of the nodes
        await Recovery(
            conductor.cluster, leased.fleet, operations, conductor.executor, conductor.losses, self.recorder,
            self._run_tag, self._leased_s,
        ).run()  # fmt: skip
        self._taken_over()
        conductor.take_over()

    def _sharing(self, fleet: Fleet) -> Sharing | None:
        """Return the settings for the exchange of shares, None if the policy has no shares."""
        return Sharing.under(self._policy, self.scenario.shares, fleet.name)

    def end_with(self, lost: LostRun) -> None:
        """Restore the final state of a run from its journal."""
        fact = lost.facts[self.scenario.nodes[0].name]
        jobs = [LiveJob.resumed(job, lost.history.jobs[job.job.job_id], lost.since_s) for job in
                self._preparation.all(fact, lost.rates)]  # fmt: skip
        self.cluster = Cluster(jobs, lost.history)
        self._verdicts = lost.verdicts

    def _live_jobs(self, fleet: Fleet, rates: Mapping[Shape, float], jobs: Sequence[PreparedJob]) -> list[LiveJob]:
        """Journal the begin of the replay, unless a lost controller did; return the jobs."""
        recorder, history = self.recorder, self.recorder.history
        if self._lost is not None:
            now_s = recorder.now_s()
            return [LiveJob.resumed(job, history.jobs[job.job.job_id], now_s) for job in jobs]
        self._clock.start()
        recorder.directory.write_manifest(
            manifest_of(
                self.path.name,
                self._run_tag,
                self.scenario,
                self._policy,
                fleet,
                rates,
                recorder,
                [each.job for each in jobs],
                measure_of_work(self.scenario.programs, fleet.facts(0)),
            )
        )
        recorder.journal(
            events.Replay(
                *recorder.times(),
                jobs=len(jobs),
                trace=tuple(map(trace_job, jobs)),
                nodes=tuple(recorder.node_names),
                served=self._serving is not None,
            )
        )
        return [LiveJob.of(job, history.jobs[job.job.job_id]) for job in jobs]

    def _taken_over(self) -> None:
        """Record that the takeover is complete: from here on an error of this controller ends the run."""
        self.takes_over = False
        if self.scenario.on_controller_loss == "keep":
            LabRecord.open(self.path).taken_over()

    async def _check_results(self, conductor: Conductor, facts: Sequence[NodeFacts]) -> None:
        """Verify results after all measurements; jobs with a wrong result fail."""
        jobs = conductor.cluster.jobs
        verdicts = await check_results(
            jobs.values(), [fact.capabilities for fact in facts], self.scenario.programs.check_results_s
        )
        for job_id, reason in verdicts.wrong.items():
            self.recorder.fail(jobs[job_id], Failure(FailureCode.WRONG_RESULT, reason))
        self._verdicts = verdicts
        self.recorder.journal(results_event(verdicts, self.recorder.times()))

    def _facts(self, fleet: Fleet) -> list[NodeFacts]:
        """Return the facts of all nodes; for a resumed run the facts at its begin, which set the size of guests."""
        if self._lost is None:
            return [fleet.facts(node.index) for node in fleet.nodes]
        return [self._lost.facts[node.name] for node in fleet.nodes]

    def _targets(self, facts: Sequence[NodeFacts]) -> Mapping[int, Destination]:
        """Return the destinations of live migrations."""
        if self.scenario.migration.mechanism == "save-restore":
            return {}
        names = [node.name for node in self.scenario.nodes]
        return migration_targets(self.scenario, dict(zip(names, facts, strict=True)))

    async def _show(self, conductor: Conductor, fleet: Fleet) -> None:
        meter, partitions = UseMeter(), partitions_of(self._policy.name, len(fleet.nodes))
        while True:
            self.display.show(
                take_snapshot(
                    conductor.cluster,
                    conductor.executor,
                    fleet,
                    meter,
                    self._clock.trace_s(),
                    self._clock.wall_s(),
                    partitions,
                )
            )
            await asyncio.sleep(SNAPSHOT_S)

    def finish(self, *, complete: bool) -> RunResult:
        """Write jobs.csv and summary.json from the present state; raises `RunError` if a write fails."""
        self.recorder.directory.begin_results()
        cluster = self.cluster or Cluster([], self.recorder.history)
        tau_s = self.scenario.bound.tau_s
        self.recorder.directory.write_jobs(job_row(live, tau_s) for live in cluster.jobs.values())
        ends = [live.state.end_trace_s for live in cluster.jobs.values()]
        trace_s = max((end_s for end_s in ends if end_s is not None), default=0.0)
        summary = {
            "scenario": self.scenario.name,
            **summarize(
                cluster,
                self.recorder,
                self.scenario.bound,
                nodes=len(self.scenario.nodes),
                policy=self._policy.name,
                complete=complete,
                wall_s=trace_s / self.scenario.time_scale,
                trace_s=trace_s,
            ),
            **({"results": self._verdicts.summary()} if self._verdicts is not None else {}),
        }
        self.recorder.directory.write_summary(summary)
        return RunResult(self.path, summary)

    def keep(self, error: BaseException) -> None:
        """Write the results of a run that `error` has ended, as far as disk space permits.

        Raises `RunError`, with a list of the kept data, if the results or earlier data could not be written.
        """
        directory = self.recorder.directory
        unwritten: RunError | None = None
        try:
            self.finish(complete=False)
        except RunError as no_room:
            unwritten = no_room
        failure = directory.failure or unwritten
        if failure is None:
            return
        results = ", ".join(name for name in ("jobs.csv", "summary.json") if (self.path / name).exists())
        raise RunError(
            f"{failure}: the run was ended and its guests destroyed; kept in {self.path}: {directory.kept()}, "
            + (results or "no results: there was no space for them")
        ) from error
