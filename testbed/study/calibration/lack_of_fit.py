"""Whether a fit misses what was observed by more than chance: a test over the conditions that were measured.

Of each condition, a memory size with a number of tasks at once, the median of the relative residuals should be about 0.
How far it may be from 0 by chance tells a bootstrap over the independent units, of residuals from the same fit. The
largest of these medians, each in units of its own standard deviation, is compared with the largest of the bootstrap:
so the probability that one of many conditions seems to differ is that of the whole test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.study.calibration.medians import weighted_median

Floats = NDArray[np.float64]

SIGNIFICANT = 0.05
MATTERS_FRAC = 0.05
_LEAST_CONDITIONS = 3  # more than a line has parameters
_LEAST_SPREAD = 1e-9


@dataclass(frozen=True, slots=True)
class LackOfFit:
    """The result: how likely it is that chance alone makes a condition miss the fit as much, and the worst one.

    `worst_frac` is its median residual, relative to what the fit expects.
    """

    p: float
    worst_frac: float
    memory_mib: float
    concurrent: float

    @property
    def shown(self) -> bool:
        """Whether the fit is shown to miss, by as much as matters."""
        return self.p < SIGNIFICANT and abs(self.worst_frac) >= MATTERS_FRAC


def lack_of_fit(memory_mib: Floats, concurrent: Floats, residual_frac: Floats, weights: Floats) -> LackOfFit | None:
    """Test residuals (n,) of observations at these conditions; None where there are too few of these.

    `weights` (1 + R, n) say how often each observation counts: once in the first row, by drawn units in the others.
    """
    places, place = np.unique(np.stack([memory_mib, concurrent]), axis=1, return_inverse=True)
    kinds = places.shape[1]
    if kinds < _LEAST_CONDITIONS or weights.shape[0] < 2:
        return None
    medians = np.full((weights.shape[0], kinds), np.nan)
    for kind in range(kinds):
        own = np.flatnonzero(place.ravel() == kind)
        medians[:, kind] = weighted_median(residual_frac[own], weights[:, own])
    there = np.isfinite(medians).all(axis=1)  # else a resample left a condition out
    drawn, found = medians[there][1:], medians[0]
    if len(drawn) < 2:
        return None
    spread = np.maximum(drawn.std(axis=0, ddof=1), _LEAST_SPREAD)
    largest = float(np.abs(found / spread).max())
    by_chance = np.abs((drawn - found) / spread).max(axis=1)
    worst = int(np.abs(found / spread).argmax())
    p = (1.0 + float((by_chance >= largest).sum())) / (1.0 + len(drawn))
    return LackOfFit(p, float(found[worst]), float(places[0, worst]), float(places[1, worst]))
