"""Lack-of-fit test: whether a fit deviates from the observations by more than chance, over all measured conditions.

For each condition, which is a memory size with a number of tasks at once, the median of the relative residuals should
be about 0. A bootstrap over the independent units, of residuals from the same fit, gives the deviations by chance. The
largest of these medians, each in units of its own standard deviation, is compared with the largest in each resample.
So the level of the test holds for all conditions together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.study.calibration.medians import weighted_median

Floats = NDArray[np.float64]

SIGNIFICANT = 0.05
MATTERS_FRAC = 0.05
_LEAST_CONDITIONS = 3  # more than the two parameters of a line
_LEAST_SPREAD = 1e-9


@dataclass(frozen=True, slots=True)
class LackOfFit:
    """The result: the p-value, and the condition with the largest deviation.

    `worst_frac` is the median residual of that condition, relative to the expected value of the fit.
    """

    p: float
    worst_frac: float
    memory_mib: float
    concurrent: float

    @property
    def shown(self) -> bool:
        """Whether a lack of fit is significant and large enough to matter."""
        return self.p < SIGNIFICANT and abs(self.worst_frac) >= MATTERS_FRAC


def lack_of_fit(memory_mib: Floats, concurrent: Floats, residual_frac: Floats, weights: Floats) -> LackOfFit | None:
    """Test the residuals (n,) of observations under these conditions; None for too few conditions or resamples.

    `weights` (1 + R, n) are the counts of each observation: 1 in the first row, and those of a bootstrap over units in
    the others.
    """
    places, place = np.unique(np.stack([memory_mib, concurrent]), axis=1, return_inverse=True)
    kinds = places.shape[1]
    if kinds < _LEAST_CONDITIONS or weights.shape[0] < 2:
        return None
    medians = np.full((weights.shape[0], kinds), np.nan)
    for kind in range(kinds):
        own = np.flatnonzero(place.ravel() == kind)
        medians[:, kind] = weighted_median(residual_frac[own], weights[:, own])
    there = np.isfinite(medians).all(axis=1)  # drop resamples without observations of some condition
    drawn, found = medians[there][1:], medians[0]
    if len(drawn) < 2:
        return None
    spread = np.maximum(drawn.std(axis=0, ddof=1), _LEAST_SPREAD)
    largest = float(np.abs(found / spread).max())
    by_chance = np.abs((drawn - found) / spread).max(axis=1)
    worst = int(np.abs(found / spread).argmax())
    p = (1.0 + float((by_chance >= largest).sum())) / (1.0 + len(drawn))
    return LackOfFit(p, float(found[worst]), float(places[0, worst]), float(places[1, worst]))
