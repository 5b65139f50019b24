"""Reads `calibration.toml` back, with checks; a person may have edited it."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from testbed.bus.limits import MOST_NODES, MOST_RATE, MOST_TRACE_S
from testbed.errors import InputError, UserError
from testbed.study.calibration.model import (
    VERSION,
    About,
    Assumption,
    Calibration,
    Failed,
    Grid,
    Outlier,
    OverheadGrids,
    ProgressCurve,
    Quantity,
    Verdict,
)
from testbed.toml_files import first_mistake, read_toml

_Count = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float, Field(ge=0, le=MOST_TRACE_S, allow_inf_nan=False)]
_Rows = Annotated[tuple[Annotated[tuple[_Seconds, ...], Field(min_length=1)], ...], Field(min_length=1)]
_Rate = Annotated[float, Field(gt=0, le=MOST_RATE, allow_inf_nan=False)]
_Rates = Annotated[tuple[_Rate, ...], Field(min_length=1)]
_Condition = dict[str, int | float | str]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _About(_Table):
    version: Literal[1]
    trials_file: str
    trials_digest: str
    trials: _Count
    repeats: _Count
    seed: int
    experiments: tuple[str, ...]
    created_utc: str
    notes: tuple[str, ...] = ()


class _Quantity(_Table):
    name: str
    value: float
    low: float = nan
    high: float = nan
    unit: str
    n: _Count
    observations: _Count
    model: str
    goodness: float = nan
    outliers: _Count = 0
    condition: _Condition = {}


class _Assumption(_Table):
    verdict: Verdict
    within_frac: float = nan
    statement: str
    found: str
    source: str


class _Outlier(_Table):
    quantity: str
    trial: int
    value: float
    expected: float
    deviations: float


class _Failed(_Table):
    trial: int
    experiment: str
    condition: _Condition = {}
    error: str


class _Progress(_Table):
    yield_frac: _Rates
    serial: _Rates
    parallel: _Rates

    @model_validator(mode="after")
    def _same_length(self) -> _Progress:
        if not len(self.yield_frac) == len(self.serial) == len(self.parallel):
            raise ValueError("serial and parallel as long as yield_frac")
        return self


class _Overheads(_Table):
    concurrent_per: Literal["node"]
    concurrent_tasks: Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_NODES)], ...], Field(min_length=1)]
    memory_gb: Annotated[tuple[_Seconds, ...], Field(min_length=1)]
    start_s: _Rows | None = None
    save_s: _Rows
    resume_s: _Rows
    migration_s: _Rows
    progress: _Progress | None = None

    @model_validator(mode="after")
    def _same_shape(self) -> _Overheads:
        for name in ("start_s", "save_s", "resume_s", "migration_s"):
            _must_fit(name, getattr(self, name), self)
        return self


class _File(_Table):
    calibration: _About
    provenance: dict[str, Any]
    assumptions: dict[str, _Assumption]
    overheads: _Overheads | None = None
    migration_ways_s: dict[str, _Rows] = {}
    quantity: tuple[_Quantity, ...] = ()
    outlier: tuple[_Outlier, ...] = ()
    failed: tuple[_Failed, ...] = ()

    @model_validator(mode="after")
    def _same_shape(self) -> _File:
        for name, rows in self.migration_ways_s.items():
            if self.overheads is None:
                raise ValueError("a table [overheads] beside [migration_ways_s]")
            _must_fit(f"migration_ways_s.{name}", rows, self.overheads)
        return self


def _must_fit(name: str, rows: Grid | None, table: _Overheads) -> None:
    shape = len(table.concurrent_tasks), len(table.memory_gb)
    if rows is not None and (len(rows) != shape[0] or any(len(row) != shape[1] for row in rows)):
        raise ValueError(f"{name} with {shape[0]} rows, one a concurrent_tasks, of {shape[1]}, one a memory_gb")


def load_calibration(path: Path) -> Calibration:
    """Read a calibration; raises UserError in one line that names file, key, value and what would be right."""
    data = read_toml(path, "a calibration")
    about = data.get("calibration")
    if not isinstance(about, dict):
        raise UserError(f"{path}: no table [calibration]; expected a file that `testbed calibrate` wrote")
    if (version := about.get("version")) != VERSION:
        raise InputError(str(path), "calibration.version", version, f"{VERSION}, the one this testbed writes")
    try:
        file = _File.model_validate(data)
    except ValidationError as error:
        raise first_mistake(path, _File, error) from None
    return _calibration(file)


def _calibration(file: _File) -> Calibration:
    grids = file.overheads
    progress = grids.progress if grids else None
    return Calibration(
        about=About(**file.calibration.model_dump(exclude={"version"})),
        provenance=file.provenance,
        quantities=tuple(Quantity(**quantity.model_dump()) for quantity in file.quantity),
        assumptions={name: Assumption(**found.model_dump()) for name, found in file.assumptions.items()},
        overheads=None
        if grids is None
        else OverheadGrids(
            **grids.model_dump(exclude={"concurrent_per", "progress"}), migration_ways_s=dict(file.migration_ways_s)
        ),
        progress=ProgressCurve(**progress.model_dump()) if progress else None,
        outliers=tuple(Outlier(**outlier.model_dump()) for outlier in file.outlier),
        failed=tuple(Failed(**failed.model_dump()) for failed in file.failed),
    )
