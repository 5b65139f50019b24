"""Generates Markdown tables from the types of messages and journal entries, for the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import msgspec
from msgspec import inspect as shapes

_UNITS = (
    ("trace_s", "trace s"), ("_units_per_s", "units/s"), ("_mib_per_s", "MiB/s"),
    ("_s", "s"), ("_ns", "ns"), ("_mib", "MiB"), ("_bytes", "B"),
    ("_cores", "cores"), ("_frac", "1"),
)  # fmt: skip
_OR_NULL = " or null"
_WORDS = {
    shapes.FloatType: "float", shapes.IntType: "int", shapes.BoolType: "bool", shapes.StrType: "str",
    shapes.AnyType: "any",
}  # fmt: skip


def text_of(kind: type[msgspec.Struct]) -> str:
    """Return the docstring of a type, with one line per paragraph."""
    paragraphs = [" ".join(part.split()) for part in (kind.__doc__ or "").split("\n\n")]
    return "\n\n".join(paragraphs)


def first_line(kind: type[msgspec.Struct]) -> str:
    """Return the first paragraph of a type's docstring, without its full stop."""
    return text_of(kind).split("\n", 1)[0].rstrip(".")


def rows(kind: type[msgspec.Struct], before: str = "", without: Iterable[str] = ()) -> Iterator[tuple[str, ...]]:
    """Yield name, type, unit and meaning of each key of a type; the keys of an object follow its own row."""
    shape = cast("shapes.StructType", shapes.type_info(kind))
    for field in shape.fields:
        if not before and field.name in without:
            continue
        word, inner = _word(field.type)
        meaning, unit = _about(field)
        if not field.required:  # one that is None is left out
            word = f"{word.removesuffix(_OR_NULL) if field.default is None else word}, optional"
        name = f"{before}{field.encode_name}"
        yield f"`{name}`", word, unit, meaning
        if inner is not None:
            yield from rows(inner, f"{name}[]." if word.startswith("list") else f"{name}.")


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    for row in (head, ["---"] * len(head), *body):
        yield f"| {' | '.join(row)} |\n"


def _about(field: shapes.Field) -> tuple[str, str]:
    """Return meaning and unit of a key; of several descriptions of a type, the field's own applies."""
    about = field.type if isinstance(field.type, shapes.Metadata) else shapes.Metadata(field.type)
    unit = (about.extra or {}).get("unit")
    if unit is None:
        unit = next((unit for end, unit in _UNITS if f"_{field.name}".endswith(end)), "")
    return str((about.extra_json_schema or {}).get("description", "")), str(unit)


def _word(shape: shapes.Type) -> tuple[str, type[msgspec.Struct] | None]:  # noqa: PLR0911  # one for each kind of type
    """Return the name of a type, and the Struct of an object that it holds."""
    match shape:
        case shapes.Metadata():
            return _word(shape.type)
        case shapes.UnionType():
            some = [each for each in shape.types if not isinstance(each, shapes.NoneType)]
            if len(some) > 1:
                return "object", None
            word, inner = _word(some[0])
            return f"{word}{_OR_NULL}", inner
        case shapes.VarTupleType():
            word, inner = _word(shape.item_type)
            return f"list of {word}", inner
        case shapes.LiteralType():
            return " or ".join(f"`{value}`" for value in shape.values), None
        case shapes.DictType():
            word, _ = _word(shape.value_type)
            return f"object of {word}" if word else "object", None
        case shapes.StructType():
            return "object", shape.cls
    return _WORDS.get(type(shape), ""), None
