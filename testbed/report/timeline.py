"""When every task of a run was where, at which yield: spans, made of the journal entry by entry.

What the kinds of spans mean is told in `testbed.report.schedule`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from testbed.errors import UserError
from testbed.measure.rundir import read_json
from testbed.report.schedule import (
    DONE,
    ENDED,
    FAILED,
    IN_MEMORY,
    KINDS,
    LIVE,
    PAUSED,
    RESTORE,
    RUN,
    RUNNING,
    RUNS,
    SAVE,
    START,
    TRANSFER,
    WAIT,
    WAITING,
    JobFacts,
    Schedule,
    Span,
)
from testbed.run import events
from testbed.run.journal import read_events

__all__ = ["ENDED", "IN_MEMORY", "KINDS", "RUNS", "JobFacts", "Schedule", "Span", "Timeline", "read_timeline"]

CAP = "cap"
MIGRATE = "migrate"
_STATE = {
    "submitted": WAITING,
    "running": RUNNING,
    "resumed": RUNNING,
    "moving": RUNNING,
    "paused": PAUSED,
    "done": DONE,
    "failed": FAILED,
}


@dataclass(slots=True)
class _Life:
    """Where the tasks of a job are, as far as the journal says."""

    nodes: tuple[int, ...] = ()  # of each task: where it runs, or where its image is
    yield_frac: float = 0.0
    saved: bool = False
    wanted: bool = False
    flight: str = ""  # verb of the operation under way
    flight_yield_frac: float = 0.0  # the yield that it brings
    flight_nodes: tuple[int, ...] = ()  # and where the tasks were when it began
    for_a_move: bool = False  # the save under way is the first part of a migration
    finished: set[int] = field(default_factory=set)

    def left(self) -> Iterator[tuple[int, int]]:
        """Tasks that have not ended, with their nodes."""
        return ((task, node) for task, node in enumerate(self.nodes) if task not in self.finished)


class Timeline:
    """Spans and jobs of a run, from its journal's entries in their order; each costs what it changes.

    `closed` are the spans that are over, `now_s` is the time of the last entry, `ended` says that no more will come.
    An entry that goes back in time counts as one of now. Trace second 0 is wall second 0.
    """

    def __init__(self, time_scale: float = 1.0, node_names: Sequence[str] = ()) -> None:
        self.time_scale = time_scale
        self.node_names = tuple(node_names)
        self.nodes = len(self.node_names)
        self.closed: list[Span] = []
        self.jobs: dict[int, JobFacts] = {}
        self.now_s = 0.0
        self.ended = False
        self._zero_t_s: float | None = None
        self._open: dict[tuple[int, int], Span] = {}
        self._lives: dict[int, _Life] = {}

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any]) -> Timeline:
        """Return the empty timeline of a run: names of its nodes and time scale from manifest.json."""
        return cls(float(manifest["clocks"]["time_scale"]), tuple(manifest["nodes"]))

    @property
    def open(self) -> list[Span]:
        """Return the spans that last now, at most one a task."""
        return list(self._open.values())

    @property
    def spans(self) -> list[Span]:
        """Return all spans, those that are over first; the end of one that lasts is None."""
        return [*self.closed, *self._open.values()]

    def until_now(self) -> list[Span]:
        """Return all spans, those that last closed at the time of the last entry; without those of no length."""
        lasting = (replace(span, end_s=self.now_s) for span in self._open.values() if span.begin_s < self.now_s)
        return [*self.closed, *lasting]

    def to_trace_s(self, wall_s: float) -> float:
        """Return the trace second of a wall second since the replay began."""
        return wall_s * self.time_scale

    def node_name(self, node: int) -> str:
        """Return the name of a node, or its index if it has none."""
        return self.node_names[node] if node < len(self.node_names) else str(node)

    def schedule(self, name: str = "measured") -> Schedule:
        """Return what is known by now as a schedule."""
        facts = {job: replace(each) for job, each in self.jobs.items()}
        return Schedule(name, self.until_now(), facts, self.nodes, self.node_names, self.time_scale, self.now_s)

    def feed(self, event: events.Known) -> None:
        """Take the next event; kinds without a meaning here, and all before the replay begins, change nothing."""
        if isinstance(event, events.Replay):
            self._end()
            self.ended = False
            begin_s = event.t_s - event.trace_s / self.time_scale
            # a second replay in one journal goes on where the first one ended
            self._zero_t_s = begin_s if self._zero_t_s is None else min(begin_s, event.t_s - self.now_s)
        if self._zero_t_s is None:
            return
        self.now_s = max(self.now_s, event.t_s - self._zero_t_s)
        self._take(event)

    def _take(self, event: events.Known) -> None:
        match event:
            case events.Decision():
                self._decision(event)
            case events.Guest():
                self._guest(event)
            case events.Intent():
                self._intent(event)
            case events.Outcome():
                self._outcome(event)
            case events.Job():
                self._job(event)
            case events.Retry(job=job):
                self._retry(job)
            case events.Migration():
                self._migration(event)
            case events.Rescheduling():
                self._facts(event.job).penalty_s += event.penalty_s
            case events.Teardown() | events.Aborted():
                self._end()

    def _facts(self, job: int) -> JobFacts:
        return self.jobs.setdefault(job, JobFacts(job))

    def _life(self, job: int) -> _Life:
        return self._lives.setdefault(job, _Life())

    def _put(self, job: int, task: int, node: int, kind: str, yield_frac: float) -> None:
        """Let a task do this from now on."""
        now = self._open.get((job, task))
        if now is not None and (now.node, now.kind, now.yield_frac) == (node, kind, yield_frac):
            return
        self._close(job, task)
        self._open[job, task] = Span(job, task, node, self.now_s, None, kind, yield_frac)
        self.nodes = max(self.nodes, node + 1)

    def _close(self, job: int, task: int) -> None:
        span = self._open.pop((job, task), None)
        if span is not None and span.begin_s < self.now_s:
            self.closed.append(replace(span, end_s=self.now_s))

    def _close_all(self, job: int) -> None:
        for task in range(len(self._life(job).nodes)):
            self._close(job, task)

    def _end(self) -> None:
        for job, task in list(self._open):
            self._close(job, task)
        self.ended = True

    def _decision(self, event: events.Decision) -> None:
        """Learn the requirements of jobs that were submitted."""
        view = event.view
        for job in event.event.submitted:
            facts = self._facts(job)
            row = view.job_id.index(job)
            facts.tasks = view.tasks[row]
            facts.cpu_need_frac = view.cpu_need_frac[row]
            facts.mem_req_frac = view.mem_req_frac[row]
            facts.submit_s = view.submit_time_s[row] / self.time_scale

    def _job(self, event: events.Job) -> None:
        job, state = event.job, _STATE.get(event.state)
        facts, life = self._facts(job), self._life(job)
        if state is None or facts.state in ENDED:
            return
        facts.state = state
        if event.state == "submitted":
            facts.submit_s = self.now_s
        elif event.state == "running":
            facts.start_s = self.now_s
        if state in ENDED:
            facts.end_s = self.now_s
            self._close_all(job)
            return
        life.wanted = state == RUNNING
        if life.saved and not life.flight:
            self._rest(job, life)

    def _rest(self, job: int, life: _Life) -> None:
        """Let a saved job wait if it is wanted; else it is paused, and has no spans."""
        for task, node in life.left():
            if life.wanted:
                self._put(job, task, node, WAIT, 0.0)
            else:
                self._close(job, task)

    def _run(self, job: int, life: _Life) -> None:
        """Let a job's tasks run, except those that have not progressed since they were read back."""
        for task, node in life.left():
            now = self._open.get((job, task))
            self._put(job, task, node, RESTORE if now and now.kind == RESTORE else RUN, life.yield_frac)

    def _ended(self, job: int) -> bool:
        return self._facts(job).state in ENDED

    def _intent(self, event: events.Intent) -> None:
        job, verb, nodes = event.job, event.verb, event.nodes
        life, facts = self._life(job), self._facts(job)
        if self._ended(job):
            return
        facts.tasks = facts.tasks or len(nodes)
        life.flight, life.flight_yield_frac, life.flight_nodes = verb, event.yield_frac, life.nodes
        if verb in (START, RESTORE):
            life.nodes, life.yield_frac = nodes, life.flight_yield_frac
            for task, node in life.left():
                self._put(job, task, node, verb, life.yield_frac)
        elif verb == SAVE:
            life.for_a_move = life.wanted
            for task, node in life.left():
                self._put(job, task, node, SAVE, 0.0)
        elif verb in (TRANSFER, MIGRATE):
            for task, source in life.left():
                if source != nodes[task] and verb == TRANSFER:
                    self._put(job, task, nodes[task], TRANSFER, 0.0)
                elif source != nodes[task]:
                    self._put(job, task, source, LIVE, life.yield_frac)

    def _retry(self, job: int) -> None:
        """Guests that had been created were destroyed, and are created again."""
        life = self._life(job)
        if life.flight in (START, RESTORE) and not self._ended(job):
            for task, node in life.left():
                self._put(job, task, node, life.flight, life.yield_frac)

    def _outcome(self, event: events.Outcome) -> None:
        job, verb, nodes = event.job, event.verb, event.nodes
        life = self._life(job)
        if self._ended(job) or life.flight != verb:
            return
        life.flight = ""
        if not event.ok:
            self._undo(job, life, verb)
            return
        if verb == SAVE:
            life.saved = True
            facts = self._facts(job)
            facts.migrations += life.for_a_move
            facts.preemptions += not life.for_a_move
            self._rest(job, life)
        elif verb == TRANSFER:
            life.nodes = nodes
            self._rest(job, life)
        elif verb == RESTORE:
            life.saved = False
        elif verb in (START, CAP, MIGRATE):
            self._facts(job).migrations += verb == MIGRATE and life.nodes != life.flight_nodes
            life.yield_frac = life.flight_yield_frac
            self._run(job, life)

    def _undo(self, job: int, life: _Life, verb: str) -> None:
        """An operation has failed for good: the job is what it was before."""
        if verb == START:
            self._close_all(job)
        elif verb in (RESTORE, TRANSFER):
            self._rest(job, life)
        else:
            self._run(job, life)

    def _guest(self, event: events.Guest) -> None:
        job, task, node = event.job, event.task, event.node
        now = self._open.get((job, task))
        if now is None or now.kind not in IN_MEMORY or (now.node != node and now.kind != LIVE):
            return
        if event.event in ("ended", "done"):
            self._life(job).finished.add(task)
            self._close(job, task)
        elif event.event == "progress" and now.kind in (START, RESTORE):
            self._put(job, task, node, RUN, now.yield_frac)

    def _migration(self, event: events.Migration) -> None:
        """A task has arrived at the end of its live migration."""
        job, task = event.job, event.task
        life = self._life(job)
        if event.error is not None or self._ended(job) or life.flight != MIGRATE or task in life.finished:
            return
        life.nodes = tuple(event.target if index == task else node for index, node in enumerate(life.nodes))
        self._put(job, task, event.target, RUN, life.flight_yield_frac)


def read_timeline(run: Path) -> Timeline:
    """Read the timeline of a run directory, whether the run is complete, aborted or still going on.

    Raises `UserError` when its manifest or journal cannot be read, or is not one of a run.
    """
    manifest = read_json(run / "manifest.json")
    try:
        timeline = Timeline.of_manifest(manifest)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{run / 'manifest.json'}: expected clocks.time_scale and nodes of a run: {error!r}") from error
    for number, event in enumerate(read_events(run / "events.jsonl"), 1):
        try:
            timeline.feed(event)
        except (LookupError, ValueError) as error:  # an event that contradicts those before it, or itself
            where = run / "events.jsonl"
            raise UserError(f"{where}:{number}: not an entry of a run's journal: {error!r}") from error
    return timeline
