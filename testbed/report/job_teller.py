"""Makes the story of one job from the entries of a run's journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from testbed.measure.reasons import reason_of
from testbed.report.job_ledger import POLICY, Ledger, Target, Wait
from testbed.report.job_story import (
    DECISION,
    ENDED,
    NODE,
    OPERATION,
    RESCHEDULING,
    RETRY,
    SUBMITTED,
    Event,
    Span,
    Story,
    WaitSpan,
)

_TOTALS = frozenset({"t_s", "trace_s", "elapsed_s", "waited_s"})
_KEPT_KEYS = frozenset({"t_s", "trace_s", "kind", "job", "source", "target", "node", "nodes"})  # told by other means


class Teller:
    """Makes the story of `job` from the entries of a journal, in their order."""

    def __init__(self, job: int, ledger: Ledger) -> None:
        self.story = Story(job)
        self._ledger = ledger
        self._place = ledger.place(job)
        self._operation_waits: list[WaitSpan] = []  # before the next operation
        self._wait: tuple[float, Wait, bool] | None = None
        self._run: tuple[float, tuple[int, ...], float] | None = None
        self._decisions = 0
        self._left_out = 0  # decisions in a row that left the job out without an event
        self._told_out = False  # whether the last event of a decision was that it leaves the job out
        self._seen: set[int] = set()  # jobs whose submission was part of an earlier decision
        self._ends: dict[int, str] = {}  # jobs that ended since the last decision
        self._nodes: list[dict[str, Any]] = []  # what nodes did since then
        self._away: dict[str, Mapping[str, Any]] = {}  # entries of nodes that are away, until the job's first entry
        self._stayed: list[int] = []  # jobs whose live migration did not succeed since then
        self._reader = {
            "decision": self._decision,
            "node": self._node,
            "outcome": self._outcome,
            "job": self._job,
            "intent": self._intent,
            "retry": self._retry,
            "no-room": self._told,
            "migration": self._told,
            "rescheduling": self._told,
            "rescheduling_cut_off": self._told,
            "guest": self._told,
            "unchecked": self._told,
            "aborted": self._aborted,
        }

    def feed(self, entry: Mapping[str, Any]) -> None:
        """Take the next entry; raises `LookupError`, `TypeError` or `ValueError` for one that a run does not write."""
        story, kind = self.story, entry["kind"]
        t_s = float(entry["t_s"])
        if not story.ended:
            story.t_s, story.trace_s = t_s, float(entry.get("trace_s", story.trace_s))
        before = self._place.target
        if kind == "intent" and int(entry["job"]) == story.job:
            self._close_wait(t_s)
        self._ledger.feed(entry)
        read = self._reader.get(kind)
        if read is not None:
            read(entry)
        if kind == "decision" and self._place.state != "coming" and not self._place.ended:
            self._decided(entry, before)
        if kind == "decision":
            self._seen.update(entry["event"]["submitted"])
            self._ends, self._nodes, self._stayed = {}, [], []
        self._follow(t_s)

    def finish(self) -> Story:
        """Close what lasts at the end of the journal."""
        story = self.story
        if self._wait is not None:
            story.waits_for = self._wait[1]
        self._close_wait(story.t_s)
        self._close_run(story.t_s, last=True)
        self._leave_operation(story.t_s)
        return story

    def _leave_operation(self, t_s: float) -> None:
        """Note of an operation whose end the journal does not tell for how long it was under way."""
        if self.story.operation is not None:
            self.story.operation.facts["under_way_s"] = t_s - self.story.operation.t_s

    def _mine(self, entry: Mapping[str, Any]) -> bool:
        return int(entry["job"]) == self.story.job

    def _add(self, entry: Mapping[str, Any], kind: str, facts: Mapping[str, Any]) -> Event:
        event = Event(float(entry["t_s"]), float(entry["trace_s"]), kind, dict(facts))
        self.story.events.append(event)
        return event

    def _names(self, nodes: Sequence[int]) -> list[str]:
        known = self._ledger.node_names
        return [known[node] if node < len(known) else f"node {node}" for node in nodes]

    def _decision(self, entry: Mapping[str, Any]) -> None:
        self._decisions += 1
        view = entry["view"]
        if self.story.job in view["job_id"]:
            done_s = float(view["virtual_time_s"][view["job_id"].index(self.story.job)])
            self.story.work_s = max(self.story.work_s, done_s)

    def _decided(self, entry: Mapping[str, Any], before: Target | None) -> None:
        after = self._place.target
        if after == before and (after is not None or self._told_out):
            self._left_out += after is None
        else:
            facts = {"number": self._decisions, **self._causes(entry["event"]), "left_out": self._left_out}
            facts |= {"before": self._target(before), "after": self._target(after)}
            self._add(entry, DECISION, facts)
            self._left_out, self._told_out = 0, after is None

    def _target(self, target: Target | None) -> dict[str, Any] | None:
        return None if target is None else {"nodes": self._names(target.nodes), "yield_frac": target.yield_frac}

    def _causes(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the decision answered: the event, and what the journal has told since the decision before."""
        submitted = list(event["submitted"])
        return {
            "submitted": [job for job in submitted if job not in self._seen],
            "tried_again": [job for job in submitted if job in self._seen],
            "ended": [{"job": job, "state": self._ends.get(job, "ended")} for job in event["completed"]],
            "periodic": bool(event["periodic"]),
            "changed": bool(event["changed"]),
            "nodes": list(self._nodes),
            "not_migrated": list(self._stayed),
        }

    def _node(self, entry: Mapping[str, Any]) -> None:
        name, online = str(entry["node"]), bool(entry["online"])
        self._nodes.append({"node": name, "online": online})
        if self._place.state != "coming":
            self._tell_node(entry)
        elif online:
            self._away.pop(name, None)
        else:
            self._away[name] = entry

    def _tell_node(self, entry: Mapping[str, Any]) -> None:
        if not self.story.ended:
            told = {"node": str(entry["node"]), "online": bool(entry["online"]), "reason": str(entry["reason"])}
            self._add(entry, NODE, {**told, **_code(entry)})

    def _job(self, entry: Mapping[str, Any]) -> None:
        job, state = int(entry["job"]), str(entry["state"])
        if state in ("done", "failed"):
            self._ends[job] = state
        if not self._mine(entry):
            return
        story = self.story
        for away in self._away.values():  # a job may not fit because of them
            self._tell_node(away)
        self._away = {}
        story.state, story.t_s, story.trace_s = state, float(entry["t_s"]), float(entry["trace_s"])
        if state == "submitted":
            self._add(entry, SUBMITTED, {})
        elif state in ("done", "failed"):
            story.reason = reason_of(entry) if state == "failed" else None
            told = {} if story.reason is None else {"code": story.reason.code, "reason": story.reason.text}
            self._add(entry, ENDED, {"state": state, **told})

    def _intent(self, entry: Mapping[str, Any]) -> None:
        if not self._mine(entry):
            return
        self._leave_operation(float(entry["t_s"]))
        facts = {"action": entry["action"], "verb": str(entry["verb"]), "nodes": self._names(entry["nodes"])}
        facts |= {"yield_frac": float(entry["yield_frac"]), "waits": list(self._waits())}
        self.story.operation = self._add(entry, OPERATION, facts)
        self._operation_waits = []

    def _waits(self) -> Iterator[dict[str, Any]]:
        """Return the waits before an operation: one for each cause, with the jobs that held memory meanwhile."""
        found: dict[tuple[str, tuple[int, ...], str], tuple[float, set[int]]] = {}
        for span in self._operation_waits:
            key = span.wait.kind, span.wait.nodes, span.wait.behind
            before_s, jobs = found.get(key, (0.0, set()))
            found[key] = before_s + span.end_s - span.begin_s, jobs | {*span.wait.jobs}
        for (kind, nodes, behind), (waited_s, jobs) in found.items():
            yield {
                "kind": kind, "waited_s": waited_s, "nodes": self._names(nodes), "jobs": sorted(jobs), "behind": behind,
            }  # fmt: skip

    def _outcome(self, entry: Mapping[str, Any]) -> None:
        if not entry["ok"] and entry["verb"] == "migrate":
            self._stayed.append(int(entry["job"]))
        if not self._mine(entry) or self.story.operation is None:
            return
        self.story.operation.facts.update(
            ok=bool(entry["ok"]), error=entry["error"], elapsed_s=float(entry["elapsed_s"]),
            waited_s=float(entry["waited_s"]), bytes=int(entry["bytes"]),
            phases={name: value for name, value in entry.items() if name.endswith("_s") and name not in _TOTALS},
            **_code(entry),
        )  # fmt: skip
        self.story.operation = None

    def _retry(self, entry: Mapping[str, Any]) -> None:
        if self._mine(entry):
            self._add(entry, RETRY, {"attempt": int(entry["attempt"]), "error": str(entry["error"]), **_code(entry)})

    def _told(self, entry: Mapping[str, Any]) -> None:
        """Take an entry as it is, with nodes by name."""
        if not self._mine(entry):
            return
        named = {key: self._names([int(entry[key])])[0] for key in ("source", "target", "node") if key in entry}
        rest = {name: value for name, value in entry.items() if name not in _KEPT_KEYS}
        kind = RESCHEDULING if entry["kind"] == "rescheduling_cut_off" else entry["kind"]
        more = {"cut_off": entry["kind"] == "rescheduling_cut_off"} if kind == RESCHEDULING else {}
        self._add(entry, kind, {**rest, **named, **more})

    def _aborted(self, entry: Mapping[str, Any]) -> None:
        self.story.aborted = str(entry["reason"])

    def _follow(self, t_s: float) -> None:
        """Note whether the job runs or waits from now on."""
        place, story = self._place, self.story
        run = (place.running_on, place.yield_frac) if place.runs and place.running_on is not None else None
        if run != (None if self._run is None else self._run[1:]):
            self._close_run(t_s)
            self._run = None if run is None else (t_s, *run)
        wait = self._ledger.wait(story.job)
        if wait != (None if self._wait is None else self._wait[1]):
            self._close_wait(t_s)
            self._wait = None if wait is None else (t_s, wait, not place.runs and not place.flight)

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


def _code(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"code": entry["code"]} if "code" in entry else {}
