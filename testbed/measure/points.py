"""Points in line protocol, checked against the schema before they are written.

InfluxDB drops NaN and infinite fields without a word and refuses a point whose field changes its type; so both
are refused here, by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from testbed.errors import TestbedError
from testbed.measure.schema import MEASUREMENTS, RUN_TAGS, Field

Value = float | int | str | bool


class PointError(TestbedError):
    """A point that does not fit the schema; the message names measurement and field."""


def _escape(text: str, special: str) -> str:
    out = text.replace("\\", "\\\\")
    for character in special:
        out = out.replace(character, "\\" + character)
    return out


def _field_text(measurement: str, field: Field, value: Value) -> str:
    kind = float if field.kind is float and type(value) is int else type(value)
    if kind is not field.kind:
        raise PointError(
            f"point {measurement}.{field.name} = {value!r}: expected {field.kind.__name__}, found {kind.__name__}"
        )
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if "\n" in value:
            raise PointError(f"point {measurement}.{field.name}: a line break cannot be stored")
        return '"' + _escape(value, '"') + '"'
    if not math.isfinite(value):
        raise PointError(f"point {measurement}.{field.name} = {value!r}: expected a finite number")
    return f"{value}i" if field.kind is int else repr(float(value))


def to_line(measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value], time_ns: int) -> str:
    """Return one line of line protocol, without the line break, or raise `PointError`.

    `time_ns` is Unix time. Tags with an empty value are left out, as the protocol wants.
    """
    schema = MEASUREMENTS.get(measurement)
    if schema is None:
        raise PointError(f"point {measurement!r}: no such measurement in the schema")
    allowed = {*RUN_TAGS, *schema.tags}
    parts = [_escape(measurement, ", ")]
    for name in sorted(tags):
        if name not in allowed:
            raise PointError(f"point {measurement}: tag {name!r} is not in the schema")
        if "\n" in tags[name]:
            raise PointError(f"point {measurement}: tag {name} holds a line break")
        if tags[name]:
            parts.append(f"{name}={_escape(tags[name], ',= ')}")
    texts = []
    for name, value in fields.items():
        field = schema.field(name)
        if field is None:
            raise PointError(f"point {measurement}: field {name!r} is not in the schema")
        texts.append(f"{name}={_field_text(measurement, field, value)}")
    if not texts:
        raise PointError(f"point {measurement}: no field")
    return f"{','.join(parts)} {','.join(texts)} {time_ns}"
