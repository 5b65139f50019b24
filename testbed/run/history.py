"""The state of a run, folded from the events of its journal: jobs, guests, images, nodes and reschedulings.

`History.apply` is the one state machine of a run. It has no clock and does no input or output: the same events give the
same state, live or from a journal of any version. An event that contradicts those before it raises `IllegalEventError`
and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from testbed.run import events
from testbed.run.job_history import JobEvent, JobHistory, Wanted
from testbed.run.phases import IllegalEventError
from testbed.run.standstill import Standstill

_FIRST_WITH_CLEARED: Final = 3  # the first version of the journal with `cleared` and `returned`
_NOT_PLACED: Final = -1
_OfJob: TypeAlias = JobEvent | events.Job
ONLINE: Final = "online"
LOST: Final = "lost"


@dataclass(slots=True)
class NodeHistory:
    """The state of one node: `available` to the policy, `reachable` for commands, and the `reason` of its standing.

    A node that the operator has `drained` takes no guests. It can be commanded, and its images can be read.
    """

    name: str
    standing: str = ONLINE
    reason: str = ""
    reachable: bool = True
    drained: bool = False

    @property
    def lost(self) -> bool:
        """Whether the node is lost: its agent was silent for too long."""
        return self.standing == LOST

    @property
    def available(self) -> bool:
        """Whether the policy may use the node."""
        return not self.lost and not self.drained


@dataclass(slots=True)
class History:
    """The state of a run after the events that were applied.

    `active` has the jobs that were submitted and have not ended, in order of submission. `nodes` are in the order of
    their numbers. `last_action` is the highest number of an operation, `resumes` counts the controllers after the first
    one. `last_s` and `last_trace_s` are the times of the last event. `ended` is true once the run is over, and
    `aborted` is the reason if it ended early. `standstill` has the pauses of the operator and the times without a
    controller. A served lab is `closed` once it takes no more jobs. `names` are the names of the nodes in the order of
    their numbers, for journals before version 3, which do not have them.
    """

    names: Sequence[str] = ()
    version: int = 1
    begin: events.Begin | None = None
    replay: events.Replay | None = None
    jobs: dict[int, JobHistory] = field(default_factory=dict)
    active: dict[int, JobHistory] = field(init=False, default_factory=dict)
    nodes: list[NodeHistory] = field(init=False)
    last_action: int = 0
    last_s: float = 0.0
    last_trace_s: float = 0.0
    resumes: int = 0
    ended: bool = False
    aborted: str = ""
    standstill: Standstill = field(init=False, default_factory=Standstill)
    closed: bool = False
    _index: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Create the nodes, all of them online."""
        self.nodes = []
        self.name_nodes(self.names)

    def apply(self, event: events.Known) -> bool:
        """Apply one event; return whether it counts: an event of a guest that does not fit its job does not.

        Raises `IllegalEventError` for an event that contradicts earlier ones.
        """
        counts = self._take(event)
        self.last_s, self.last_trace_s = event.t_s, event.trace_s
        return counts

    def name_nodes(self, names: Iterable[str]) -> None:
        """Number the nodes in the order of `names`; nodes that earlier events have named keep their state."""
        known = {node.name: node for node in self.nodes}
        self.nodes = [known.pop(name) if name in known else NodeHistory(name) for name in names]
        self.nodes += known.values()
        self._index = {node.name: index for index, node in enumerate(self.nodes)}

    def job_of(self, event: events.Known) -> JobHistory | None:
        """Return the job that an event is about, None for other events."""
        return self.jobs.get(event.job) if isinstance(event, _OfJob) else None

    def on_node(self, node: int) -> list[tuple[int, int]]:
        """Return the guests that hold memory on a node, as (job, task)."""
        return [(job.job, task) for job in self.jobs.values() for task in job.on_node(node)]

    @property
    def flights(self) -> Mapping[int, JobHistory]:
        """The jobs with an operation in progress, by the number of the operation."""
        return {job.flight.action: job for job in self.jobs.values() if job.flight is not None}

    def _take(self, event: events.Known) -> bool:
        match event:
            case events.Begin():
                self.begin, self.version = event, event.version
            case events.Replay():
                self._replay(event)
            case events.Arrived():
                self._arrive(event)
            case events.Decision():
                self._decide(event)
            case events.Job():
                self._change(event)
            case _ if isinstance(event, JobEvent):
                return self._apply(event, self._job(event, event.job))
            case _:
                self._take_other(event)
        return True

    def _take_other(self, event: events.Known) -> None:
        """Apply an event that concerns no single job: of nodes, of the operator, of controllers, or the run's end."""
        match event:
            case events.Node():
                self._node(event)
            case events.Returned():
                self._returned(event)
            case events.Order():
                self._order(event)
            case events.ClockStarted():
                self.standstill.start(event)
            case events.Resumed():
                self._resume(event)
            case events.Recovered():
                span = self.standstill.recover(event)
                for job in self.active.values():
                    job.blind.append(span)
            case events.Teardown():
                self.ended = True
            case events.Aborted():
                self.ended, self.aborted = True, event.reason

    def _apply(self, event: JobEvent, job: JobHistory) -> bool:
        counts = job.apply(event)
        if isinstance(event, events.Intent):
            self.last_action = max(self.last_action, event.action)
        present = job.present
        if isinstance(event, events.Intent) and event.verb == "restore" and present is not None:
            present.leave_out(self.standstill.within_s)
        return counts

    def _order(self, event: events.Order) -> None:
        if self.replay is None or self.ended:
            word = f"order {event.order}"
            reason = "expected a run whose replay is in progress"
            raise IllegalEventError(word, event.t_s, None, "ended" if self.ended else "preparing", event.order, reason)
        if event.order in ("drain", "return"):
            if event.node not in self._index:
                reason = f"expected one of the nodes {', '.join(self._index)}"
                raise IllegalEventError(event.order, event.t_s, None, f"node {event.node}", event.order, reason)
            self.nodes[self._index[event.node]].drained = event.order == "drain"
        elif event.order == "close":
            if not self.awaits_jobs:
                reason = "expected a served lab that takes jobs"
                raise IllegalEventError("order close", event.t_s, None, "closed", "closed", reason)
            self.closed = True
        else:
            self.standstill.order(event)

    def _resume(self, event: events.Resumed) -> None:
        if self.replay is None or self.ended:
            state = "ended" if self.ended else "preparing"
            raise IllegalEventError(
                "resumed", event.t_s, None, state, "running", "expected a run whose replay is in progress"
            )
        self.resumes += 1
        self.standstill.lose(event)

    def _replay(self, event: events.Replay) -> None:
        self.replay = event
        self.name_nodes(event.nodes)
        for job in event.trace:
            self.jobs.setdefault(job.job, JobHistory(job=job.job)).learn(job)

    @property
    def is_served(self) -> bool:
        """Whether users submit the jobs, instead of a trace."""
        return self.replay is not None and self.replay.served

    @property
    def awaits_jobs(self) -> bool:
        """Whether users may submit more jobs."""
        return self.is_served and not self.closed

    def _arrive(self, event: events.Arrived) -> None:
        job = event.arrival
        if not self.awaits_jobs or job.job in self.jobs:
            reason = "expected a new job of a served lab that is not closed"
            raise IllegalEventError("arrived", event.t_s, job.job, "closed", "arrived", reason)
        self.jobs[job.job] = JobHistory(job=job.job)
        self.jobs[job.job].learn(job)

    def _job(self, event: events.Event, job: int) -> JobHistory:
        found = self.jobs.get(job)
        if found is None:
            word = events.kind_of(event)
            raise IllegalEventError(word, event.t_s, job, "unknown", word, "no such job was submitted")
        return found

    def _change(self, event: events.Job) -> None:
        if event.state == "submitted" and event.job not in self.jobs:  # the oldest journals do not have the trace
            self.jobs[event.job] = JobHistory(job=event.job)
        job = self._job(event, event.job)
        job.change(event, cleared=self.version < _FIRST_WITH_CLEARED)
        if job.active:
            self.active[event.job] = job
        else:
            self.active.pop(event.job, None)

    def _decide(self, event: events.Decision) -> None:
        view, choice = event.view, event.decision
        for job_id in view.job_id:
            if not (job := self._job(event, job_id)).active:
                reason = "expected a job in the system"
                raise IllegalEventError("decision", event.t_s, job_id, job.described(), "decided", reason)
        columns = (view.submit_time_s, view.tasks, view.cpu_need_frac, view.mem_req_frac, view.virtual_time_s)
        lengths = {*map(len, columns), len(choice.yield_frac)}
        if lengths != {len(view.job_id)} or len(choice.task_node) != sum(view.tasks):
            raise IllegalEventError("decision", event.t_s, None, "seen", "decided", "its columns differ in length")
        first, wanted = 0, {}
        for row, job_id in enumerate(view.job_id):
            job = self.jobs[job_id]
            needs = view.cpu_need_frac[row], view.mem_req_frac[row]
            job.show(view.submit_time_s[row], view.tasks[row], needs, view.virtual_time_s[row])
            nodes = choice.task_node[first : first + job.tasks]
            first += job.tasks
            if nodes and nodes[0] != _NOT_PLACED:
                wanted[job_id] = Wanted(nodes, choice.yield_frac[row])
        for job in self.active.values():
            job.decide(wanted.get(job.job))

    def _node(self, event: events.Node) -> None:
        node = self.nodes[self._number(event.node)]
        node.standing = event.standing or (ONLINE if event.online else LOST)
        node.reason = event.reason
        # journals before version 3 do not record when a node could be commanded again
        node.reachable = event.online and self.version < _FIRST_WITH_CLEARED

    def _returned(self, event: events.Returned) -> None:
        index = self._number(event.node)
        self.nodes[index].reachable = event.reachable
        gone = {(index, name) for name in event.missing}
        for job in self.active.values():
            job.miss(gone)

    def _number(self, name: str) -> int:
        if name not in self._index:
            self._index[name] = len(self.nodes)
            self.nodes.append(NodeHistory(name))
        return self._index[name]


def fold(journal: Iterable[events.Known], names: Sequence[str] = ()) -> History:
    """Return the state after the events of a journal; see `History` for `names`."""
    history = History(names)
    for event in journal:
        history.apply(event)
    return history
