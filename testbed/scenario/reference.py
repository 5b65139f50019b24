"""The reference of scenario files, generated from their schema: a page in Markdown, and a JSON Schema for editors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from testbed.scenario.schema import Scenario
from testbed.toml_files import models_in

SCHEMA_ID = "scenario.schema.json"

_INTRODUCTION = """\
# Scenario files

A scenario is a TOML file. It names a workload, a lab and policies. This page is generated from the schema in
`testbed/scenario/`:

    testbed scenarios reference > docs/scenario.md

`testbed validate SCENARIO` checks a file, and `testbed scenarios copy NAME` copies a packaged one to start from.
Editors with a TOML language server (Taplo, Even Better TOML) complete and check keys by the JSON Schema:

    testbed scenarios schema > scenario.schema.json

and this first line of the scenario:

    #:schema ./scenario.schema.json

Unknown keys are errors. Times are wall seconds, except where the unit is *trace s*: trace seconds are wall seconds
times `time_scale`.
"""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table: its value type, default, unit, description and example, as texts."""

    name: str
    type: str
    default: str
    unit: str
    description: str
    example: str


def markdown() -> str:
    """Return the page; it ends with a line break."""
    parts = [_INTRODUCTION]
    for path, model, many in all_tables():
        title = "Top level" if not path else f"[[{path}]]" if many else f"[{path}]"
        parts.append(f"\n## {title}\n\n{_paragraph(model)}\n\n")
        parts.append("| key | type | default | unit | meaning |\n|---|---|---|---|---|\n")
        for each in keys_of(model):
            meaning = each.description + (f" Example: `{each.example}`." if each.example else "")
            cells = (f"`{each.name}`", each.type, each.default, each.unit, meaning)
            parts.append(f"| {' | '.join(map(_cell, cells))} |\n")
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def json_schema() -> str:
    """Return the JSON Schema of a scenario file, as text that ends with a line break."""
    schema = Scenario.model_json_schema()
    policy = schema["properties"]["policy"]
    one = {"type": "string", "minLength": 1}
    schema["properties"]["policy"] = {
        **{name: value for name, value in policy.items() if name not in ("type", "items", "minItems")},
        "anyOf": [one, {"type": "array", "items": one, "minItems": 1}],
    }
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID}
    return json.dumps({**about, **schema}, indent=2) + "\n"


def keys_of(model: type[BaseModel]) -> Iterator[Key]:
    """Yield the keys of a table, in order, except nested tables."""
    for name, field in model.model_fields.items():
        if models_in([field.annotation]):
            continue
        extra = field.json_schema_extra
        unit = str(extra.get("unit", "")) if isinstance(extra, dict) else ""
        yield Key(name, _type(field), _default(field), unit, field.description or "", _example(field))


def all_tables() -> Iterator[tuple[str, type[BaseModel], bool]]:
    """Yield each table with its path, its model, and whether it is an array of tables."""
    left: list[tuple[str, type[BaseModel], bool]] = [("", Scenario, False)]
    while left:
        path, model, many = left.pop(0)
        yield path, model, many
        inside = []
        for name, field in model.model_fields.items():
            for each in models_in([field.annotation]):
                several = get_origin(field.annotation) is tuple
                inside.append((f"{path}.{name}" if path else name, each, several))
        left = inside + left


def _paragraph(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def _type(field: FieldInfo) -> str:
    return _words(field.annotation)


def _words(annotation: Any) -> str:
    """Return the name of a type in the terms of TOML."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(each)}`" for each in arguments)
    if origin is tuple:
        return f"list of {_words(arguments[0])}"
    if origin is dict:
        return f"table of {_words(arguments[1])}"
    if arguments and type(None) in arguments:  # X | None
        return _words(next(each for each in arguments if each is not type(None)))
    if hasattr(annotation, "__metadata__"):
        return _words(arguments[0])
    known = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return known.get(annotation, "string")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    found = field.get_default(call_default_factory=True)
    return "" if found is None else f"`{_toml(found)}`"


def _example(field: FieldInfo) -> str:
    return _toml(field.examples[0]) if field.examples else ""


def _toml(value: Any) -> str:
    """Return a value as it is written in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value if isinstance(value, str | bool | int | float) else str(value))
