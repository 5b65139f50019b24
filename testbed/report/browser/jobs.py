"""Jobs, where they run and what is being done to them, as the journal tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from testbed.run import events

STATES: Final = ("coming", "waiting", "running", "paused", "done", "failed")
_STATE_OF: Final = {"submitted": "waiting", "running": "running", "resumed": "running", "paused": "paused",
                    "done": "done", "failed": "failed"}  # fmt: skip
_ARRIVES: Final = ("start", "restore")


@dataclass(slots=True)
class ActiveJob:
    """A job that was submitted and has not ended.

    `nodes` are those on which its tasks hold memory, by task; `target_nodes` those to which it migrates live; `verb`
    is the operation under way.
    """

    job: int
    state: str = "waiting"
    tasks: int = 0
    cpu_need_frac: float = 0.0
    mem_req_frac: float = 0.0
    yield_frac: float = 0.0
    nodes: tuple[int, ...] = ()
    target_nodes: tuple[int, ...] = ()
    verb: str = ""

    def tasks_on(self, node: int) -> list[int]:
        """Tasks that hold memory on a node; one that migrates live holds it at both ends."""
        count = max(len(self.nodes), len(self.target_nodes))
        return [
            task for task in range(count) if node in self.nodes[task : task + 1] + self.target_nodes[task : task + 1]
        ]


@dataclass(frozen=True, slots=True)
class FlyingAction:
    """An operation under way; `begin_s` is wall seconds since the run began."""

    action: int
    verb: str
    job: int
    nodes: tuple[int, ...]
    yield_frac: float
    begin_s: float


class JobBoard:
    """Takes journal entries one by one. `changed_nodes` gathers nodes whose guests changed; the reader empties it."""

    def __init__(self) -> None:
        self.total = 0
        self.active: dict[int, ActiveJob] = {}
        self.done = 0
        self.failed = 0
        self.in_flight: dict[int, FlyingAction] = {}
        self.on_node: dict[int, set[int]] = {}  # node -> jobs that hold memory there
        self.changed_nodes: set[int] = set()

    def feed(self, event: events.Known) -> None:
        """Take one event; those of other kinds change nothing."""
        match event:
            case events.Replay():
                self.total = event.jobs
            case events.Job():
                self._job(event.job, event.state)
            case events.Decision():
                self._decision(event.view)
            case events.Intent():
                self._intent(event)
            case events.Outcome():
                self._outcome(event)
            case events.Teardown() | events.Aborted():
                for live in list(self.active.values()):
                    self._place(live, (), ())
                self.in_flight.clear()

    def counts(self) -> dict[str, int]:
        """Jobs by state."""
        counts = dict.fromkeys(STATES, 0)
        for live in self.active.values():
            counts[live.state] += 1
        counts["done"], counts["failed"] = self.done, self.failed
        counts["coming"] = max(0, self.total - len(self.active) - self.done - self.failed)
        return counts

    def _job(self, job: int, word: str) -> None:
        state = _STATE_OF.get(word)
        if state is None:  # "moving": it goes on running, elsewhere
            return
        live = self.active.get(job)
        if state in {"done", "failed"}:
            if live is None and state == "done":
                return  # told already
            if live is not None:
                self._place(live, (), ())
                del self.active[job]
            self.done += state == "done"
            self.failed += state == "failed"
            return
        if live is None:
            live = self.active[job] = ActiveJob(job)
        live.state = state

    def _decision(self, view: events.View) -> None:
        rows = zip(view.job_id, view.tasks, view.cpu_need_frac, view.mem_req_frac, strict=True)
        for job, tasks, cpu_need_frac, mem_req_frac in rows:
            live = self.active.get(job)
            if live is not None and not live.tasks:
                live.tasks, live.cpu_need_frac, live.mem_req_frac = tasks, cpu_need_frac, mem_req_frac

    def _intent(self, event: events.Intent) -> None:
        nodes, verb = event.nodes, event.verb
        flying = FlyingAction(event.action, verb, event.job, nodes, event.yield_frac, event.t_s)
        self.in_flight[flying.action] = flying
        live = self.active.get(flying.job)
        if live is None:
            return
        live.verb = verb
        if verb in _ARRIVES:
            live.yield_frac = flying.yield_frac
            self._place(live, nodes, ())
        elif verb == "migrate":
            self._place(live, live.nodes, nodes)
        self.changed_nodes.update(live.nodes)

    def _outcome(self, event: events.Outcome) -> None:
        flying = self.in_flight.pop(event.action, None)
        live = self.active.get(event.job)
        if flying is None or live is None:
            return
        ok = event.ok
        live.verb = ""
        self.changed_nodes.update(live.nodes)
        if flying.verb == "migrate":
            self._place(live, flying.nodes if ok else live.nodes, ())
        elif flying.verb == "save" and ok:
            live.yield_frac = 0.0
            self._place(live, (), ())
        elif flying.verb in _ARRIVES and not ok:
            self._place(live, (), ())
        if ok and flying.verb in {"start", "restore", "cap", "migrate"}:
            live.yield_frac = flying.yield_frac

    def _place(self, live: ActiveJob, nodes: Sequence[int], target_nodes: Sequence[int]) -> None:
        before = {*live.nodes, *live.target_nodes}
        live.nodes, live.target_nodes = tuple(nodes), tuple(target_nodes)
        after = {*nodes, *target_nodes}
        for node in before - after:
            self.on_node[node].discard(live.job)
        for node in after - before:
            self.on_node.setdefault(node, set()).add(live.job)
        self.changed_nodes |= before | after
