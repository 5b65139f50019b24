"""The state of a run, folded from the events of its journal: jobs, guests, images, nodes and reschedulings.

`History.apply` is the one state machine of a run. It has no clock and does no input or output: the same events give the
same state, live or from a journal of any version. An event that contradicts those before it raises `IllegalEventError`
and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from testbed.run import events
from testbed.run.job_history import JobEvent, JobHistory, Wanted
from testbed.run.phases import IllegalEventError

_FIRST_WITH_CLEARED: Final = 3  # the first version of the journal with `cleared` and `returned`
_NOT_PLACED: Final = -1
ONLINE: Final = "online"
LOST: Final = "lost"


@dataclass(slots=True)
class NodeHistory:
    """One node: `available` to the policy, `reachable` for commands; `reason` says why it is what it is."""

    name: str
    standing: str = ONLINE
    reason: str = ""
    reachable: bool = True

    @property
    def available(self) -> bool:
        """Whether the policy may use it."""
        return self.standing != LOST


@dataclass(slots=True)
class History:
    """The state of a run after the events that were applied.

    `nodes` are by number. `last_s` and `last_trace_s` are the times of the last event, `ended` says that the run is
    over, `aborted` why it ended early. `names` are those of the nodes, in the order of their numbers, for journals
    before version 3, which do not have them.
    """

    names: Sequence[str] = ()
    version: int = 1
    begin: events.Begin | None = None
    replay: events.Replay | None = None
    jobs: dict[int, JobHistory] = field(default_factory=dict)
    nodes: list[NodeHistory] = field(init=False)
    last_s: float = 0.0
    last_trace_s: float = 0.0
    ended: bool = False
    aborted: str = ""
    _index: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Make the nodes, all of them online."""
        self.nodes = []
        self._name_nodes(self.names)

    def apply(self, event: events.Known) -> bool:
        """Change the state by one event; return whether it counts: not that of a guest that does not fit its job.

        Raises `IllegalEventError` for one that contradicts those before it.
        """
        counts = self._take(event)
        self.last_s, self.last_trace_s = event.t_s, event.trace_s
        return counts

    def on_node(self, node: int) -> list[tuple[int, int]]:
        """Return the guests that hold memory on a node, as (job, task)."""
        return [(job.job, task) for job in self.jobs.values() for task in job.on_node(node)]

    @property
    def flights(self) -> Mapping[int, JobHistory]:
        """The jobs with an operation under way, by the number of the operation."""
        return {job.flight.action: job for job in self.jobs.values() if job.flight is not None}

    def _take(self, event: events.Known) -> bool:
        match event:
            case events.Begin():
                self.begin, self.version = event, event.version
            case events.Replay():
                self._replay(event)
            case events.Decision():
                self._decide(event)
            case events.Job():
                self._change(event)
            case events.Node():
                self._node(event)
            case events.Returned():
                self._returned(event)
            case events.Teardown():
                self.ended = True
            case events.Aborted():
                self.ended, self.aborted = True, event.reason
            case _ if isinstance(event, JobEvent):
                return self._job(event, event.job).apply(event)
        return True

    def _replay(self, event: events.Replay) -> None:
        self.replay = event
        self._name_nodes(event.nodes)
        for job in event.trace:
            self.jobs.setdefault(job.job, JobHistory(job=job.job)).learn(job)

    def _name_nodes(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._index:
                self._index[name] = len(self.nodes)
                self.nodes.append(NodeHistory(name))

    def _job(self, event: events.Event, job: int) -> JobHistory:
        found = self.jobs.get(job)
        if found is None:
            word = events.kind_of(event)
            raise IllegalEventError(word, event.t_s, job, "unknown", word, "no such job was submitted")
        return found

    def _change(self, event: events.Job) -> None:
        if event.state == "submitted" and event.job not in self.jobs:  # the oldest journals do not have the trace
            self.jobs[event.job] = JobHistory(job=event.job)
        self._job(event, event.job).change(event, cleared=self.version < _FIRST_WITH_CLEARED)

    def _decide(self, event: events.Decision) -> None:
        view, choice = event.view, event.decision
        first, wanted = 0, {}
        for row, job_id in enumerate(view.job_id):
            job, tasks = self._job(event, job_id), view.tasks[row]
            nodes = choice.task_node[first : first + tasks]
            first += tasks
            if nodes and nodes[0] != _NOT_PLACED:
                wanted[job_id] = Wanted(nodes, choice.yield_frac[row])
            if not job.active:
                reason = "expected a job in the system"
                raise IllegalEventError("decision", event.t_s, job_id, job.described(), "decided", reason)
        for row, job_id in enumerate(view.job_id):
            needs = view.cpu_need_frac[row], view.mem_req_frac[row]
            self.jobs[job_id].show(view.tasks[row], needs, view.virtual_time_s[row])
        for job in self.jobs.values():
            if job.active:
                job.decide(wanted.get(job.job))

    def _node(self, event: events.Node) -> None:
        self._name_nodes([event.node])
        node = self.nodes[self._index[event.node]]
        node.standing = event.standing or (ONLINE if event.online else LOST)
        node.reason = event.reason
        # before version 3 the journal does not say when a node could be commanded again
        node.reachable = event.online and self.version < _FIRST_WITH_CLEARED

    def _returned(self, event: events.Returned) -> None:
        self._name_nodes([event.node])
        index = self._index[event.node]
        self.nodes[index].reachable = event.reachable
        gone = {(index, name) for name in event.missing}
        for job in self.jobs.values():
            if job.active:
                job.miss(gone)


def fold(journal: Iterable[events.Known], names: Sequence[str] = ()) -> History:
    """Return the state after the events of a journal; see `History` for `names`."""
    history = History(names)
    for event in journal:
        history.apply(event)
    return history
