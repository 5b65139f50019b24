"""The samples of the guests of a live run, from the points in its directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from testbed.measure.frames import load_points


class Sample(NamedTuple):
    """One sample of a guest: wall seconds since the begin of the run, its node, and the numbers among its fields."""

    at_s: float
    node: str
    values: dict[str, float]


def guest_samples(run: Path) -> dict[int, list[Sample]]:
    """Return the samples of each job, the earliest first; for jobs of one task."""
    anchor_ns = json.loads((run / "manifest.json").read_text())["clocks"]["anchor_unix_ns"]
    points = load_points(run, ("guest",))["guest"]
    times_ns = points["time"].dt.epoch("ns").to_list()
    found: dict[int, list[Sample]] = {}
    for time_ns, row in zip(times_ns, points.iter_rows(named=True), strict=True):
        values = {name: float(value) for name, value in row.items() if isinstance(value, int | float)}
        found.setdefault(int(row["job"]), []).append(Sample((time_ns - anchor_ns) / 1e9, row["node"], values))
    return found
