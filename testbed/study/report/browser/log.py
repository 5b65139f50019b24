"""Lines of the page's log for the events that matter to users."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from testbed.measure.reasons import reason_of
from testbed.run import events
from testbed.study.report.terminal.order_words import Halting, text_of_order

GOOD = "good"
PLAIN = "plain"
WARNING = "warning"
ERROR = "error"
_LEVEL_OF = {"done": GOOD, "paused": WARNING}


def _where(nodes: Sequence[int], names: Sequence[str]) -> str:
    counts = Counter(names[node] if node < len(names) else f"node {node}" for node in nodes)
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in counts.items())


def describe(event: events.Known, names: Sequence[str]) -> tuple[str, str] | None:
    """Return level and text for an event, None for an event without a line; `names` are those of the nodes."""
    write = _WRITERS.get(type(event))
    return None if write is None else write(event, names)


def _begin(event: events.Begin, _names: Sequence[str]) -> tuple[str, str]:
    return PLAIN, f"run of {event.scenario} under {event.policy} begins"


def _calibration(event: events.Calibration, _names: Sequence[str]) -> tuple[str, str]:
    rate = "" if event.core_units_per_s is None else f": a core does {event.core_units_per_s:.0f} units/s"
    return PLAIN, f"calibrated{rate}"


def _replay(event: events.Replay, names: Sequence[str]) -> tuple[str, str]:
    return PLAIN, f"replay of {event.jobs} jobs on {len(names)} nodes begins"


def _job(event: events.Job, _names: Sequence[str]) -> tuple[str, str]:
    if event.state == "failed":
        reason = reason_of(event.detail, event.code)
        return ERROR, f"job {event.job} failed ({reason.code})" + (f": {reason.text}" if reason.text else "")
    detail = f": {event.detail}" if event.detail else ""
    return _LEVEL_OF.get(event.state, PLAIN), f"job {event.job} {event.state}{detail}"


def _outcome(event: events.Outcome, names: Sequence[str]) -> tuple[str, str] | None:
    if not event.ok:
        return ERROR, f"{event.verb} of job {event.job} did not succeed: {event.error}"
    if event.verb == "cap":
        return None
    bytes_text = f", {event.bytes / 1e6:.0f} MB" if event.bytes else ""
    where = _where(event.nodes, names)
    return PLAIN, f"{event.verb} of job {event.job} on {where} took {event.elapsed_s:.2f} s{bytes_text}"


def _rescheduling(event: events.Rescheduling, _names: Sequence[str]) -> tuple[str, str]:
    return WARNING, f"{event.reason} of job {event.job} cost {event.penalty_s:.2f} s ({event.mechanism})"


def _node(event: events.Node, _names: Sequence[str]) -> tuple[str, str]:
    if event.online:
        return GOOD, f"node {event.node} is back"
    return ERROR, f"node {event.node} is lost: {event.reason}"


def _retry(event: events.Retry, _names: Sequence[str]) -> tuple[str, str]:
    return WARNING, f"job {event.job}: attempt {event.attempt} did not succeed: {event.error}"


def _recorder(event: events.RecorderFailed, _names: Sequence[str]) -> tuple[str, str]:
    return ERROR, f"recorder {event.name} is left out: {event.error}"


def _order(event: Halting, _names: Sequence[str]) -> tuple[str, str]:
    return WARNING, text_of_order(event)


def _suspension(event: events.Suspension, _names: Sequence[str]) -> tuple[str, str]:
    return PLAIN, f"job {event.job} runs again after the pause, which cost it {event.penalty_s:.2f} s"


def _teardown(event: events.Teardown, _names: Sequence[str]) -> tuple[str, str]:
    return GOOD, f"all jobs have ended; teardown took {event.elapsed_s:.2f} s"


def _aborted(event: events.Aborted, _names: Sequence[str]) -> tuple[str, str]:
    return ERROR, f"aborted: {event.reason}"


_WRITERS: dict[type, Callable[[Any, Sequence[str]], tuple[str, str] | None]] = {
    events.Begin: _begin,
    events.Calibration: _calibration,
    events.Replay: _replay,
    events.Job: _job,
    events.Outcome: _outcome,
    events.Rescheduling: _rescheduling,
    events.Suspension: _suspension,
    events.Order: _order,
    events.ClockStarted: _order,
    events.Resumed: _order,
    events.Recovered: _order,
    events.Node: _node,
    events.Retry: _retry,
    events.RecorderFailed: _recorder,
    events.Teardown: _teardown,
    events.Aborted: _aborted,
}
