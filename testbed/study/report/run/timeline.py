"""Builder of a run's schedule: spans of tasks on nodes, from the states of jobs in the history of the run.

`testbed.study.report.run.schedule` explains the kinds of spans.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from testbed.run import events
from testbed.run.history import History
from testbed.run.job_history import JobHistory
from testbed.run.phases import COURSES, Phase
from testbed.run.standstill import Standstill
from testbed.study.report.run.schedule import (
    LIVE,
    RESTORE,
    RUN,
    SAVE,
    START,
    TRANSFER,
    WAIT,
    JobFacts,
    Schedule,
    Span,
)

_GIVEN_UP: Final = {course.during: course.before for course in COURSES.values()}


def doings(job: JobHistory) -> Iterator[tuple[int, int, str, float]]:
    """Yield the present activity of each active task: task, node, kind of its span, yield."""
    phase = job.phase if job.flight is not None else _GIVEN_UP.get(job.phase, job.phase)
    if job.ended or job.withdrawn or phase is Phase.WAITING:
        return
    for task, node in enumerate(job.running_on or job.saved_on or ()):
        doing = None if task in job.finished_tasks else _doing(job, phase, task, node)
        if doing is not None:
            yield task, *doing


def _doing(job: JobHistory, phase: Phase, task: int, node: int) -> tuple[int, str, float] | None:
    flight, runs = job.flight, RESTORE if task in job.unready else RUN
    if phase is Phase.SAVED or (phase is Phase.TRANSFERRING and flight is not None and flight.nodes[task] == node):
        wanted = job.wanted is not None if flight is None else flight.for_a_move
        return (node, WAIT, 0.0) if wanted else None
    if flight is None or phase is Phase.RUNNING:
        return node, runs, job.yield_frac
    if phase is Phase.MIGRATING:
        kind = runs if node == flight.nodes[task] else LIVE
        return node, kind, flight.yield_frac if task in flight.arrived else job.yield_frac
    if phase in (Phase.SAVING, Phase.TRANSFERRING):
        return (node, SAVE, 0.0) if phase is Phase.SAVING else (flight.nodes[task], TRANSFER, 0.0)
    kind = START if phase is Phase.STARTING else RESTORE
    return node, kind if task in job.unready else RUN, flight.yield_frac


class Timeline:
    """Spans and jobs of a run, as a listener of its history; the cost of an event is proportional to its changes.

    `closed` are the closed spans, `now_s` is the time of the last event, and `ended` is whether the replay has ended.
    An event that goes back in time is taken as one at `now_s`. Trace second 0 is wall second 0. Wall time excludes
    standstills of trace time: pauses of the operator and times without a controller have no length.
    """

    def __init__(self, time_scale: float = 1.0, node_names: Sequence[str] = (), policy: str = "") -> None:
        self.time_scale = time_scale
        self.policy = policy
        self.node_names = tuple(node_names)
        self.nodes = len(self.node_names)
        self.closed: list[Span] = []
        self.now_s = 0.0
        self.ended = False
        self._zero_t_s: float | None = None
        self._open: dict[tuple[int, int], Span] = {}
        self._jobs: Mapping[int, JobHistory] = {}
        self._standstill = Standstill()

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any]) -> Timeline:
        """Return the empty timeline of a run, with node names, time scale and policy from manifest.json."""
        policy = str(manifest.get("policy", ""))
        return cls(float(manifest["clocks"]["time_scale"]), tuple(manifest["nodes"]), policy)

    @property
    def open(self) -> list[Span]:
        """Return the open spans, at most one per task."""
        return list(self._open.values())

    @property
    def spans(self) -> list[Span]:
        """Return all spans, closed ones first; the end of an open span is None."""
        return [*self.closed, *self._open.values()]

    def until_now(self) -> list[Span]:
        """Return all spans, with open ones closed at the time of the last event, and without spans of no length."""
        lasting = (replace(span, end_s=self.now_s) for span in self._open.values() if span.begin_s < self.now_s)
        return [*self.closed, *lasting]

    @property
    def jobs(self) -> dict[int, JobFacts]:
        """Return the known data of the submitted jobs."""
        return {job.job: self._facts(job) for job in self._jobs.values() if job.phase is not Phase.COMING}

    def schedule(self, name: str = "measured") -> Schedule:
        """Return the spans so far as a schedule."""
        return Schedule(
            name, self.until_now(), self.jobs, self.nodes, self.node_names, self.time_scale, self.now_s,
            policy=self.policy,
        )  # fmt: skip

    def take(self, event: events.Known, history: History) -> None:
        """Process an event and the state after it; events before the replay are ignored."""
        if isinstance(event, events.Replay):
            self._end()
            self.ended, self._jobs, self._standstill = False, history.jobs, history.standstill
            begin_s = event.t_s - event.trace_s / self.time_scale
            # a second replay in one journal continues at the end of the first one
            self._zero_t_s = begin_s if self._zero_t_s is None else min(begin_s, event.t_s - self.now_s)
        if self._zero_t_s is None:
            return
        self.now_s = max(self.now_s, self._standstill.clock_s(event.t_s) - self._zero_t_s)
        if isinstance(event, events.Teardown | events.Aborted):
            self._end()
        elif (job := history.job_of(event)) is not None and not self.ended:
            self._follow(job)

    def _facts(self, job: JobHistory) -> JobFacts:
        known = job.tasks > 0
        return JobFacts(
            job.job, job.state, job.tasks,
            cpu_need_frac=job.cpu_need_frac if known else math.nan,
            mem_req_frac=job.mem_req_frac if known else math.nan,
            submit_s=math.nan if job.submit_trace_s is None else job.submit_trace_s / self.time_scale,
            start_s=self._since_zero(job.start_s),
            end_s=self._since_zero(job.end_s),
            preemptions=job.preemptions,
            migrations=job.migrations,
            penalty_s=sum((each.penalty_s or 0.0 for each in job.reschedulings), 0.0),
        )  # fmt: skip

    def _since_zero(self, t_s: float | None) -> float:
        if t_s is None or self._zero_t_s is None:
            return math.nan
        return max(0.0, self._standstill.clock_s(t_s) - self._zero_t_s)

    def _follow(self, job: JobHistory) -> None:
        """Close the spans of a job's tasks whose activity has ended, and open spans for their present activity."""
        now = {task: (node, kind, yield_frac) for task, node, kind, yield_frac in doings(job)}
        for task in range(job.tasks):
            span, doing = self._open.get((job.job, task)), now.get(task)
            same = span is not None and (span.node, span.kind, span.yield_frac) == doing
            if same and span is not None and span.cpu_need_frac == job.cpu_need_frac:
                continue
            self._close(job.job, task)
            if doing is not None:
                node, kind, yield_frac = doing
                self._open[job.job, task] = Span(
                    job.job, task, node, self.now_s, None, kind, yield_frac, job.cpu_need_frac
                )
                self.nodes = max(self.nodes, node + 1)

    def _close(self, job: int, task: int) -> None:
        span = self._open.pop((job, task), None)
        if span is not None and span.begin_s < self.now_s:
            self.closed.append(replace(span, end_s=self.now_s))

    def _end(self) -> None:
        for job, task in list(self._open):
            self._close(job, task)
        self.ended = True
