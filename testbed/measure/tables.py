"""A run as tables: one for each measurement, one of its jobs and one of its journal, every column explained."""

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
    "one row a job, written when the run ends; times are trace seconds since the trace began",
    (
        Column("job_id", "int", "", TAGS["job"].meaning),
        Column("submit_time_s", "float", "s", "submitted"),
        Column("tasks", "int", "", "number of tasks"),
        Column("cpu_need_frac", "float", "1", "CPU need of a task, as a share of a node"),
        Column("mem_req_frac", "float", "1", "memory requirement of a task, as a share of a node"),
        Column("run_time_s", "float", "s", "run time on dedicated nodes, by the trace"),
        Column("start_time_s", "float", "s", "first started, empty if never"),
        Column("end_time_s", "float", "s", "completed, empty if never"),
        Column("stretch", "float", "1", "bounded stretch, empty if it did not complete"),
        Column("virtual_time_s", "float", "s", "virtual time reached"),
        Column("preemptions", "int", "", "times that it was preempted"),
        Column("migrations", "int", "", "times that it was migrated"),
        Column("penalty_s", "float", "s", "sum of its rescheduling penalties, in wall seconds"),
        Column("bytes_moved", "int", "B", "moved by its preemptions and migrations"),
        Column("live_migrations", "int", "", "migrations that were live"),
        _RUN,
    ),
)
EVENTS: Final = Table(
    "events",
    "the journal: one row an entry, in the order of their writing",
    (
        Column("t_s", "float", "s", "wall seconds since the run began, by the controller's monotonic clock"),
        Column("trace_s", "float", "s", "trace time of the entry"),
        Column("kind", "str", "", "job, decision, intent, outcome, rescheduling, ..."),
        Column("job", "int", "", "the job, empty if the entry is of none"),
        Column("entry", "str", "", "the whole entry as JSON"),
        _RUN,
    ),
)


def tag_kind(tag: str) -> Kind:
    """Return the kind of a tag; one that is not in the schema is text."""
    return _KINDS[TAGS[tag].kind] if tag in TAGS else "str"


def _tag_column(tag: str) -> Column:
    return Column(tag, tag_kind(tag), "", TAGS[tag].meaning)


def table_of(measurement: Measurement) -> Table:
    """Return time, tags, fields and the run's tags of a measurement as one table."""
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
