"""Calibrations read back from their files."""

from __future__ import annotations

import tomllib
from math import nan
from pathlib import Path

from testbed.study.calibration.model import (
    VERSION,
    About,
    Assumption,
    Calibration,
    Failed,
    Outlier,
    OverheadGrids,
    ProgressCurve,
    Quantity,
)


def _frozen(value: object) -> object:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def read_calibration(path: Path) -> Calibration:
    """Return the calibration of a file; a key that is unknown to its model is an error."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    about, grids, ways = data.pop("calibration"), data.pop("overheads", None), data.pop("migration_ways_s", {})
    sent = data.pop("live_migration", {})
    assert about.pop("version") == VERSION
    progress = None
    if grids is not None:
        assert grids.pop("concurrent_per") == "node"
        progress = grids.pop("progress", None)
        grids.setdefault("start_s", None)
    no_interval = {"low": nan, "high": nan, "goodness": nan}
    read = Calibration(
        about=About(**{key: _frozen(value) for key, value in about.items()}),
        provenance=data.pop("provenance"),
        quantities=tuple(Quantity(**{**no_interval, **each}) for each in data.pop("quantity", ())),
        assumptions={
            name: Assumption(**{"within_frac": nan, **each}) for name, each in data.pop("assumptions", {}).items()
        },
        overheads=None
        if grids is None
        else OverheadGrids(
            **{key: _frozen(value) for key, value in grids.items()},
            migration_ways_s={name: _frozen(rows) for name, rows in ways.items()},
            live_mib_per_s=sent.get("mib_per_s"),
        ),
        progress=progress and ProgressCurve(**{key: tuple(rates) for key, rates in progress.items()}),
        outliers=tuple(Outlier(**each) for each in data.pop("outlier", ())),
        failed=tuple(Failed(**{"condition": {}, **each}) for each in data.pop("failed", ())),
    )
    assert not data
    return read
