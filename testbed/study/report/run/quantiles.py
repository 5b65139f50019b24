"""Latency quantiles of a run: round trips of commands, decisions of the policy, and operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of `count` durations named `what`, in seconds."""

    what: str
    count: int
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float


def quantiles(what: str, durations_s: pl.Series) -> Quantiles | None:
    """Return the quantiles of durations, None if there are none."""
    values = durations_s.drop_nulls().to_numpy()
    if not values.size:
        return None
    p50_s, p95_s, p99_s, max_s = (float(value) for value in np.quantile(values, (0.5, 0.95, 0.99, 1.0)))
    return Quantiles(what, values.size, p50_s, p95_s, p99_s, max_s)


def latencies(points: Mapping[str, pl.DataFrame]) -> list[Quantiles]:
    """Return the quantiles of bus round trips, decisions and operations for which a run has points."""
    return [row for what, series in _series(points) if (row := quantiles(what, series)) is not None]


def _series(points: Mapping[str, pl.DataFrame]) -> Iterator[tuple[str, pl.Series]]:
    if "bus" in points:
        yield "bus: command to acknowledgement", points["bus"]["round_trip_s"]
    if "decision" in points:
        yield "policy: one decision", points["decision"]["decide_s"]
    if "action" in points:
        actions = points["action"].filter(pl.col("ok"))
        for verb in ("start", "cap", "save", "transfer", "restore", "migrate"):
            own = actions.filter(pl.col("verb").cast(pl.String) == verb)
            yield f"operation: {verb}", own["elapsed_s"]
