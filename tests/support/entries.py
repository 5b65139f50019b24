"""Events for tests, made from the keys that matter to a test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect as shapes

from testbed.run.events import KINDS, Known
from testbed.run.journal import convert, seal

_NOTHING = {shapes.FloatType: 0.0, shapes.IntType: 0, shapes.BoolType: False, shapes.StrType: ""}


def whole(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry with all required keys of its kind; missing ones become zeros, empty texts and empty lists."""
    kind = KINDS.get(entry["kind"])
    return {"t_s": 0.0, "trace_s": 0.0, **entry} if kind is None else _whole(kind, entry)


def sealed(entry: Mapping[str, Any]) -> str:
    """Return the line of an entry in a journal, with its checksum."""
    return seal(json.dumps(entry).encode()).decode()


def event(entry: Mapping[str, Any]) -> Known:
    """Return the event of an entry with the keys that matter."""
    return convert(whole(entry))


def _whole(kind: type[msgspec.Struct], entry: Mapping[str, Any]) -> dict[str, Any]:
    shape = shapes.type_info(kind)
    assert isinstance(shape, shapes.StructType)
    missing = {field.name: _nothing(field.type) for field in shape.fields if field.required and field.name not in entry}
    given = {field.name: _given(field.type, entry[field.name]) for field in shape.fields if field.name in entry}
    return {**missing, **entry, **given}


def _given(type_: shapes.Type, value: Any) -> Any:
    match type_:
        case shapes.Metadata():
            return _given(type_.type, value)
        case shapes.StructType():
            return _whole(type_.cls, value)
        case shapes.VarTupleType():
            return [_given(type_.item_type, each) for each in value]
    return value


def _nothing(type_: shapes.Type) -> Any:
    match type_:
        case shapes.Metadata():
            return _nothing(type_.type)
        case shapes.UnionType():
            return None
        case shapes.StructType():
            return _whole(type_.cls, {})
        case shapes.VarTupleType():
            return []
        case shapes.DictType():
            return {}
    return _NOTHING[type(type_)]
