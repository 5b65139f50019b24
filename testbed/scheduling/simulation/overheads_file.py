"""Reader of overhead models in TOML files, as a calibration writes them.

    [overheads]
    concurrent_tasks = [1, 8]           # tasks that move at one instant; 1 first; optional with one row below
    memory_gb = [0.5, 2.0, 8.0]         # memory of a task, in 1e9 bytes
    resume_s = [
        [1.1, 2.9, 10.4],               # one task, by memory
        [1.3, 4.0, 15.0],               # eight tasks at once
    ]
    migration_s = [[2.0, 5.5, 20.1], [2.4, 7.7, 29.0]]
    # All below is optional.
    concurrent_per = "node"             # tasks that move at one instant on one node; or of the "cluster", as without it
    start_s = [[0.4, 0.4, 0.5], [0.9, 0.9, 1.1]]    # from the order to a new job's first progress (default 0)
    save_s = [[0.8, 2.1, 8.0], [1.5, 4.0, 15.2]]    # for which a leaving task occupies its node (default 0)
    transfer_s = [[0.4, 1.6, 6.4], [0.5, 2.0, 8.0]] # for which an image is sent to another node (default 0)
    migration = "save-restore"          # the way of migration_s, or "live"; without it the way is unknown

    [overheads.parallel]                # seconds that a job of several tasks takes beyond that (default 0)
    start_s = 0.7
    save_s = 0.1
    resume_s = 0.4
    migration_s = 0.5

    [overheads.progress]                # rates relative to a dedicated node, by yield; else the yield
    yield_frac = [0.1, 0.5, 1.0]        # ends at 1; (0, 0) is added in front
    serial = [0.1, 0.5, 1.0]            # jobs of one task
    parallel = [0.13, 0.55, 1.0]        # jobs of several tasks

Seconds are wall seconds of the lab that was measured. They are interpolated linearly between the points, and
extrapolated from the last two points of an axis; rates are interpolated linearly between yields. If there are several
`memory_gb`, a simulation refuses tasks of more than twice the largest one, as their overheads are unknown. With
`FILE.toml#extrapolate` it accepts them. `testbed.scheduling.simulation.overheads.Overheads` describes the columns. The
table `[migration_ways_s]` may have the migrations, on the same grid, by `save-restore` and by `live`; it is read to
compare both. The table `[live_migration]` may have `mib_per_s`, at which a live migration sends memory; it is read for
guests that write to their memory meanwhile. Other tables of the file are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from testbed.bus.limits import MOST_AMOUNT, MOST_NODES, MOST_RATE, MOST_TRACE_S
from testbed.errors import InputError, UserError, nearest
from testbed.scheduling.policies.view import Floats
from testbed.scheduling.simulation.overheads import (
    LIVE,
    SAVE_AND_RESTORE,
    BesideRunning,
    Overheads,
    ParallelExtra,
)
from testbed.scheduling.simulation.progress import Progress
from testbed.toml_files import first_mistake, read_toml

EXTRAPOLATED = 2.0  # times the largest memory that was measured
_LEAST_PART = 1e-6  # of an interval of the grid: a nearer point would be extrapolated from rounding errors
_Seconds = Annotated[float, Field(ge=0, le=MOST_TRACE_S, allow_inf_nan=False)]
_Row = Annotated[list[_Seconds], Field(min_length=1)]


_Rates = Annotated[list[Annotated[float, Field(gt=0, le=MOST_RATE, allow_inf_nan=False)]], Field(min_length=1)]


_Fraction = Annotated[float, Field(ge=0, le=MOST_RATE, allow_inf_nan=False)]


class _Progress(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    yield_frac: _Rates
    serial: _Rates
    parallel: _Rates

    def curves(self) -> Progress:
        return Progress(*(np.array(each, dtype=np.float64) for each in (self.yield_frac, self.serial, self.parallel)))


class _Parallel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    start_s: _Seconds = 0.0
    save_s: _Seconds = 0.0
    resume_s: _Seconds = 0.0
    migration_s: _Seconds = 0.0
    start_s_per_gb: _Seconds = 0.0

    def extra(self) -> ParallelExtra:
        return ParallelExtra(**self.model_dump())


class _Beside(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    start_frac: _Fraction = 0.0
    save_frac: _Fraction = 0.0
    resume_frac: _Fraction = 0.0

    def fractions(self) -> BesideRunning:
        return BesideRunning(**self.model_dump())


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    concurrent_tasks: Annotated[list[Annotated[int, Field(ge=1, le=MOST_NODES)]], Field(min_length=1)] = [1]
    memory_gb: _Row
    resume_s: Annotated[list[_Row], Field(min_length=1)]
    migration_s: Annotated[list[_Row], Field(min_length=1)]
    start_s: Annotated[list[_Row], Field(min_length=1)] | None = None
    save_s: Annotated[list[_Row], Field(min_length=1)] | None = None
    transfer_s: Annotated[list[_Row], Field(min_length=1)] | None = None
    migration: Literal["", "save-restore", "live"] = ""
    concurrent_per: Literal["cluster", "node"] = "cluster"
    progress: _Progress | None = None
    parallel: _Parallel = _Parallel()
    beside: _Beside = _Beside()


class _Ways(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    save_restore: Annotated[list[_Row], Field(min_length=1, alias=SAVE_AND_RESTORE)]
    live: Annotated[list[_Row], Field(min_length=1)]


class _LiveMigration(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    mib_per_s: Annotated[float, Field(gt=0, le=MOST_AMOUNT, allow_inf_nan=False)] | None = None


def has_ways(path: Path) -> bool:
    """Whether a file has the costs of both mechanisms of migration; raises `UserError` for a file that is no TOML."""
    found = read_toml(path, "a TOML file with a table of overheads").get("migration_ways_s")
    return isinstance(found, dict) and {SAVE_AND_RESTORE, LIVE} <= found.keys()


def load_ways(path: Path) -> dict[str, Overheads]:
    """Read the overheads of a file with the migrations of each way; raise UserError as `load_overheads` does.

    A job of several tasks that migrates by images takes as much more as for a save and a resume, live no more.
    """
    data = read_toml(path, "a TOML file with a table of overheads")
    plain = _overheads(path, data)
    table = data.get("migration_ways_s")
    if not isinstance(table, dict):
        raise UserError(f"{path}: no table [migration_ways_s]{nearest('migration_ways_s', data)}")
    try:
        ways = _Ways.model_validate(table)
    except ValidationError as error:
        raise first_mistake(path, _Ways, error, table="migration_ways_s") from None
    found = {}
    for way, rows in ((SAVE_AND_RESTORE, ways.save_restore), (LIVE, ways.live)):
        if {len(row) for row in rows} != {plain.memory_gb.size} or len(rows) != plain.concurrent_tasks.size:
            raise InputError(str(path), f"migration_ways_s.{way}", rows, "rows as those of [overheads]")
        more_s = 0.0 if way == LIVE else plain.parallel.save_s + plain.parallel.resume_s
        found[way] = replace(
            plain, migration_s=np.array(rows, dtype=np.float64), migrates=way,
            parallel=replace(plain.parallel, migration_s=more_s),
        )  # fmt: skip
    return found


def load_live_mib_per_s(path: Path) -> float | None:
    """Return the rate at which a live migration sends memory, None if the file has none; raises `UserError`."""
    table = read_toml(path, "a TOML file with a table of overheads").get("live_migration", {})
    try:
        return _LiveMigration.model_validate(table).mib_per_s
    except ValidationError as error:
        raise first_mistake(path, _LiveMigration, error, table="live_migration") from None


def load_cheaper(path: Path) -> Overheads:
    """Read the overheads of a file with migrations by the cheaper way at each point; raises as `load_ways` does.

    Memory where the costs of both ways are equal, at a measured concurrency, becomes a point of the grid: between the
    points of memory, and beyond them, too, the cost is that of the cheaper way.
    """
    ways = load_ways(path)
    live, by_images = ways[LIVE], ways[SAVE_AND_RESTORE]
    memory_gb = _with_crossings(live.memory_gb, live.migration_s - by_images.migration_s)

    def at_points(rows: Floats) -> Floats:
        return np.array([_along(live.memory_gb, row, memory_gb) for row in rows])

    migration_s = np.minimum(at_points(live.migration_s), at_points(by_images.migration_s))
    start_s, save_s, transfer_s = (
        None if rows is None else at_points(rows) for rows in (live.start_s, live.save_s, live.transfer_s)
    )
    return replace(
        live, name=f"{path}#cheaper", memory_gb=memory_gb, resume_s=at_points(live.resume_s), migration_s=migration_s,
        migrates="", start_s=start_s, save_s=save_s, transfer_s=transfer_s,
    )  # fmt: skip


def _with_crossings(points: Floats, differences: Floats) -> Floats:
    """Return the points (K,) and those where a row of `differences` (L, K) changes its sign between or beyond them.

    Beyond the last point a second one follows, so that the grid continues with the new sign.
    """
    found = set(points.tolist())
    for row in differences:
        for index in np.flatnonzero(row[:-1] * row[1:] < 0.0).tolist():
            part = row[index] / (row[index] - row[index + 1])
            if _LEAST_PART < part < 1.0 - _LEAST_PART:
                found.add(float(points[index] + part * (points[index + 1] - points[index])))
        if points.size > 1:
            last_gb = float(points[-1] - points[-2])
            rise = float(row[-1] - row[-2])
            beyond_gb = -last_gb * float(row[-1]) / rise if row[-1] * rise < 0.0 else 0.0
            if beyond_gb > _LEAST_PART * last_gb:
                found |= {float(points[-1]) + beyond_gb, float(points[-1]) + beyond_gb + last_gb}
    return np.array(sorted(found))


def _along(points: Floats, values: Floats, at: Floats) -> Floats:
    """Return the values (K,) at other points, linear between the points and beyond the last; never negative."""
    found = np.interp(at, points, values)
    if points.size > 1:
        slope = (values[-1] - values[-2]) / (points[-1] - points[-2])
        found = np.where(at > points[-1], values[-1] + slope * (at - points[-1]), found)
    return np.asarray(np.maximum(found, 0.0))


def load_overheads(path: Path) -> Overheads:
    """Read the table `[overheads]` of a TOML file; raise UserError with file, key, value and the expected value."""
    return _overheads(path, read_toml(path, "a TOML file with a table of overheads"))


def _overheads(path: Path, data: Mapping[str, Any]) -> Overheads:
    if not isinstance(data.get("overheads"), dict):
        raise UserError(f"{path}: no table [overheads]{nearest('overheads', data)}")
    try:
        table = _Table.model_validate(data["overheads"])
    except ValidationError as error:
        raise first_mistake(path, _Table, error, table="overheads") from None
    if table.concurrent_tasks[0] != 1:
        raise InputError(str(path), "overheads.concurrent_tasks", table.concurrent_tasks, "1 as its first level")
    seconds: dict[str, Any] = {}
    for key in ("resume_s", "migration_s", "start_s", "save_s", "transfer_s"):
        rows: list[list[float]] | None = getattr(table, key)
        if rows is not None and len({len(row) for row in rows}) != 1:
            raise InputError(str(path), f"overheads.{key}", rows, "rows of equal length, one number per memory_gb")
        seconds[key] = None if rows is None else np.array(rows, dtype=np.float64)
    try:
        return Overheads(
            name=str(path),
            concurrent_tasks=np.array(table.concurrent_tasks, dtype=np.float64),
            memory_gb=np.array(table.memory_gb, dtype=np.float64),
            **seconds,
            migrates=table.migration,
            per_node=table.concurrent_per == "node",
            progress=None if table.progress is None else table.progress.curves(),
            wall_clock=True,
            parallel=table.parallel.extra(),
            beside=table.beside.fractions(),
            most_memory_gb=EXTRAPOLATED * table.memory_gb[-1] if len(table.memory_gb) > 1 else inf,
        )
    except ValueError as error:
        raise UserError(f"{path}: [overheads]: {error}") from error
