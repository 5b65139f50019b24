"""The reason for which a job waits for its next operation, from the history of its run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from testbed.run.history import History
from testbed.run.job_history import JobHistory
from testbed.run.phases import Phase

POLICY = "policy"
OPERATION = "operation"
NODE_AWAY = "node-away"
IMAGE_AWAY = "image-away"
MEMORY = "memory"
OPERATOR = "operator"
FENCE = "fence"
BLIND = "blind"
CONTROLLER = "controller"
WAITS = {
    POLICY: "the policy does not choose the job to run",
    OPERATION: "an operation on the same job is under way",
    NODE_AWAY: "a node that the job is to run on is away",
    IMAGE_AWAY: "a node that holds an image of the job is away",
    MEMORY: "memory of a node is held by other jobs",
    OPERATOR: "the operator has paused the run",
    FENCE: "guests of the job may still run on nodes that do not answer, until their fences fall",
    BLIND: "the run is without a controller",
    CONTROLLER: "none of these: the controller had not started the operation yet",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait of a job: its `kind` is a key of `WAITS`, `verb` is the next operation (empty for `POLICY`).

    `nodes` are the nodes that are away or whose memory is held, `jobs` the jobs that hold it. `behind` is the verb of
    the job's own operation in progress.
    """

    kind: str
    verb: str = ""
    nodes: tuple[int, ...] = ()
    jobs: tuple[int, ...] = ()
    behind: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """The intent of a decision for a job: its yield, and its nodes, sorted because tasks are interchangeable."""

    nodes: tuple[int, ...]
    yield_frac: float


def target_of(job: JobHistory) -> Target | None:
    """Return the target of the last decision for a job, None if the job shall not run."""
    return None if job.wanted is None else Target(tuple(sorted(job.wanted.nodes)), job.wanted.yield_frac)


def runs(job: JobHistory) -> bool:
    """Return whether the guests of a job run; False while they are created, restored or saved."""
    return job.phase in (Phase.RUNNING, Phase.MIGRATING) and job.running_on is not None and not job.withdrawn


def held(job: JobHistory) -> Counter[int]:
    """Return the number of tasks that hold memory on each node; a task that migrates live counts on both nodes."""
    counts = Counter(job.running_on or ())
    if job.migrating_to is not None:
        counts += Counter(b for a, b in zip(job.running_on or (), job.migrating_to, strict=True) if a != b)
    return counts


@dataclass(frozen=True, slots=True)
class Waits:
    """Classification of the waits of a run's jobs.

    `memory_mib` is by node; it is empty if the run has no manifest, and memory is then counted in fractions of a node.
    `live` is whether the scenario migrates live.
    """

    memory_mib: Sequence[int] = ()
    live: bool = False

    def of(self, job: JobHistory, history: History) -> Wait | None:
        """Return the present wait of a job, None if its target is reached or the next operation is in progress."""
        wait = self._of(job, history)
        if wait is not None and history.standstill.blind_since_s is not None:
            return Wait(BLIND, wait.verb)
        return wait

    def _of(self, job: JobHistory, history: History) -> Wait | None:
        if job.active and job.fenced_on:
            return Wait(FENCE, nodes=job.fenced_on)
        if not job.active or job.withdrawn:
            return None
        verb, coming = self._next(job)
        if not verb:
            idle = job.wanted is None and job.flight is None and job.running_on is None
            return Wait(OPERATOR if history.standstill.hold else POLICY) if idle else None
        if job.flight is not None:
            return Wait(OPERATION, verb, behind=job.flight.verb)
        return self._held_up(job, history, verb, coming)

    def _held_up(self, job: JobHistory, history: History, verb: str, coming: Mapping[int, int]) -> Wait:
        """Return the wait of the operation that the job needs next."""
        if history.standstill.hold:
            return Wait(OPERATOR, verb)
        away = {number for number, node in enumerate(history.nodes) if not node.reachable}
        if there := sorted(away & {*(job.wanted.nodes if job.wanted else ())}):
            return Wait(NODE_AWAY, verb, tuple(there))
        if verb in ("transfer", "restore") and (there := sorted(away & {*(job.saved_on or ())})):
            return Wait(IMAGE_AWAY, verb, tuple(there))
        return self._memory(job, history, verb, coming) or Wait(CONTROLLER, verb)

    def free_mib(self, history: History, nodes: Iterable[int]) -> dict[int, float]:
        """Return the free memory of nodes in MiB, or as a fraction of the node if its memory is unknown."""
        free: dict[int, float] = {
            node: self.memory_mib[node] if node < len(self.memory_mib) else 1.0 + 1e-6 for node in nodes
        }
        for job in history.jobs.values():
            if job.running_on is not None:
                amount = self._amount(job)
                for node, tasks in held(job).items():
                    if node in free:
                        free[node] -= tasks * amount
        return free

    def _amount(self, job: JobHistory) -> float:
        """Return the memory of one task in MiB, or as a fraction of a node if the nodes' memory is unknown."""
        if not self.memory_mib:
            return job.mem_req_frac
        return int(job.mem_req_frac * self.memory_mib[0] + 1e-6)  # rounded as the controller does

    def _memory(self, job: JobHistory, history: History, verb: str, coming: Mapping[int, int]) -> Wait | None:
        amount, free_mib = self._amount(job), self.free_mib(history, coming)
        full = tuple(sorted(node for node, tasks in coming.items() if free_mib[node] < tasks * amount))
        if not full:
            return None
        others = (other for other in history.jobs.values() if other is not job)
        return Wait(MEMORY, verb, full, tuple(sorted(other.job for other in others if {*full} & held(other).keys())))

    def _next(self, job: JobHistory) -> tuple[str, Counter[int]]:
        """Return the operation that the job needs next for its target, and by node the tasks that it needs memory for.

        An operation in progress counts as completed. The verb is empty if no operation is needed.
        """
        running, saved, yield_frac, flight = job.running_on, job.saved_on, job.yield_frac, job.flight
        if flight is not None and flight.verb == "save":
            running, saved = None, flight.nodes
        elif flight is not None and flight.verb == "transfer":
            saved = flight.nodes
        elif flight is not None:
            running, yield_frac = flight.nodes, flight.yield_frac
        none = Counter[int]()
        if job.wanted is None:
            return ("save" if running is not None else ""), none
        wanted = Counter(job.wanted.nodes)
        if running is not None:
            if Counter(running) != wanted:
                return ("migrate", wanted - Counter(running)) if self.live else ("save", none)
            return ("cap" if job.wanted.yield_frac != yield_frac else ""), none
        if saved is not None:
            return ("restore", wanted) if Counter(saved) == wanted else ("transfer", none)
        return "start", wanted
