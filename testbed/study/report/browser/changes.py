"""The data for browsers: a snapshot of the whole page, and the changes since the last update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from testbed.study.report.browser.jobs import GuestRow
from testbed.study.report.browser.state import KEPT_SPANS, PHASES, SHOWN_ACTIONS, SHOWN_JOBS, RunState, span_row
from testbed.study.report.run.schedule import KINDS


class Page:
    """The data of the page for a `RunState`.

    The parts `head`, `queue`, `actions` and `reschedulings` are sent whole if they change. Of `nodes` (by index) only
    changed ones are sent. Of spans, `closed` ones are appended; `open` ones replace the open span of the same job and
    task; `gone` lists each (job, task) without an open span. `log` lines are appended.
    """

    def __init__(self, state: RunState) -> None:
        self.state = state
        self._parts: dict[str, object] = {}
        self._nodes: dict[int, dict[str, object]] = {}
        self._guests: Mapping[int, Sequence[GuestRow]] = {}
        self._open: dict[tuple[int, int], list[object]] = {}
        self._closed_count = 0
        self._log_count = 0

    def snapshot(self) -> dict[str, Any]:
        """Return the whole page as of the last `update`."""
        state = self.state
        return {
            **self._parts,
            "now_s": round(state.now_s, 3),
            "nodes": {str(node): value for node, value in sorted(self._nodes.items())},
            "closed": [row for count, row in state.closed if count <= self._closed_count],
            "open": sorted(self._open.values(), key=str),
            "log": [line for line in state.log if line[0] <= self._log_count],
            "kept_spans": KEPT_SPANS,
        }

    def update(self) -> dict[str, Any]:
        """Return the changes since the last call; only `now_s` if there are none."""
        state = self.state
        changes: dict[str, Any] = {"now_s": round(state.now_s, 3)}
        for name, make in (
            ("head", self._head), ("queue", self._queue), ("actions", self._actions),
            ("reschedulings", self._reschedulings),
        ):  # fmt: skip
            value = make()
            if self._parts.get(name) != value:
                self._parts[name] = changes[name] = value
        if nodes := self._changed_nodes():
            changes["nodes"] = nodes
        fresh = state.closed_count - self._closed_count
        if fresh:
            recent = islice(reversed(state.closed), fresh)
            changes["closed"] = [row for _, row in recent][::-1]
            self._closed_count = state.closed_count
        self._update_open(changes)
        if state.log_count > self._log_count:
            changes["log"] = [line for line in state.log if line[0] > self._log_count]
            self._log_count = state.log_count
        return changes

    def _update_open(self, changes: dict[str, Any]) -> None:
        rows = {(span.job, span.task): span_row(span) for span in self.state.timeline.open}
        changed = [row for key, row in rows.items() if self._open.get(key) != row]
        gone = [list(key) for key in self._open if key not in rows]
        if changed:
            changes["open"] = changed
        if gone:
            changes["gone"] = gone
        self._open = rows

    def _head(self) -> dict[str, object]:
        state = self.state
        zero_s = state.zero_t_s or 0.0
        anchor_ms = (
            None if state.anchor_unix_ns is None else state.anchor_unix_ns / 1e6 + (zero_s + state.stood_still_s) * 1e3
        )
        return {
            "run": state.run, "scenario": state.scenario, "policy": state.policy, "state": state.state,
            "reason": state.reason, "time_scale": state.time_scale,
            "zero_unix_ms": anchor_ms if state.zero_t_s is not None else None,
            "names": state.names, "cpus": state.cpus, "memory_mib": state.memory_mib, "kinds": KINDS,
            **({"shares": True} if state.telemetry.has_shares else {}),
        }  # fmt: skip

    def _queue(self) -> dict[str, object]:
        board, eta_s = self.state.board, self.state.eta_s()
        ids = {state: list(jobs[:SHOWN_JOBS]) for state, jobs in board.queued.items()}
        return {"total": board.total, "counts": board.counts, **ids, "eta_s": None if eta_s is None else round(eta_s)}

    def _actions(self) -> dict[str, object]:
        flights = self.state.board.flights
        rows = [
            [one.action, one.verb, job, list(one.nodes[:8]), len(one.nodes), one.yield_frac,
             round(self.state.since_zero_s(one.begin_s), 3)]
            for job, one in flights[:SHOWN_ACTIONS]
        ]  # fmt: skip
        return {"count": len(flights), "rows": rows}

    def _reschedulings(self) -> dict[str, object]:
        state = self.state
        return {
            "counts": dict(sorted(state.reasons.items())),
            "penalty_s": round(state.penalty_s, 6),
            "phases": [round(state.penalties[phase], 6) for phase in PHASES],
            "names": PHASES,
            "last": list(state.reschedulings),
        }

    def _changed_nodes(self) -> dict[str, dict[str, object]]:
        state = self.state
        names = {name: index for index, name in enumerate(state.names)} if state.changed_names else {}
        touched = {names[name] for name in state.changed_names if name in names}
        state.changed_names.clear()
        before, guests = self._guests, state.board.guests
        touched |= {node for node in {*before, *guests} if before.get(node) != guests.get(node)}
        self._guests = guests
        changed = {}
        for node in sorted(touched):
            value = self._node(node)
            if self._nodes.get(node) != value:
                self._nodes[node] = changed[str(node)] = value
        return changed

    def _node(self, node: int) -> dict[str, object]:
        state = self.state
        use = state.use(node)
        return {
            "online": state.online(node),
            **({"drained": True} if state.drained(node) else {}),
            **({"slot": slot} if (slot := state.slot(node)) else {}),
            "cpu_frac": None if use is None else round(use.cpu_frac, 3),
            "used_mib": None if use is None else round(use.memory_used_mib),
            "held_mib": state.held_mib(node),
            "guests": state.guests(node),
            **({"banks": banks} if (banks := state.banks(node)) else {}),
        }
