"""Encoder of points in line protocol, with a check against the schema.

InfluxDB drops NaN and infinite fields silently, and refuses a point whose field changes its type; both are errors here,
with the name of the field. Tags with a closed set of values, and numeric tags, are checked too, because every other
value would create one more series.

Texts that depend only on a point's tags, or only on the names and types of its fields, are cached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

import msgspec

from testbed.errors import TestbedError
from testbed.measure.schema import MEASUREMENTS, RUN_TAGS, TAGS, Measurement

Value = float | int | str | bool

_MOST_SERIES = 1 << 16  # number of cached series, whose texts take some 20 MiB
_encode = msgspec.json.Encoder().encode
_LEAST_INT, _MOST_INT = -(1 << 63), (1 << 63) - 1


class PointError(TestbedError):
    """A point does not fit the schema; `where` is its measurement, followed by `.field` if a field is wrong."""

    def __init__(self, where: str, reason: str) -> None:
        self.where = where
        self.reason = reason
        super().__init__(f"point {where}{reason}")


def to_line(measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value], time_ns: int) -> str:
    """Return one line of line protocol, without the line break; raises `PointError`.

    `time_ns` is Unix time. Tags with an empty value are left out, as the protocol requires.
    """
    values = tuple(fields.values())
    shape = _shape(measurement, tuple(fields), tuple(map(type, values)))
    text = _numbers_text(shape, values) or ",".join(
        [make(value) for make, value in zip(shape.texts, values, strict=True)]
    )
    return f"{_series(measurement, tuple(tags.items()))} {text} {time_ns}"


def _numbers_text(shape: _Shape, values: tuple[Value, ...]) -> str:
    """Return numeric and boolean fields as text; an empty text for other fields, and for values to be refused.

    JSON writes numbers and truth values as line protocol does. msgspec encodes a float in a tenth of the time of
    `repr`, also exactly, and a float that is not finite as null.
    """
    if not shape.template:
        return ""
    for index in shape.integers:
        if not _fits(values[index]):
            return ""
    encoded = _encode(values)
    return "" if b"null" in encoded else shape.template % tuple(encoded[1:-1].decode().split(","))


def _fits(number: Value) -> bool:
    return _LEAST_INT <= number <= _MOST_INT  # type: ignore[operator]  # it is an int


class _Shape(NamedTuple):
    """The encoding of fields with these names and types, in this order.

    `texts` encode one field each. `template` encodes all fields at once, if none is a text and all have the types of
    the schema; otherwise it is empty. `integers` are the indices of integers.
    """

    texts: tuple[Callable[[Value], str], ...]
    template: str
    integers: tuple[int, ...]


@lru_cache(maxsize=1024)
def _shape(measurement: str, names: tuple[str, ...], kinds: tuple[type, ...]) -> _Shape:
    """Check fields by name and type, and return their encoding."""
    schema = _schema(measurement)
    if not names:
        raise PointError(measurement, ": no field")
    texts, plain = [], True
    for name, kind in zip(names, kinds, strict=True):
        field = schema.field(name)
        if field is None:
            raise PointError(measurement, f": field {name!r} is not in the schema")
        if kind is not field.kind and (kind, field.kind) != (int, float):
            raise PointError(f"{measurement}.{name}", f": expected {field.kind.__name__}, found {kind.__name__}")
        texts.append(partial(_TEXTS[field.kind], f"{measurement}.{name}", f"{name}="))
        plain = plain and field.kind is kind is not str
    template = ",".join(f"{name}=%s{'i' if kind is int else ''}" for name, kind in zip(names, kinds, strict=True))
    integers = tuple(index for index, kind in enumerate(kinds) if kind is int)
    return _Shape(tuple(texts), template if plain else "", integers)


def _float_text(where: str, begin: str, value: Value) -> str:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise PointError(where, f" = {value!r}: expected a finite number")
    return f"{begin}{number!r}"


def _int_text(where: str, begin: str, value: Value) -> str:
    if not _fits(value):
        raise PointError(where, f" = {value!r}: expected a number of 64 bits")
    return f"{begin}{value}i"


def _bool_text(_where: str, begin: str, value: Value) -> str:
    return f"{begin}{'true' if value else 'false'}"


def _str_text(where: str, begin: str, value: Value) -> str:
    text = str(value)
    if "\n" in text:
        raise PointError(where, ": a line break cannot be stored")
    return f'{begin}"{_escape(text, chr(34))}"'


_TEXTS: dict[type, Callable[[str, str, Value], str]] = {
    float: _float_text, int: _int_text, bool: _bool_text, str: _str_text,
}  # fmt: skip


@lru_cache(maxsize=_MOST_SERIES)
def _series(measurement: str, tags: tuple[tuple[str, str], ...]) -> str:
    """Check tags, and return the common beginning of all points of their series."""
    allowed = {*RUN_TAGS, *_schema(measurement).tags}
    parts = [_escape(measurement, ", ")]
    for name, value in sorted(tags):
        if name not in allowed:
            raise PointError(measurement, f": tag {name!r} is not in the schema")
        tag = TAGS[name]
        if "\n" in value:
            raise PointError(measurement, f": tag {name} holds a line break")
        if "\\" in value:  # InfluxDB has no escape for it in tags: the stored value would differ
            raise PointError(measurement, f": tag {name} = {value!r}: a backslash cannot be stored")
        if tag.values and value not in tag.values:
            raise PointError(measurement, f": tag {name} = {value!r}: expected one of {', '.join(tag.values)}")
        if tag.kind is int and not (value.isascii() and value.isdigit()):
            raise PointError(measurement, f": tag {name} = {value!r}: expected a number")
        if value:
            parts.append(f"{name}={_escape(value, ',= ')}")
    return ",".join(parts)


def _schema(measurement: str) -> Measurement:
    schema = MEASUREMENTS.get(measurement)
    if schema is None:
        raise PointError(repr(measurement), ": no such measurement in the schema")
    return schema


def _escape(text: str, special: str) -> str:
    out = text.replace("\\", "\\\\")
    for character in special:
        out = out.replace(character, "\\" + character)
    return out
