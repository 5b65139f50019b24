"""Tables of overheads in files, as a calibration measures them.

    [overheads]
    concurrent_tasks = [1, 8]           # tasks that move at one instant; 1 first; optional with one row below
    memory_gb = [0.5, 2.0, 8.0]         # memory of a task, in 1e9 bytes
    resume_s = [
        [1.1, 2.9, 10.4],               # one task, by memory
        [1.3, 4.0, 15.0],               # eight tasks at once
    ]
    migration_s = [[2.0, 5.5, 20.1], [2.4, 7.7, 29.0]]

Seconds are linear between the points and, by the last two points of an axis, beyond them; other tables of the file
are not read.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from testbed.errors import InputError, UserError, nearest
from testbed.simulation.overheads import Overheads

_Row = Annotated[list[Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(min_length=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrent_tasks: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] = [1]
    memory_gb: _Row
    resume_s: Annotated[list[_Row], Field(min_length=1)]
    migration_s: Annotated[list[_Row], Field(min_length=1)]


def load_overheads(path: Path) -> Overheads:
    """Read the table `[overheads]` of a TOML file; raise UserError that names file, key, value and what is right."""
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{path}: cannot read: {error.strerror}; expected a TOML file with a table of overheads"
        ) from error
    except ValueError as error:  # not UTF-8, or not TOML
        raise UserError(f"{path}: not TOML: {error}") from error
    if not isinstance(data.get("overheads"), dict):
        raise UserError(f"{path}: no table [overheads]{nearest('overheads', data)}")
    try:
        table = _Table.model_validate(data["overheads"])
    except ValidationError as error:
        raise _explain(path, error) from None
    if table.concurrent_tasks[0] != 1:
        raise InputError(str(path), "overheads.concurrent_tasks", table.concurrent_tasks, "1 as its first level")
    rows = {"resume_s": table.resume_s, "migration_s": table.migration_s}
    for key, values in rows.items():
        if len({len(row) for row in values}) != 1:
            raise InputError(str(path), f"overheads.{key}", values, "rows of equal length, a number a memory_gb")
    try:
        return Overheads(
            name=str(path),
            concurrent_tasks=np.array(table.concurrent_tasks, dtype=np.float64),
            memory_gb=np.array(table.memory_gb, dtype=np.float64),
            resume_s=np.array(table.resume_s, dtype=np.float64),
            migration_s=np.array(table.migration_s, dtype=np.float64),
        )
    except ValueError as error:
        raise UserError(f"{path}: [overheads]: {error}") from error


def _explain(path: Path, error: ValidationError) -> UserError:
    first = error.errors()[0]
    key = ".".join(("overheads", *map(str, first["loc"])))
    known = list(_Table.model_fields)
    if first["type"] == "extra_forbidden":
        word = str(first["loc"][-1])
        return UserError(f"{path}: unknown key {key}{nearest(word, known) or '; known: ' + ', '.join(known)}")
    if first["type"] == "missing":
        return UserError(f"{path}: {key} is missing")
    return InputError(str(path), key, first["input"], first["msg"].lower())
