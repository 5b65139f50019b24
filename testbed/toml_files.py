"""Readers of TOML files written by people; errors have file, key, value and the expected value."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from testbed.errors import InputError, UserError, nearest

_BEGINNINGS = re.compile(r"^(Value error, )?(Input should be |expected )?")  # prefixes of pydantic's and our messages


def read_toml(path: Path, expected: str) -> dict[str, object]:
    """Return the content of a file; `expected` describes the file for messages. Raises `UserError`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}; expected {expected}") from error
    except (ValueError, RecursionError) as error:  # also of integers with thousands of digits, and deep nesting
        raise UserError(f"{path}: not a TOML file: {error}") from error


def first_mistake(
    path: Path,
    model: type[BaseModel],
    error: ValidationError,
    *,
    table: str = "",
    words: Callable[[ErrorDetails], str | None] = lambda _mistake: None,
) -> UserError:
    """Return the first error of a file that is not a valid `model`, as one line.

    Names of keys begin with `table`. `words` returns the expected value where pydantic's text is unclear, else None.
    """
    found = mistakes(path, model, error, table=table, words=words)
    # an unknown key, such as a misspelt one, is often the cause of a missing key
    return next((each for each in found if each.is_unknown_key), found[0]).error


@dataclass(frozen=True, slots=True)
class Mistake:
    """An error in a file: its location as a path of tables and indices, and its message."""

    location: tuple[int | str, ...]
    error: UserError
    is_unknown_key: bool


def mistakes(
    path: Path,
    model: type[BaseModel],
    error: ValidationError,
    *,
    table: str = "",
    words: Callable[[ErrorDetails], str | None] = lambda _mistake: None,
) -> list[Mistake]:
    """Return all errors of a file that is not a valid `model`; see `first_mistake`."""
    return [
        Mistake(
            (*_walk(model, each["loc"][:-1])[1], *each["loc"][-1:]), _line(path, model, each, table, words),
            each["type"] == "extra_forbidden",
        )
        for each in error.errors()
    ]  # fmt: skip


def _line(
    path: Path, model: type[BaseModel], first: ErrorDetails, table: str, words: Callable[[ErrorDetails], str | None]
) -> UserError:
    """Return an error of pydantic as a `UserError` with a one-line message."""
    annotations, steps = _walk(model, first["loc"][:-1])
    key = ".".join(map(str, (*([table] if table else []), *steps, *first["loc"][-1:]))) or "the file"
    found = first["input"]
    if first["type"] == "extra_forbidden":
        known = list(dict.fromkeys(name for each in models_in(annotations) for name in each.model_fields))
        hint = nearest(str(first["loc"][-1]), known) or f"; known: {', '.join(known)}"
        return UserError(f"{path}: unknown key {key}{hint}")
    if first["type"] == "missing":
        return UserError(f"{path}: missing key {key}")
    if first["type"] == "union_tag_not_found":
        return UserError(f"{path}: missing key {key}.kind: expected {_kinds(model, first['loc'])}")
    if first["type"] == "union_tag_invalid":
        return InputError(str(path), f"{key}.kind", found.get("kind"), _kinds(model, first["loc"]))
    expected = words(first) or _BEGINNINGS.sub("", first["msg"])
    if isinstance(found, BaseModel | dict | list | tuple):
        return UserError(f"{path}: {key}: expected {expected}")
    if isinstance(found, str):
        found = re.sub(r"//.*@", "//…@", found, flags=re.DOTALL)  # an address may contain a password
    return InputError(str(path), key, found, expected)


def _kinds(model: type[BaseModel], location: Sequence[int | str]) -> str:
    """Return a text with the possible values of the key `kind` of a table at this location."""
    models = models_in(_walk(model, location)[0])
    kinds = [kind for each in models if "kind" in each.model_fields for kind in _tags(each)]
    return f"{', '.join(kinds[:-1])} or {kinds[-1]}" if len(kinds) > 1 else "".join(kinds)


def _tags(model: type[BaseModel]) -> tuple[str, ...]:
    return get_args(model.model_fields["kind"].annotation)


def _walk(model: type[BaseModel], location: Sequence[int | str]) -> tuple[list[object], list[int | str]]:
    """Return the types at a location, and its steps without the names of kinds that pydantic inserts."""
    annotations, steps = list[object]([model]), list[int | str]()
    for step in location:
        if isinstance(step, int):
            steps.append(step)
            continue
        here = list(_leaves(annotations))
        inside = [each.model_fields[step].annotation for each in models_in(here) if step in each.model_fields]
        inside += [get_args(each)[1] for each in here if get_origin(each) is dict]
        if inside:
            steps.append(step)
            annotations = list(inside)
        else:  # the kind of a table, or a member of a union
            annotations = [each for each in models_in(here) if _is_kind(each, step)] or annotations
    return annotations, steps


def _leaves(annotations: Sequence[object]) -> Iterator[object]:
    """Yield the models, the mappings and the plain types in annotations: members of unions, items of sequences."""
    for each in annotations:
        arguments = get_args(each)
        if get_origin(each) is Annotated:
            yield from _leaves(arguments[:1])
        elif arguments and get_origin(each) is not dict:
            yield from _leaves(arguments)
        else:
            yield each


def models_in(annotations: Sequence[object]) -> list[type[BaseModel]]:
    """Return the models in annotations: members of unions, items of sequences."""
    return [each for each in _leaves(annotations) if isinstance(each, type) and issubclass(each, BaseModel)]


def _is_kind(model: type[BaseModel], tag: str) -> bool:
    return "kind" in model.model_fields and tag in _tags(model)
