"""The tables of a run: one per measurement, one of its jobs and one of its journal, with a text for each column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from testbed.measure.schema import MEASUREMENTS, RUN_TAGS, TAGS, Measurement

Kind = Literal["time", "float", "int", "str", "bool"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `unit` is empty for a name or a count."""

    name: str
    kind: Kind
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table and its columns, in order."""

    name: str
    meaning: str
    columns: tuple[Column, ...]


_KINDS: Final[dict[type, Kind]] = {float: "float", int: "int", str: "str", bool: "bool"}
_RUN = Column("run", "str", "", TAGS["run"].meaning)

JOBS: Final = Table(
    "jobs",
    "one row per job, written when the run ends; times are trace seconds since the trace began",
    (
        Column("job_id", "int", "", TAGS["job"].meaning),
        Column("submit_time_s", "float", "s", "submission"),
        Column("tasks", "int", "", "number of tasks"),
        Column("cpu_need_frac", "float", "1", "CPU need of a task, as a fraction of a node"),
        Column("mem_req_frac", "float", "1", "memory requirement of a task, as a fraction of a node"),
        Column("run_time_s", "float", "s", "run time on dedicated nodes, by the trace"),
        Column("start_time_s", "float", "s", "first start, empty if never started"),
        Column("end_time_s", "float", "s", "completion, empty if not completed"),
        Column("stretch", "float", "1", "bounded stretch, empty if not completed"),
        Column("virtual_time_s", "float", "s", "virtual time reached"),
        Column("preemptions", "int", "", "number of preemptions"),
        Column("migrations", "int", "", "number of migrations"),
        Column("penalty_s", "float", "s", "sum of its rescheduling penalties, in wall seconds"),
        Column("bytes_moved", "int", "B", "bytes moved by its preemptions and migrations"),
        Column("live_migrations", "int", "", "number of live migrations"),
        _RUN,
    ),
)
EVENTS: Final = Table(
    "events",
    "the journal: one row per entry, in the order of writing",
    (
        Column("t_s", "float", "s", "wall seconds since the run began, by the controller's monotonic clock"),
        Column("trace_s", "float", "s", "trace time of the entry"),
        Column("kind", "str", "", "job, decision, intent, outcome, rescheduling, ..."),
        Column("job", "int", "", "id of the job, empty if the entry concerns no single job"),
        Column("entry", "str", "", "the whole entry as JSON"),
        _RUN,
    ),
)


def tag_kind(tag: str) -> Kind:
    """Return the kind of a tag; a tag outside the schema is text."""
    return _KINDS[TAGS[tag].kind] if tag in TAGS else "str"


def _tag_column(tag: str) -> Column:
    return Column(tag, tag_kind(tag), "", TAGS[tag].meaning)


def table_of(measurement: Measurement) -> Table:
    """Return the table of a measurement: time, tags, fields and the run's tags."""
    fields = [Column(field.name, _KINDS[field.kind], field.unit, field.meaning) for field in measurement.fields]
    time = Column("time", "time", "", "Unix time in nanoseconds, shown in UTC")
    return Table(
        measurement.name,
        measurement.meaning,
        (time, *map(_tag_column, measurement.tags), *fields, *map(_tag_column, RUN_TAGS)),
    )


TABLES: Final = {
    **{name: table_of(measurement) for name, measurement in MEASUREMENTS.items()},
    JOBS.name: JOBS,
    EVENTS.name: EVENTS,
}
