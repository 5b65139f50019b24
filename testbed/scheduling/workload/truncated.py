"""The log-normal distribution below a limit, with a given mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from testbed.errors import UserError

LEAST_CV, MOST_CV = 0.1, 10.0
MOST_MEAN_FRAC = 0.9  # of the limit: means nearer to it need probabilities below the precision of floats

_NORMAL = NormalDist()
_LEAST_PROBABILITY = 2.0**-60  # in place of 0, at which the quantile function is not defined


@dataclass(frozen=True, slots=True)
class TruncatedLogNormal:
    """A variate whose logarithm is normal with mean `mu` and deviation `sigma`, given that it is at most `limit`."""

    mu: float
    sigma: float
    limit: float

    @classmethod
    def with_mean(cls, mean: float, cv: float, limit: float) -> TruncatedLogNormal:
        """Return the distribution whose mean below the limit is `mean`.

        `cv` is the coefficient of variation without the limit, and determines `sigma`; that of the result is smaller.
        `mu` is found by bisection, as the mean grows with it. Raises UserError for a `cv` that is not in 0.1 to
        10, and for a mean that is not above 0 and at most 0.9 of the limit.
        """
        if not LEAST_CV <= cv <= MOST_CV:
            raise UserError(f"coefficient of variation {cv:g}: expected {LEAST_CV:g} to {MOST_CV:g}")
        if not (0.0 < mean <= MOST_MEAN_FRAC * limit < math.inf):
            raise UserError(
                f"mean {mean:g} below the limit {limit:g}: expected above 0, at most {MOST_MEAN_FRAC:g} of it"
            )
        sigma = math.sqrt(math.log1p(cv * cv))
        low = math.log(mean) - sigma * sigma / 2  # the mean without a limit: with it, the mean is less
        high = low + sigma
        while cls(high, sigma, limit).mean < mean:
            high += sigma
        while low < (middle := (low + high) / 2) < high:
            if cls(middle, sigma, limit).mean < mean:
                low = middle
            else:
                high = middle
        return cls(high, sigma, limit)

    @property
    def mean(self) -> float:
        """The mean."""
        return self._moment(1)

    @property
    def cv(self) -> float:
        """The coefficient of variation."""
        return math.sqrt(max(self._moment(2) / self._moment(1) ** 2 - 1.0, 0.0))

    def quantile(self, probability: float) -> float:
        """Return the quantile of a probability in [0, 1)."""
        below = max(probability, _LEAST_PROBABILITY) * _below(self._most)
        return min(math.exp(self.mu + self.sigma * _NORMAL.inv_cdf(below)), self.limit)

    @property
    def _most(self) -> float:
        return (math.log(self.limit) - self.mu) / self.sigma

    def _moment(self, order: int) -> float:
        shift = order * self.sigma
        return math.exp(order * self.mu + shift * shift / 2) * _below(self._most - shift) / _below(self._most)


def _below(deviations: float) -> float:
    """Return the probability that a standard normal variate is below a value; accurate also if it is tiny."""
    return math.erfc(-deviations / math.sqrt(2.0)) / 2.0
