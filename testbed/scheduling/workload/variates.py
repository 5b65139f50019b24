"""Random variates of the Lublin-Feitelson model, in the order and the arithmetic of its program."""

from __future__ import annotations

import math
from collections.abc import Callable

Uniform = Callable[[], float]


def gamma_variate(uniform: Uniform, shape: float, scale: float) -> float:
    """Draw from Gamma(shape, scale): the sum of a Gamma of the whole part of `shape` and one of the rest.

    It takes floor(shape) numbers for the whole part. For a rest d it takes pairs until a Beta(d, 1 - d) is found, then
    one number.
    """
    whole = int(shape)
    rest = shape - whole
    log_sum = 0.0
    for _ in range(whole):
        log_sum += _log(uniform())
    value = -log_sum * scale
    if rest > 0:
        beta = _beta_variate(uniform, rest)
        value += scale * beta * -_log(uniform())
    return value


def gamma_cdf(x: float, shape: float, scale: float) -> float:
    """Return the cumulative distribution function of Gamma(shape, scale) at x > 0.

    The power series of the lower incomplete gamma function: all terms are positive, so nothing cancels, and for the
    few standard deviations needed here some tens of terms suffice.
    """
    y = x / scale
    term = total = 1 / shape
    n = shape
    while term > total * 1e-17:
        n += 1
        term *= y / n
        total += term
    return total * math.exp(shape * math.log(y) - y - math.lgamma(shape))


def _beta_variate(uniform: Uniform, d: float) -> float:
    while True:
        x = math.pow(uniform(), 1 / d)
        y = math.pow(uniform(), 1 / (1 - d))
        if x + y <= 1:
            return x / (x + y)


def _log(u: float) -> float:
    return math.log(u) if u > 0 else -math.inf  # as in C; the caller draws an infinite variate again
