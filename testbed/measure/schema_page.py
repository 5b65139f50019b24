"""The schema as a page to read, in Markdown, and as data for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from testbed.measure.points import Value, to_line
from testbed.measure.schema import MEASUREMENTS, RUN_TAGS, TAGS, Field, Measurement, Tag

_RUN = {"run": "2026-11-20T10-31-07-quickstart", "lab": "local", "policy": "EASY"}
_TIME_NS = 1_795_171_867_512_345_678

# Values in examples: by the name of a field or tag, else by the field's type.
_EXAMPLES: dict[str, Value] = {
    "node": "node-a", "source": "node-b", "job": "72", "task": "0", "shape": "serial, need 0.25", "state": "running",
    "online": True, "reason": "", "giver": "3", "receiver": "bank",
}  # fmt: skip
_BY_KIND: dict[type, Value] = {float: 0.25, int: 3, bool: True, str: "text"}

_INTRODUCTION = """\
# Measurements

The points of a run are written to `points.lp` in its run directory, and from there to a database. This page is
generated from the schema in `testbed/measure/schema.py`: `testbed schema --markdown > docs/measurements.md`.

A point that does not fit the schema is refused by name: an unknown measurement, tag or field, a value of another type,
NaN or infinity, a tag outside its closed set. The run continues without the point. The refusal is reported once on the
screen and in the journal (`kind` is `refused`), and counted in `summary.json` under `points_refused`. A dry run
(`--dry-run`) fails because of it at its end.

## How points are written

Each point is one line of line protocol, `measurement,tag=value,... field=value,... time`:

    {line}

* **Time** is Unix time in nanoseconds. The wall clock is read once, when the run begins (`clocks.anchor_unix_ns` in
  `manifest.json`); all times are this value plus the controller's monotonic clock, so that steps of the wall clock do
  not affect the data. A sample of a node has the time at which it was taken, even if it arrives late; so lines may be
  out of order.
* **Types**: an integer ends in `i`, a float does not, `true` and `false` are truth values, text is in double quotes.
  A field never changes its type. Floats are exact.
* **Units** are in the names (`_s`, `_mib`, `_bytes`, `_cores`, `_mib_per_s`; `_frac` is a fraction, or a number of
  nodes). Seconds are wall seconds, unless the unit is trace s.
* In tags, a comma, a space and an equals sign have a backslash before them; a backslash cannot be stored in them.
* A point has only the fields that apply: a rescheduling that copied nothing has no throughput of copying.

Files are append-only: `points.lp`, then `points.2.lp`, `points.3.lp`, ..., each of 64 MiB, or `run.part_mib` of the
scenario. A full file is compressed during the run: `points.lp.gz`, `points.2.lp.gz`, ... A point that records a state
(marked below) is handed to the operating system before the run continues, any other within a second. All points are
made durable once per second.

## Tags

Each combination of a measurement's tag values is one series of a database, so the values of every tag are bounded.
Every point has {run_tags}.

"""


def markdown() -> str:
    """Return the page; it ends with a line break."""
    example = _line(MEASUREMENTS["node"], 2)
    run_tags = ", ".join(f"`{name}`" for name in RUN_TAGS[:-1]) + f" and `{RUN_TAGS[-1]}`"
    parts = [_INTRODUCTION.format(line=example, run_tags=run_tags)]
    parts += _table(("tag", "type", "values, or how many at most", "meaning"), [_tag_row(tag) for tag in TAGS.values()])
    for measurement in MEASUREMENTS.values():
        parts += _section(measurement)
    return "".join(parts)


def as_data() -> dict[str, object]:
    """Return the schema as JSON data."""
    return {
        "run_tags": list(RUN_TAGS),
        "tags": {
            tag.name: {
                "type": tag.kind.__name__, "values": list(tag.values), "bound": tag.bound, "meaning": tag.meaning,
            }
            for tag in TAGS.values()
        },
        "measurements": {
            each.name: {
                "meaning": each.meaning,
                "tags": list(each.tags),
                "state": each.state,
                "fields": {
                    field.name: {"type": field.kind.__name__, "unit": field.unit, "meaning": field.meaning}
                    for field in each.fields
                },
            }
            for each in MEASUREMENTS.values()
        },
    }  # fmt: skip


def _section(measurement: Measurement) -> Iterator[str]:
    yield f"\n## {measurement.name}\n\n{measurement.meaning[0].upper()}{measurement.meaning[1:]}."
    yield " It is a state, handed to the operating system at once.\n\n" if measurement.state else "\n\n"
    if measurement.tags:
        yield f"Tags: {', '.join(f'`{name}`' for name in measurement.tags)}, and those of the run.\n\n"
    else:
        yield "Tags: those of the run.\n\n"
    yield from _table(("field", "type", "unit", "meaning"), [_field_row(field) for field in measurement.fields])
    yield f"\n    {_line(measurement, 3)}\n"


def _line(measurement: Measurement, most_fields: int) -> str:
    """Return a line as a run writes it, with made-up values."""
    tags = {name: str(_EXAMPLES.get(name) or TAGS[name].values[0]) for name in measurement.tags}
    fields = {field.name: _EXAMPLES.get(field.name, _BY_KIND[field.kind]) for field in measurement.fields[:most_fields]}
    return to_line(measurement.name, {**_RUN, **tags}, fields, _TIME_NS)


def _tag_row(tag: Tag) -> tuple[str, ...]:
    values = ", ".join(f"`{value}`" for value in tag.values) or tag.bound
    return f"`{tag.name}`", tag.kind.__name__, values, tag.meaning


def _field_row(field: Field) -> tuple[str, ...]:
    return f"`{field.name}`", field.kind.__name__, field.unit, field.meaning


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table whose columns are also aligned in the source."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    widths[-1] = len(head[-1])  # the last column is not padded
    for row in (head, ["-" * width for width in widths], *rows):
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |\n"
