"""Ready Flux queries for InfluxDB 2, shared by Grafana's panels, InfluxDB's own page, and queries of one run.

The queries use the variables of Grafana and InfluxDB (`v.timeRangeStart` and so on), and Grafana's `${lab}` and
`${run}`. A `Scope` replaces them by other values.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from testbed.errors import UserError
from testbed.measure.influx_address import DEFAULT_BUCKET
from testbed.measure.line_protocol import LineError, parse_line
from testbed.measure.rundir import read_json
from testbed.measure.schema import MEASUREMENTS
from testbed.measure.spool import segments
from testbed.run.parts import open_part, size_bytes

_MARGIN = timedelta(seconds=60)  # points of agents arrive late
_WINDOWS = 500  # approximate number of points of a graph
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a query: a bucket, times as Flux literals, the length of a window, one lab and run or all."""

    bucket: str = DEFAULT_BUCKET
    start: str = "v.timeRangeStart"
    stop: str = "v.timeRangeStop"
    window: str = "v.windowPeriod"
    lab: str | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A query of some fields of one measurement; `unit` is the unit of the result.

    `steps` are the Flux transformations after the selection of the fields; `note` adds to the texts of the schema.
    """

    name: str
    title: str
    measurement: str
    fields: tuple[str, ...]
    unit: str
    steps: tuple[str, ...]
    note: str = ""

    def grafana(self, *, all_runs: bool = False) -> str:
        """Return the query for a panel of a dashboard with the variables lab and, but for `all_runs`, run."""
        return self._text("v.defaultBucket", ['r.lab == "${lab}"', *([] if all_runs else ['r.run == "${run}"'])])

    def text(self, scope: Scope) -> str:
        """Return the query with the values of `scope`."""
        conditions = [
            f"r.{tag} == {_quoted(value)}"
            for tag, value in (("lab", scope.lab), ("run", scope.run))
            if value is not None
        ]
        text = self._text(_quoted(scope.bucket), conditions)
        for word, replacement in (
            ("v.timeRangeStart", scope.start), ("v.timeRangeStop", scope.stop), ("v.windowPeriod", scope.window),
        ):  # fmt: skip
            text = text.replace(word, replacement)
        return text

    def _text(self, bucket: str, conditions: Sequence[str]) -> str:
        fields = " or ".join(f'r._field == "{name}"' for name in self.fields)
        filters = [
            f'r._measurement == "{self.measurement}"',
            *conditions,
            f"({fields})" if len(self.fields) > 1 else fields,
        ]
        lines = [
            f"from(bucket: {bucket})",
            "  |> range(start: v.timeRangeStart, stop: v.timeRangeStop)",
            f"  |> filter(fn: (r) => {' and '.join(filters)})",
            *(f"  |> {step}" for step in self.steps),
        ]
        return "\n".join(lines)

    def meaning(self) -> str:
        """Return the description of the result, from the schema."""
        measurement = MEASUREMENTS[self.measurement]
        lines = [f"{self.measurement}: {measurement.meaning}."]
        for name in self.fields:
            if field := measurement.field(name):
                unit = f" [{field.unit}]" if field.unit else ""
                lines.append(f"{name}{unit}: {field.meaning}.")
        return "\n\n".join([*lines, self.note] if self.note else lines)


def scope_of(run: Path, bucket: str = DEFAULT_BUCKET) -> Scope:
    """Return the scope of one run directory, from its first to its last point; raises `UserError`."""
    files = segments(run)
    times_ns = [time for file in (files[0], files[-1]) for time in _ends_ns(file)] if files else []
    if not times_ns:
        raise UserError(f"{run}: no points yet: expected a run directory with points.lp")
    first, last = (datetime.fromtimestamp(time // 10**9, UTC) for time in (min(times_ns), max(times_ns)))
    manifest = read_json(run / "manifest.json")
    scenario = manifest.get("scenario")
    lab = scenario.get("lab") if isinstance(scenario, dict) else None
    if not isinstance(lab, str) or not isinstance(manifest.get("run"), str):
        raise UserError(f"{run / 'manifest.json'}: expected run and scenario.lab")
    window_s = max(round((last - first).total_seconds() / _WINDOWS), 1)
    return Scope(
        bucket, _literal(first - _MARGIN), _literal(last + _MARGIN), f"{window_s}s", lab, str(manifest["run"])
    )  # fmt: skip


def _ends_ns(file: Path) -> list[int]:
    """Return the times of the first and the last whole line of a file; empty for a file without whole lines."""
    with open_part(file) as source:
        first = source.read(_TAIL_BYTES)
        source.seek(max(size_bytes(file) - _TAIL_BYTES, 0))
        last = source.read()
    lines = [*first.split(b"\n")[:-1][:1], *last.split(b"\n")[:-1][-1:]]
    try:
        return [parse_line(line.decode()).time_ns for line in lines]
    except (LineError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {error}") from error


def _literal(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _quoted(text: str) -> str:
    """Return a Flux string literal; a dollar with a brace is escaped, because it would begin an expression."""
    return json.dumps(text, ensure_ascii=False).replace("${", "\\${")


def _group(*tags: str) -> str:
    """Return the step that makes one table per field and value of `tags`.

    Grafana recognises a table as a time series only with these two columns. Its labels are the columns whose names do
    not begin with _.
    """
    return f"group(columns: [{', '.join(map(_quoted, ('_measurement', '_field', *tags)))}])"


def _window(function: str) -> str:
    return f"aggregateWindow(every: v.windowPeriod, fn: {function}, createEmpty: false)"


def _quantile(q: float) -> str:
    return _window(f"(tables=<-, column) => tables |> quantile(q: {q}, column: column)")


_RATE: Final = "derivative(unit: 1s, nonNegative: true)"
_IN_TIME: Final = 'sort(columns: ["_time"])'
_GUEST: Final = ("node", "job", "task")
_PIVOT: Final = 'pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value")'
_RATIO: Final = 'map(fn: (r) => ({r with _field: "noise", _value: if r.mean_s > 0.0 then r.max_s / r.mean_s else 1.0}))'
PHASES: Final = ("save_s", "wait_s", "transfer_s", "restore_s", "downtime_s", "first_progress_s")
AMOUNTS: Final = ("saved_bytes", "transferred_bytes", "restored_bytes", "migrated_bytes")
RATES: Final = ("save_mib_per_s", "transfer_mib_per_s", "restore_mib_per_s", "live_mib_per_s")


def _over_nodes(name: str, title: str, fields: tuple[str, ...], unit: str, *, rate: bool = False) -> Query:
    steps = (*((_RATE,) if rate else ()), _group("node"), _window("mean"))
    note = "The panel shows the change per second." if rate else ""
    return Query(name, title, "node", fields, unit, steps, note)


_ALL: Final = (
    Query(
        "cap", "CPU cap requested and achieved", "cap", ("requested_cores", "achieved_cores"), "cores",
        (_group(*_GUEST), _window("mean")),
    ),
    Query(
        "guest-cpu", "CPU used by guests", "guest", ("cpu_s",), "cores", (_RATE, _group(*_GUEST), _window("mean")),
        "The panel shows the change per second, which is the number of cores used.",
    ),
    Query("guest-cap", "CPU cap of guests", "guest", ("cap_cores",), "cores", (_group(*_GUEST), _window("last"))),
    Query("guest-memory", "Memory of guests", "guest", ("rss_mib",), "MiB", (_group(*_GUEST), _window("mean"))),
    Query(
        "cap-drift", "CPU caps found changed", "cap_drift", ("found_cores", "expected_cores"), "cores",
        (_group(*_GUEST),),
    ),
    _over_nodes("node-cpu", "CPU of nodes", ("cpu_frac",), "1"),
    _over_nodes("node-memory", "Memory of nodes", ("memory_used_mib",), "MiB"),
    _over_nodes("node-disk", "Disks of nodes", ("disk_read_mib", "disk_written_mib"), "MiB/s", rate=True),
    _over_nodes("node-network", "Network of nodes", ("net_received_mib", "net_sent_mib"), "MiB/s", rate=True),
    _over_nodes("agent-cpu", "CPU of the node agents", ("agent_cpu_s",), "cores", rate=True),
    _over_nodes("agent-memory", "Memory of the node agents", ("agent_rss_mib",), "MiB"),
    Query("node-state", "Nodes online", "node_state", ("online",), "", (_group("node"), _IN_TIME)),
    Query(
        "jobs", "Jobs running, waiting, paused", "decision", ("running", "waiting", "paused"), "",
        (_group(), _window("last")),
    ),
    Query(
        "yield", "Yield: least and mean", "decision", ("min_yield_frac", "mean_yield_frac"), "1",
        (_group(), _window("last")),
    ),
    Query(
        "demand", "CPU demanded and usefully given", "decision", ("demand_frac", "useful_frac"), "nodes",
        (_group(), _window("last")), "The difference of min(demand, number of nodes) and useful is underutilisation.",
    ),
    Query("decide", "Time to decide", "decision", ("decide_s",), "s", (_group(), _window("max")),
        "The panel shows the longest time per window."),
    Query("job-states", "States of jobs", "job", ("state",), "", (_group("job"), _IN_TIME)),
    Query(
        "penalties", "Rescheduling penalties by phase", "rescheduling", PHASES, "s", (_group(), _IN_TIME),
        "The stacked phases are one penalty, shown at the time of its end.",
    ),
    Query("moved", "Bytes moved by reschedulings", "rescheduling", AMOUNTS, "B", (_group(), _IN_TIME)),
    Query("move-rates", "Rates of reschedulings", "rescheduling", RATES, "MiB/s", (_group(), _IN_TIME)),
    Query(
        "superstep-noise", "Superstep noise: longest over mean", "superstep", ("mean_s", "max_s"), "",
        (_PIVOT, _RATIO, _group("job"), _window("max")), "The panel shows the worst member of each job; 1: no noise.",
    ),
    Query("superstep", "Mean superstep", "superstep", ("mean_s",), "s", (_group("job"), _window("mean"))),
    Query(
        "round-trip-p50", "Bus round trip, median", "bus", ("round_trip_s",), "s", (_group(), _quantile(0.5)),
    ),
    Query(
        "round-trip-p99", "Bus round trip, 99th percentile", "bus", ("round_trip_s",), "s",
        (_group(), _quantile(0.99)),
    ),
    Query(
        "round-trip-nodes", "Bus round trip by node, 99th percentile", "bus", ("round_trip_s",), "s",
        (_group("node"), _quantile(0.99)),
    ),
    Query("operations", "Time of operations", "action", ("elapsed_s",), "s", (_group("verb"), _window("max")),
        "The panel shows the longest time per window."),
)  # fmt: skip

QUERIES: Final = {query.name: query for query in _ALL}
