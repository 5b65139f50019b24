"""Submission and deletion of jobs by the users of a served lab: admission checks, limits per user, permissions.

The entry of an accepted job in the journal is durable before its user has the answer. From then on the run treats the
job as a job of a trace that was submitted at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence

from testbed.bus.failure_codes import Failure
from testbed.control.cluster import Cluster, LiveJob
from testbed.control.conductor import Conductor
from testbed.control.dedicated import Shape
from testbed.control.manifest import trace_job
from testbed.control.queue_messages import Accepted, Answer, Delete, Deleted, Queue, QueuedJob, Refused, Request, Submit
from testbed.control.recorder import Recorder
from testbed.errors import FailureCode, UserError, nearest
from testbed.lab.guests import PreparedJob, check_floor, program_of
from testbed.run import events
from testbed.scenario.schema import Scenario
from testbed.scheduling.policies.backfill import is_queue
from testbed.scheduling.policies.guarantees import guarantees_fit
from testbed.scheduling.policies.view import GuaranteeingPolicy, Policy, can_ever_run
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.table import LEAST_GUARANTEE

_NEEDS_FRAC_TOLERANCE = 1e-9


class Intake:
    """Answers the requests of users.

    `prepare` returns a job with guests that have the given addresses. `users` has the users of all known jobs, by id.
    `rates` has the measured rate of each shape, and `by_job` gets the rate of each new job. `floor_mib` is the least
    memory of a guest, and `node_memory_mib` the memory of a node.
    """

    def __init__(
        self, scenario: Scenario, policy: Policy, conductor: Conductor, recorder: Recorder,
        prepare: Callable[[Job, Iterator[str]], PreparedJob], rates: Mapping[Shape, float],
        by_job: MutableMapping[int, float], users: MutableMapping[int, str], addresses: Callable[[], Iterator[str]],
        node_memory_mib: int, floor_mib: int,
    ) -> None:  # fmt: skip
        self._scenario = scenario
        self._policy = policy
        self._conductor = conductor
        self._recorder = recorder
        self._prepare = prepare
        self._rates = rates
        self._by_job = by_job
        self._users = users
        self._addresses = addresses
        self._node_memory_mib, self._floor_mib = node_memory_mib, floor_mib

    @property
    def _cluster(self) -> Cluster:
        return self._conductor.cluster

    async def carry_out(self, request: Request, user: str, *, may_all: bool) -> Answer:
        """Return the answer to a user's request; raises `RunError` if the journal cannot be written.

        With `may_all` the user may end the jobs of all users.
        """
        match request:
            case Submit():
                return await self._submit(request, user)
            case Delete():
                answer = self._delete(request.job, user, may_all=may_all)
                await self._recorder.durable()
                return answer
        return self._queue(ended=request.ended)

    async def _submit(self, request: Submit, user: str) -> Answer:
        if not self._cluster.history.awaits_jobs:
            return Refused(text="the lab is closed: it takes no more jobs")
        try:
            live = self._accept(request, user)
        except UserError as error:
            return Refused(text=str(error), mistaken=True)
        await self._recorder.durable()
        return Accepted(job=live.job_id)

    def _accept(self, request: Submit, user: str) -> LiveJob:
        """Check a job, write it to the journal, and report it to the policy; raises `UserError`."""
        job = self._job(request, user)
        self._check(job, request)
        self._check_limits(job, user)
        prepared = self._prepare(job, self._free_addresses())
        self._users[job.job_id] = user
        self._by_job[job.job_id] = self._rates[Shape.of(job)]
        arrival, addresses = trace_job(prepared), tuple(spec.address for spec in prepared.specs)
        self._recorder.journal(events.Arrived(*self._recorder.times(), arrival=arrival, by=user, addresses=addresses))
        live = LiveJob.of(prepared, self._recorder.history.jobs[job.job_id])
        self._conductor.arrive(live)
        return live

    def _job(self, request: Submit, user: str) -> Job:
        scale = self._scenario.time_scale
        return Job(
            job_id=max(self._cluster.jobs, default=0) + 1,
            submit_time_s=self._conductor.clock.trace_s(),
            tasks=request.tasks,
            cpu_need_frac=next((need for need in self._needs if _same(need, request.cpu_need_frac)), 0.0),
            mem_req_frac=request.mem_req_frac,
            run_time_s=request.work_s * scale,
            estimate_s=None if request.estimate_s is None else request.estimate_s * scale,
            urgent=request.urgent,
            program=None if request.program == self._usual(request.tasks) else request.program,
            weight=self._scenario.serve.weights.get(user, 1.0),
            least_yield_frac=request.least_yield_frac,
        )

    def _usual(self, tasks: int) -> str:
        """Return the default program of a job with this number of tasks."""
        programs = self._scenario.programs
        return programs.serial if tasks == 1 else programs.parallel

    @property
    def _needs(self) -> Sequence[float]:
        return self._scenario.serve.cpu_needs_frac

    def _check(self, job: Job, request: Submit) -> None:
        table, nodes = self._scenario.serve, len(self._scenario.nodes)
        if not job.cpu_need_frac:
            told = ", ".join(f"{need:g}" for need in self._needs)
            raise UserError(f"need {request.cpu_need_frac:g}: expected one of {told}, a task's part of a node's CPU")
        if job.mem_req_frac < table.least_mem_frac:
            raise UserError(f"memory {job.mem_req_frac:g}: expected at least {table.least_mem_frac:g} of a node's")
        if request.work_s > table.most_work_s:
            raise UserError(f"work {request.work_s:g} s: expected at most {table.most_work_s:g} s")
        if request.urgent and request.work_s > table.most_urgent_work_s:
            raise UserError(
                f"work {request.work_s:g} s of an urgent job: expected at most {table.most_urgent_work_s:g} s, or a "
                "job that is not urgent"
            )
        if request.estimate_s is not None and request.estimate_s < request.work_s:
            raise UserError(
                f"estimate {request.estimate_s:g} s: expected at least the work, {request.work_s:g} s, because the "
                "policy plans by it"
            )
        if Shape.of(job) not in self._rates:
            usual = self._usual(job.tasks)
            known = sorted({shape.program or usual for shape in self._rates if shape.parallel == (job.tasks > 1)})
            if job.program is not None and job.program not in known:
                hint = nearest(job.program, known) or f"; this lab has {', '.join(known)}"
                raise UserError(f"program {job.program}: expected one that was measured before{hint}")
            raise UserError(f"{Shape.of(job)}: expected a kind of job that fits side by side on {nodes} nodes")
        if not can_ever_run(self._policy, job, nodes):
            raise UserError(
                f"{job.tasks} tasks with need {job.cpu_need_frac:g} and memory {job.mem_req_frac:g} do not fit on the "
                f"{nodes} nodes of the lab under {self._policy.name}: expected a smaller job"
            )
        if job.least_yield_frac:
            self._check_guarantee(job)
        check_floor([job], "this lab", self._node_memory_mib, self._floor_mib)

    def _check_guarantee(self, job: Job) -> None:
        """Raise `UserError` if the guarantees of this job and of all active jobs together do not fit on the nodes."""
        table, nodes = self._scenario.serve, len(self._scenario.nodes)
        if not isinstance(self._policy, GuaranteeingPolicy) or not self._policy.knows_guarantees:
            raise UserError(f"least yield {job.least_yield_frac:g}: policy {self._policy.name} guarantees none")
        if job.least_yield_frac < LEAST_GUARANTEE:
            raise UserError(f"least yield {job.least_yield_frac:g}: expected 0, or at least {LEAST_GUARANTEE:g}")
        if job.least_yield_frac > table.most_guaranteed_yield:
            raise UserError(
                f"least yield {job.least_yield_frac:g}: expected at most {table.most_guaranteed_yield:g} in this lab"
            )
        others = [live.job for live in self._cluster.active()]
        if not guarantees_fit([*others, job], nodes):
            raise UserError(
                f"least yield {job.least_yield_frac:g}: the {nodes} nodes of the lab have guaranteed too much to "
                "others: expected a smaller one, or a job without"
            )

    def _check_limits(self, job: Job, user: str) -> None:
        table = self._scenario.serve
        own = [live.job for live in self._cluster.active() if self._users.get(live.job_id) == user]
        if len(own) >= table.jobs_per_user:
            raise UserError(f"user {user} has {len(own)} jobs: expected at most {table.jobs_per_user} at a time")
        nodes = sum(each.tasks * self._occupied_frac(each) for each in (*own, job))
        if table.nodes_per_user is not None and nodes > table.nodes_per_user + _NEEDS_FRAC_TOLERANCE:
            raise UserError(
                f"the jobs of user {user} would occupy {nodes:g} nodes: expected at most {table.nodes_per_user:g}"
            )
        urgent = sum(each.urgent for each in own)
        if job.urgent and urgent >= table.urgent_jobs_per_user:
            raise UserError(
                f"user {user} has {urgent} urgent jobs: expected at most {table.urgent_jobs_per_user} at a time"
            )

    def _occupied_frac(self, job: Job) -> float:
        """Return the part of a node that a task keeps from others."""
        return 1.0 if is_queue(self._policy) else max(job.cpu_need_frac, job.mem_req_frac)

    def _free_addresses(self) -> Iterator[str]:
        """Return an iterator over the addresses that no guest of an active job has."""
        taken = {spec.address for live in self._cluster.active() for spec in live.specs}
        return (address for address in self._addresses() if address not in taken)

    def _delete(self, job_id: int, user: str, *, may_all: bool) -> Answer:
        live = self._cluster.jobs.get(job_id)
        if live is None:
            return Refused(text=f"no job {job_id}", mistaken=True)
        owner = self._users.get(job_id, "")
        if user != owner and not may_all:
            return Refused(text=f"job {job_id} is of user {owner}: user {user} may not delete it", mistaken=True)
        if live.state.ended:
            return Refused(text=f"job {job_id} has ended: it is {live.state.state}")
        if live.state.withdrawn:
            return Refused(text=f"job {job_id} is being started again, as a node was lost: try it later")
        self._recorder.fail(live, Failure(FailureCode.DELETED, f"deleted by user {user}"))
        return Deleted(job=job_id)

    def _queue(self, *, ended: bool) -> Queue:
        history = self._cluster.history
        state = history.standstill.hold or ("running" if history.awaits_jobs else "closed")
        shown = [live for live in self._cluster.jobs.values() if ended or not live.state.ended]
        jobs = tuple(self._told(live) for live in shown)
        return Queue(lab=self._scenario.lab, policy=self._policy.name, state=state, jobs=jobs)

    def _told(self, live: LiveJob) -> QueuedJob:
        job, state, scale = live.job, live.state, self._scenario.time_scale
        now_s = self._conductor.clock.trace_s() if state.end_trace_s is None else state.end_trace_s
        start_s = now_s if state.start_trace_s is None else state.start_trace_s
        running = state.running_on or ()
        return QueuedJob(
            job=job.job_id, user=self._users.get(job.job_id, ""), state=state.state, tasks=job.tasks,
            cpu_need_frac=job.cpu_need_frac, mem_req_frac=job.mem_req_frac, work_s=job.run_time_s / scale,
            done_frac=min(1.0, live.measured_virtual_time_s() / job.run_time_s), urgent=job.urgent,
            program=program_of(job, self._scenario.programs),
            since_submit_s=max(0.0, now_s - job.submit_time_s) / scale,
            waited_s=max(0.0, start_s - job.submit_time_s) / scale,
            nodes=tuple(dict.fromkeys(self._scenario.nodes[node].name for node in running)),
            reason=state.failure_text or state.stranded,
        )  # fmt: skip


def _same(one: float, other: float) -> bool:
    return abs(one - other) < _NEEDS_FRAC_TOLERANCE
