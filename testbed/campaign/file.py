"""Reading campaign files: errors name file, key, value and what would be right."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from testbed.campaign.model import Campaign
from testbed.errors import InputError, UserError, nearest


def load_campaign(path: Path) -> Campaign:
    """Read and check a campaign file. Raises UserError."""
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot read the campaign: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a TOML file: {error}") from error
    try:
        return Campaign.model_validate(data)
    except ValidationError as error:
        found = error.errors()
        unknown = [each for each in found if each["type"] == "extra_forbidden"]  # often why another key is missing
        raise _explain(path, (unknown or found)[0]) from None


def _explain(path: Path, error: ErrorDetails) -> UserError:
    models, steps = _walk(error["loc"][:-1])
    key = ".".join(str(step) for step in (*steps, *error["loc"][-1:])) or "campaign"
    kind = error["type"]
    if kind == "extra_forbidden":
        known = sorted({name for model in models for name in model.model_fields})
        return UserError(f"{path}: unknown key {key}{nearest(str(error['loc'][-1]), known) or _all(known)}")
    if kind == "missing":
        return UserError(f"{path}: missing key {key}")
    if kind == "union_tag_not_found":
        return UserError(f"{path}: missing key {key}.kind: expected lublin, log or table")
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    found = error["input"]
    if kind == "union_tag_invalid":
        return InputError(str(path), f"{key}.kind", found.get("kind"), "lublin, log or table")
    if isinstance(found, BaseModel | dict | list | tuple):
        return UserError(f"{path}: {key}: expected {message}")
    return InputError(str(path), key, found, message)


def _all(known: list[str]) -> str:
    return f"; known: {', '.join(known)}"


def _walk(location: tuple[int | str, ...]) -> tuple[list[type[BaseModel]], list[int | str]]:
    """Return the tables that a location may be in, and its steps without the names of kinds that pydantic puts in."""
    models: list[type[BaseModel]] = [Campaign]
    steps: list[int | str] = []
    for step in location:
        if isinstance(step, int):
            steps.append(step)
            continue
        fields = [model.model_fields[step] for model in models if step in model.model_fields]
        if fields:
            steps.append(step)
            models = [found for field in fields for found in _models(field.annotation)]
        else:
            kinds = [model for model in models if _is_kind(model, step)]
            models = kinds or models
    return models, steps


def _is_kind(model: type[BaseModel], tag: str) -> bool:
    field = model.model_fields.get("kind")
    return field is not None and tag in getattr(field.annotation, "__args__", ())


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in _models(part)]
