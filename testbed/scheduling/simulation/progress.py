"""Measured rates of progress of jobs by yield; in the papers the rate is the yield [RR 2.1]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.scheduling.compiler import lean_kernel
from testbed.scheduling.policies.view import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """Rates relative to a dedicated node, at yields: linear between the points and from (0, 0) to the first one.

    `yield_frac` (Y,) increases and ends at 1; `serial` (Y,) is for jobs of one task, `parallel` (Y,) for others, all
    more than 0. Rates above the yield are possible: a job that also waits for messages needs less CPU than
    declared. Raises ValueError for other arrays.
    """

    yield_frac: Floats
    serial: Floats
    parallel: Floats

    def __post_init__(self) -> None:
        at = self.yield_frac
        if at.size == 0 or np.any(np.diff(at) <= 0.0) or not at[0] > 0.0 or at[-1] != 1.0:
            raise ValueError(f"progress.yield_frac must increase, from more than 0 to 1: {at.tolist()}")
        for kind, rates in (("serial", self.serial), ("parallel", self.parallel)):
            if rates.shape != at.shape:
                raise ValueError(f"progress.{kind} has {rates.size} rates: expected {at.size}, one per yield_frac")
            if not np.all(np.isfinite(rates) & (rates > 0.0)):
                raise ValueError(f"progress.{kind} must be finite and more than 0: {rates.tolist()}")

    @property
    def is_the_yield(self) -> bool:
        """Whether every rate is its yield, as without measurements."""
        return bool(np.all(self.serial == self.yield_frac) and np.all(self.parallel == self.yield_frac))

    def from_zero(self) -> tuple[Floats, Floats, Floats]:
        """Return yields, serial and parallel rates, (Y + 1,) each, with (0, 0) before them."""
        yields, serial, parallel = (
            np.concatenate(([0.0], each)) for each in (self.yield_frac, self.serial, self.parallel)
        )
        return yields, serial, parallel


@lean_kernel
def segment_of(points: Floats, value: float) -> int:
    """Return the first point of the segment of `points` (P,), P >= 2, that contains `value`, or is nearest."""
    first = 0
    while first < points.size - 2 and value >= points[first + 1]:
        first += 1
    return first


@lean_kernel
def weight_of(points: Floats, first: int, value: float) -> float:
    """Return the position of `value` from point `first` (0) to the next one (1); below 0 or above 1 outside."""
    return float((value - points[first]) / (points[first + 1] - points[first]))


@lean_kernel
def rate_at(yields: Floats, rates: Floats, yield_frac: float) -> float:
    """Interpolate `rates` (Y + 1,) at `yields` (Y + 1,), which go from 0 to 1; exact at both ends."""
    if yield_frac >= 1.0:
        return float(rates[rates.size - 1])
    first = segment_of(yields, yield_frac)
    return float(rates[first] + weight_of(yields, first, yield_frac) * (rates[first + 1] - rates[first]))
