"""Builder of one job's story, from the events of a run and the states after them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from testbed.measure.reasons import reason_of
from testbed.run import events
from testbed.run.events import kind_of
from testbed.run.history import History
from testbed.run.job_history import JobHistory
from testbed.run.journal import plain
from testbed.run.phases import Phase
from testbed.study.report.run.job_story import (
    DECISION,
    ENDED,
    FENCE,
    NODE,
    OPERATION,
    ORDER,
    RESCHEDULING,
    RETRY,
    SUBMITTED,
    Event,
    Span,
    Story,
    WaitSpan,
)
from testbed.study.report.run.job_waits import POLICY, Target, Wait, Waits, runs, target_of
from testbed.study.report.terminal.order_words import Halting, text_of_order

_Told: TypeAlias = (
    events.NoRoom
    | events.Migration
    | events.Rescheduling
    | events.ReschedulingCutOff
    | events.Suspension
    | events.Guest
    | events.Unchecked
    | events.FenceAwaited
)
_OfJob: TypeAlias = _Told | events.Job | events.Intent | events.Outcome | events.Retry
_TOTALS = frozenset({"t_s", "trace_s", "elapsed_s", "waited_s"})
_KEPT_KEYS = frozenset({"t_s", "trace_s", "kind", "job", "source", "target", "node", "nodes"})  # reported elsewhere


class Teller:
    """Builder of the story of `job`, as a listener of its run's history."""

    def __init__(self, job: int, node_names: Sequence[str], waits: Waits) -> None:
        self.story = Story(job)
        self._node_names = node_names
        self._waits = waits
        self._target: Target | None = None
        self._operation_waits: list[WaitSpan] = []  # before the next operation
        self._wait: tuple[float, Wait, bool] | None = None
        self._run: tuple[float, tuple[int, ...], float] | None = None
        self._decisions = 0
        self._left_out = 0  # consecutive decisions without this job that have no event of their own
        self._told_out = False  # whether the last decision event does not select the job
        self._nodes: list[dict[str, Any]] = []  # events of nodes since the last decision
        self._away: list[events.Node] = []  # events of nodes that are away, until the job's first entry
        self._stayed: list[int] = []  # jobs whose live migration failed since the last decision

    def take(self, event: events.Known, history: History) -> None:
        """Process the next event and the state after it."""
        story, job = self.story, history.jobs.get(self.story.job)
        if not story.ended:
            story.t_s, story.trace_s = event.t_s, event.trace_s
        if isinstance(event, events.Intent) and self._mine(event):
            self._close_wait(event.t_s)
        self._tell(event, history, job)
        if job is not None:
            self._follow(event.since_s if isinstance(event, events.Resumed) else event.t_s, job, history)

    def _tell(self, event: events.Known, history: History, job: JobHistory | None) -> None:
        match event:
            case events.Decision():
                self._decision(event, history, job)
            case events.Node():
                self._node(event, job)
            case events.Order() | events.ClockStarted() | events.Resumed() | events.Recovered():
                self._order(event, job)
            case events.Outcome():
                self._outcome(event)
            case events.Job() if self._mine(event):
                self._job(event)
            case events.Intent() if self._mine(event):
                self._intent(event)
            case events.Retry() if self._mine(event):
                self._add(event, RETRY, {"attempt": event.attempt, "error": event.error, **_code(event.code)})
            case events.Aborted():
                self.story.aborted = event.reason
            case _ if isinstance(event, _Told) and self._mine(event):
                self._told(event)

    def finish(self) -> Story:
        """Close all open spans at the end of the journal; return the story."""
        story = self.story
        if self._wait is not None:
            story.waits_for = self._wait[1]
        self._close_wait(story.t_s)
        self._close_run(story.t_s, last=True)
        self._leave_operation(story.t_s)
        return story

    def _leave_operation(self, t_s: float) -> None:
        """Record the duration so far of an operation without an end in the journal."""
        if self.story.operation is not None:
            self.story.operation.facts["under_way_s"] = t_s - self.story.operation.t_s

    def _mine(self, event: _OfJob) -> bool:
        return event.job == self.story.job

    def _add(self, event: events.Entry, kind: str, facts: Mapping[str, Any]) -> Event:
        told = Event(event.t_s, event.trace_s, kind, dict(facts))
        self.story.events.append(told)
        return told

    def _names(self, nodes: Sequence[int]) -> list[str]:
        known = self._node_names
        return [known[node] if node < len(known) else f"node {node}" for node in nodes]

    def _decision(self, event: events.Decision, history: History, job: JobHistory | None) -> None:
        self._decisions += 1
        if job is not None and job.active:
            self.story.work_s = max(self.story.work_s, job.virtual_time_s)
            self._decided(event, history, target_of(job))
        self._nodes, self._stayed = [], []

    def _decided(self, event: events.Decision, history: History, after: Target | None) -> None:
        before = self._target
        if after == before and (after is not None or self._told_out):
            self._left_out += after is None
        else:
            facts = {"number": self._decisions, **self._causes(event.event, history), "left_out": self._left_out}
            facts |= {"before": self._goal(before), "after": self._goal(after)}
            self._add(event, DECISION, facts)
            self._left_out, self._told_out = 0, after is None

    def _goal(self, target: Target | None) -> dict[str, Any] | None:
        return None if target is None else {"nodes": self._names(target.nodes), "yield_frac": target.yield_frac}

    def _causes(self, trigger: events.Trigger, history: History) -> dict[str, Any]:
        """Return the causes of the decision: its event, and the journal's entries since the previous decision."""
        jobs = history.jobs
        return {
            "submitted": [job for job in trigger.submitted if job not in jobs or jobs[job].decisions <= 1],
            "tried_again": [job for job in trigger.submitted if job in jobs and jobs[job].decisions > 1],
            "ended": [
                {"job": job, "state": jobs[job].word if job in jobs and jobs[job].ended else "ended"}
                for job in trigger.completed
            ],
            "periodic": trigger.periodic,
            "changed": trigger.changed,
            "nodes": list(self._nodes),
            "not_migrated": list(self._stayed),
        }

    def _node(self, event: events.Node, job: JobHistory | None) -> None:
        self._nodes.append({"node": event.node, "online": event.online})
        if job is not None and job.phase is not Phase.COMING:
            self._tell_node(event)
            return
        self._away = [each for each in self._away if each.node != event.node]
        if not event.online:
            self._away.append(event)

    def _order(self, event: Halting, job: JobHistory | None) -> None:
        if job is None or not job.active:
            return
        text = text_of_order(event)
        operation = self.story.operation
        if isinstance(event, events.Recovered):
            text = f"trace time continues after {event.blind_s:.1f} s without a controller"
            text += "; the job ran in that time" if job.job in event.adopted else ""
            if operation is not None and operation.facts["action"] in event.carried_on:
                operation.facts["carried_on"] = True
        self._add(event, ORDER, {"text": text})

    def _tell_node(self, event: events.Node) -> None:
        if not self.story.ended:
            self._add(
                event, NODE, {"node": event.node, "online": event.online, "reason": event.reason, **_code(event.code)}
            )

    def _job(self, event: events.Job) -> None:
        story, state = self.story, event.state
        for away in self._away:  # lost nodes may be the reason why a job does not fit
            self._tell_node(away)
        self._away = []
        story.state, story.t_s, story.trace_s = state, event.t_s, event.trace_s
        if state == "submitted":
            self._add(event, SUBMITTED, {})
        elif state in ("done", "failed"):
            story.reason = reason_of(event.detail, event.code) if state == "failed" else None
            told = {} if story.reason is None else {"code": story.reason.code, "reason": story.reason.text}
            self._add(event, ENDED, {"state": state, **told})

    def _intent(self, event: events.Intent) -> None:
        self._leave_operation(event.t_s)
        facts = {"action": event.action, "verb": event.verb, "nodes": self._names(event.nodes)}
        facts |= {"yield_frac": event.yield_frac, "waits": list(self._waited())}
        self.story.operation = self._add(event, OPERATION, facts)
        self._operation_waits = []

    def _waited(self) -> Iterator[dict[str, Any]]:
        """Yield the waits before an operation: one per cause, with the jobs that held memory during the wait."""
        found: dict[tuple[str, tuple[int, ...], str], tuple[float, set[int]]] = {}
        for span in self._operation_waits:
            key = span.wait.kind, span.wait.nodes, span.wait.behind
            before_s, jobs = found.get(key, (0.0, set()))
            found[key] = before_s + span.end_s - span.begin_s, jobs | {*span.wait.jobs}
        for (kind, nodes, behind), (waited_s, jobs) in found.items():
            yield {
                "kind": kind, "waited_s": waited_s, "nodes": self._names(nodes), "jobs": sorted(jobs), "behind": behind,
            }  # fmt: skip

    def _outcome(self, event: events.Outcome) -> None:
        if not event.ok and event.verb == "migrate":
            self._stayed.append(event.job)
        if not self._mine(event) or self.story.operation is None:
            return
        self.story.operation.facts.update(
            ok=event.ok, error=event.error, elapsed_s=event.elapsed_s, waited_s=event.waited_s, bytes=event.bytes,
            phases={name: value for name, value in plain(event).items() if name.endswith("_s") and name not in _TOTALS},
            **_code(event.code),
        )  # fmt: skip
        self.story.operation = None

    def _told(self, event: _Told) -> None:
        """Add an event with all its facts, and with nodes by name."""
        entry = plain(event)
        numbered = [key for key in ("source", "target", "node") if key in entry]
        named: dict[str, Any] = dict(zip(numbered, self._names([entry[key] for key in numbered]), strict=True))
        rest = {name: value for name, value in entry.items() if name not in _KEPT_KEYS}
        if isinstance(event, events.FenceAwaited):
            left_s = max(0.0, event.until_s - event.t_s)
            self._add(event, FENCE, {"nodes": self._names(event.nodes), "left_s": left_s})
        elif isinstance(event, events.Penalty):
            self._add(event, RESCHEDULING, {**rest, "cut_off": isinstance(event, events.ReschedulingCutOff)})
        else:
            self._add(event, kind_of(event), {**rest, **named})

    def _follow(self, t_s: float, job: JobHistory, history: History) -> None:
        """Record the job's present run or wait, and its target in the last decision."""
        self._target = target_of(job)
        run = (job.running_on, job.yield_frac) if runs(job) and job.running_on is not None else None
        if run != (None if self._run is None else self._run[1:]):
            self._close_run(t_s)
            self._run = None if run is None else (t_s, *run)
        wait = self._waits.of(job, history)
        if wait != (None if self._wait is None else self._wait[1]):
            self._close_wait(t_s)
            self._wait = None if wait is None else (t_s, wait, run is None and job.flight is None)

    def _close_wait(self, t_s: float) -> None:
        if self._wait is not None and self._wait[0] < t_s:
            span = WaitSpan(self._wait[0], t_s, self._wait[1], self._wait[2])
            self.story.waits.append(span)
            if span.wait.kind != POLICY:
                self._operation_waits.append(span)
        self._wait = None

    def _close_run(self, t_s: float, *, last: bool = False) -> None:
        if self._run is not None and (self._run[0] < t_s or last):
            begin_s, nodes, yield_frac = self._run
            self.story.spans.append(Span(begin_s, t_s, tuple(self._names(nodes)), yield_frac))
        self._run = None


def _code(code: str | None) -> dict[str, str]:
    return {} if code is None else {"code": code}
