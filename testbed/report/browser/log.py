"""Journal entries as lines for a person: those that one wants to see pass by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from testbed.measure.reasons import reason_of
from testbed.report.browser.jobs import Entry

GOOD = "good"
PLAIN = "plain"
WARNING = "warning"
ERROR = "error"
_LEVEL_OF = {"done": GOOD, "paused": WARNING}


def _where(nodes: Sequence[int], names: Sequence[str]) -> str:
    counts = Counter(names[node] if node < len(names) else f"node {node}" for node in nodes)
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in counts.items())


def describe(entry: Entry, names: Sequence[str]) -> tuple[str, str] | None:
    """Return level and text of a journal entry, None if it is not worth a line; `names` are those of the nodes."""
    write = _WRITERS.get(entry["kind"])
    return None if write is None else write(entry, names)


def _begin(entry: Entry, _names: Sequence[str]) -> tuple[str, str]:
    return PLAIN, f"run of {entry['scenario']} under {entry['policy']} begins"


def _replay(entry: Entry, names: Sequence[str]) -> tuple[str, str]:
    return PLAIN, f"replay of {entry['jobs']} jobs on {len(names)} nodes begins"


def _job(entry: Entry, _names: Sequence[str]) -> tuple[str, str]:
    if entry["state"] == "failed":
        reason = reason_of(entry)
        return ERROR, f"job {entry['job']} failed ({reason.code})" + (f": {reason.text}" if reason.text else "")
    detail = f": {entry['detail']}" if entry.get("detail") else ""
    return _LEVEL_OF.get(entry["state"], PLAIN), f"job {entry['job']} {entry['state']}{detail}"


def _outcome(entry: Entry, names: Sequence[str]) -> tuple[str, str] | None:
    verb, job = entry["verb"], entry["job"]
    if not entry["ok"]:
        return ERROR, f"{verb} of job {job} did not succeed: {entry['error']}"
    if verb == "cap":
        return None
    bytes_text = f", {entry['bytes'] / 1e6:.0f} MB" if entry["bytes"] else ""
    return PLAIN, f"{verb} of job {job} on {_where(entry['nodes'], names)} took {entry['elapsed_s']:.2f} s{bytes_text}"


def _rescheduling(entry: Entry, _names: Sequence[str]) -> tuple[str, str]:
    return WARNING, f"{entry['reason']} of job {entry['job']} cost {entry['penalty_s']:.2f} s ({entry['mechanism']})"


def _node(entry: Entry, _names: Sequence[str]) -> tuple[str, str]:
    if entry["online"]:
        return GOOD, f"node {entry['node']} is back"
    return ERROR, f"node {entry['node']} is lost: {entry['reason']}"


def _retry(entry: Entry, _names: Sequence[str]) -> tuple[str, str]:
    return WARNING, f"job {entry['job']}: attempt {entry['attempt']} did not succeed: {entry['error']}"


_WRITERS: dict[str, Callable[[Entry, Sequence[str]], tuple[str, str] | None]] = {
    "begin": _begin,
    "calibration": lambda entry, _names: (PLAIN, f"calibrated: a core does {entry['core_units_per_s']:.0f} units/s"),
    "replay": _replay,
    "job": _job,
    "outcome": _outcome,
    "rescheduling": _rescheduling,
    "node": _node,
    "retry": _retry,
    "recorder": lambda entry, _names: (ERROR, f"recorder {entry['name']} is left out: {entry['error']}"),
    "teardown": lambda entry, _names: (GOOD, f"all jobs have ended; teardown took {entry['elapsed_s']:.2f} s"),
    "aborted": lambda entry, _names: (ERROR, f"aborted: {entry['reason']}"),
}
