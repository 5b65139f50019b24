"""Which job is where, entry by entry of a journal, and what keeps a wanted job from its next operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from testbed.run import events

POLICY = "policy"
OPERATION = "operation"
NODE_AWAY = "node-away"
IMAGE_AWAY = "image-away"
MEMORY = "memory"
CONTROLLER = "controller"
WAITS = {
    POLICY: "the policy does not choose the job to run",
    OPERATION: "an operation on the same job is under way",
    NODE_AWAY: "a node that the job is to run on is away",
    IMAGE_AWAY: "a node that holds an image of the job is away",
    MEMORY: "memory of a node is held by other jobs",
    CONTROLLER: "none of these: the controller had not yet begun the operation",
}
_ENDED = frozenset({"done", "failed"})


@dataclass(frozen=True, slots=True)
class Wait:
    """What a job waits for: one of `WAITS`, before the operation `verb` (empty for `POLICY`).

    `nodes` are the nodes that are away or whose memory is held, `jobs` the jobs that hold it; `behind` is the verb of
    the job's own operation under way.
    """

    kind: str
    verb: str = ""
    nodes: tuple[int, ...] = ()
    jobs: tuple[int, ...] = ()
    behind: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What a decision wants of a job: its nodes, sorted, as tasks are interchangeable, and the yield."""

    nodes: tuple[int, ...]
    yield_frac: float


@dataclass(slots=True)
class Place:
    """Where a job is. `flight` is the verb of its operation under way; `state` as the journal last told."""

    state: str = "coming"
    tasks: int = 0
    mem_req_frac: float = 0.0
    target: Target | None = None
    running_on: tuple[int, ...] | None = None
    migrating_to: tuple[int, ...] | None = None
    saved_on: tuple[int, ...] | None = None
    yield_frac: float = 0.0
    flight: str = ""
    flight_nodes: tuple[int, ...] = ()
    flight_yield_frac: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether the job is done or failed."""
        return self.state in _ENDED

    @property
    def runs(self) -> bool:
        """Whether its guests run: not while they are created, read back or saved."""
        return self.running_on is not None and self.flight not in ("start", "restore", "save") and not self.ended

    def held(self) -> Counter[int]:
        """Tasks whose memory each node holds; a task that migrates live holds it at both ends."""
        counts = Counter(self.running_on or ())
        if self.migrating_to is not None:
            counts += Counter(b for a, b in zip(self.running_on or (), self.migrating_to, strict=True) if a != b)
        return counts


@dataclass(slots=True)
class Ledger:
    """The cluster as the journal tells it.

    `memory_mib` by node, empty if the run has no manifest: then every node holds tasks up to 1. `live` says whether
    the scenario migrates live.
    """

    node_names: Sequence[str] = ()
    memory_mib: Sequence[int] = ()
    live: bool = False
    jobs: dict[int, Place] = field(default_factory=dict)
    away: set[int] = field(default_factory=set)

    def place(self, job: int) -> Place:
        """Return where a job is; it is kept up to date."""
        return self.jobs.setdefault(job, Place())

    def feed(self, event: events.Known) -> None:
        """Take the next event; raises `ValueError` for a decision whose columns differ in length."""
        match event:
            case events.Decision():
                self._decision(event)
            case events.Job():
                self._job(self.place(event.job), event.state)
            case events.Intent():
                self._intent(self.place(event.job), event)
            case events.Outcome():
                self._outcome(self.place(event.job), event)
            case events.Migration():
                self._arrival(self.place(event.job), event)
            case events.Node() if event.node in self.node_names:
                index = list(self.node_names).index(event.node)
                (self.away.discard if event.online else self.away.add)(index)

    def targets(self, event: events.Decision) -> dict[int, Target | None]:
        """Return what a decision wants of each job in the system, None of one that shall not run."""
        view, decision = event.view, event.decision
        found: dict[int, Target | None] = {}
        first = 0
        for job, tasks, yield_frac in zip(view.job_id, view.tasks, decision.yield_frac, strict=True):
            nodes = tuple(sorted(decision.task_node[first : first + tasks]))
            first += tasks
            found[job] = Target(nodes, yield_frac) if nodes and nodes[0] >= 0 else None
        return found

    def _decision(self, event: events.Decision) -> None:
        view = event.view
        for job, tasks, mem_req_frac in zip(view.job_id, view.tasks, view.mem_req_frac, strict=True):
            place = self.place(job)
            place.tasks, place.mem_req_frac = tasks, mem_req_frac
        for job, target in self.targets(event).items():
            self.place(job).target = target
        self.away = {node for node, available in enumerate(view.node_available) if not available}

    def _job(self, place: Place, state: str) -> None:
        place.state = state
        if state in _ENDED:
            place.target = None
        if state == "done":
            place.running_on = place.migrating_to = place.saved_on = None

    def _intent(self, place: Place, event: events.Intent) -> None:
        place.flight, place.flight_nodes = event.verb, event.nodes
        place.flight_yield_frac = event.yield_frac
        if place.flight in ("start", "restore"):
            place.running_on = place.flight_nodes
        elif place.flight == "migrate" and place.running_on is not None:
            place.migrating_to = place.flight_nodes
        self._bury(place)

    def _outcome(self, place: Place, event: events.Outcome) -> None:
        verb, nodes = event.verb, event.nodes
        yield_frac, place.flight = place.flight_yield_frac, ""
        place.migrating_to = None
        if place.ended:
            return
        if not event.ok:
            if verb in ("start", "restore"):
                place.running_on = None
        elif verb == "save":
            place.saved_on, place.running_on, place.yield_frac = nodes, None, 0.0
        elif verb == "transfer":
            place.saved_on = nodes
        else:
            place.running_on, place.yield_frac = nodes, yield_frac
            place.saved_on = None

    @staticmethod
    def _arrival(place: Place, event: events.Migration) -> None:
        if event.error is not None or place.running_on is None:
            return
        place.running_on = tuple(
            event.target if index == event.task else node for index, node in enumerate(place.running_on)
        )

    def _bury(self, begun: Place) -> None:
        """Forget guests of failed jobs where an operation has begun for which they must be gone.

        The journal does not say when they are destroyed, but memory is never over-committed.
        """
        dying = [other for other in self.jobs.values() if other.state == "failed" and other.running_on is not None]
        for node, free_mib in self.free_mib(begun.held()).items() if dying else ():
            if free_mib < 0:
                for other in dying:
                    if node in other.held():
                        other.running_on = other.migrating_to = None

    def _amount(self, place: Place) -> float:
        """Memory of one task: MiB, or nodes if the nodes' memory is not known."""
        if not self.memory_mib:
            return place.mem_req_frac
        return int(place.mem_req_frac * self.memory_mib[0] + 1e-6)  # as the controller rounds it

    def free_mib(self, nodes: Iterable[int]) -> dict[int, float]:
        """Return the memory of nodes that no guest holds; a share of the node if its memory is not known."""
        free: dict[int, float] = {
            node: self.memory_mib[node] if node < len(self.memory_mib) else 1.0 + 1e-6 for node in nodes
        }
        for place in self.jobs.values():
            if place.running_on is not None:
                amount = self._amount(place)
                for node, tasks in place.held().items():
                    if node in free:
                        free[node] -= tasks * amount
        return free

    def wait(self, job: int) -> Wait | None:
        """Return what the job waits for now, None if nothing: it has what the last decision wants, or gets it."""
        place = self.place(job)
        if place.state == "coming" or place.ended:
            return None
        verb, coming = self._next(place)
        if not verb:
            idle = place.target is None and not place.flight and place.running_on is None
            return Wait(POLICY) if idle else None
        if place.flight:
            return Wait(OPERATION, verb, behind=place.flight)
        if away := sorted(self.away & {*(place.target.nodes if place.target else ())}):
            return Wait(NODE_AWAY, verb, tuple(away))
        if verb in ("transfer", "restore") and (away := sorted(self.away & {*(place.saved_on or ())})):
            return Wait(IMAGE_AWAY, verb, tuple(away))
        return self._memory(place, verb, coming) or Wait(CONTROLLER, verb)

    def _memory(self, place: Place, verb: str, coming: Mapping[int, int]) -> Wait | None:
        amount, free_mib = self._amount(place), self.free_mib(coming)
        full = tuple(sorted(node for node, tasks in coming.items() if free_mib[node] < tasks * amount))
        if not full:
            return None
        holders = (job for job, other in self.jobs.items() if other is not place and any(other.held()[n] for n in full))
        return Wait(MEMORY, verb, full, tuple(sorted(holders)))

    def _next(self, place: Place) -> tuple[str, Counter[int]]:
        """Return the operation that the job needs next for its target, and the tasks for which it needs memory by node.

        An operation under way counts as carried out. An empty verb: none is needed.
        """
        running, saved, yield_frac = place.running_on, place.saved_on, place.yield_frac
        if place.flight == "save":
            running, saved = None, place.flight_nodes
        elif place.flight == "transfer":
            saved = place.flight_nodes
        elif place.flight:
            running, yield_frac = place.flight_nodes, place.flight_yield_frac
        target, none = place.target, Counter[int]()
        if target is None:
            return ("save" if running is not None else ""), none
        wanted = Counter(target.nodes)
        if running is not None:
            if Counter(running) != wanted:
                return ("migrate", wanted - Counter(running)) if self.live else ("save", none)
            return ("cap" if target.yield_frac != yield_frac else ""), none
        if saved is not None:
            return ("restore", wanted) if Counter(saved) == wanted else ("transfer", none)
        return "start", wanted
