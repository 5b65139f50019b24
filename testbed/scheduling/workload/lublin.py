"""The workload model of Lublin and Feitelson (JPDC 63(11), 2003), bit for bit as in its authors' program.

Rigid jobs come in two types, batch and interactive, that arrive independently in a daily cycle. The size of a job is a
two-stage uniform variate on a logarithmic scale. The run time is a mixture of two gamma variates, whose weights depend
on the size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from testbed.errors import UserError, nearest
from testbed.scheduling.workload.drand48 import MAX_SEED, Drand48
from testbed.scheduling.workload.variates import Uniform, gamma_cdf, gamma_variate

MODES = ("mixed", "typeless")

_BUCKETS = 48  # of a day
_BUCKET_S = 1800
_DAY_STARTS_AT_BUCKET = 11
_MAX_LN_RUN_TIME = 12
_MAX_LN_INTER_ARRIVAL = 13
_MODEL_LOG2_NODES = 7  # the published constants of the sizes are for 128 nodes


@dataclass(frozen=True, slots=True)
class ModelJob:
    """A job of the model: rigid, without CPU need and memory requirement. `job_class` is None in typeless traces."""

    submit_time_s: int
    nodes: int
    run_time_s: int
    job_class: str | None


@dataclass(frozen=True, slots=True)
class _Size:
    """log2 of a parallel job's size: uniform on [low, med] with probability `prob`, else on [med, high]."""

    serial_prob: float
    pow2_prob: float
    low: float
    med: float
    high: float
    prob: float

    def on(self, nodes: int) -> _Size:
        """Return the distribution for a machine of `nodes` nodes."""
        largest = math.log2(nodes)
        shift = largest - _MODEL_LOG2_NODES
        low = min(self.low, largest)
        med = max(self.med + shift, low)
        return _Size(self.serial_prob, self.pow2_prob, low, med, max(self.high + shift, med), self.prob)

    def draw(self, uniform: Uniform, nodes: int) -> int:
        kind = uniform()
        if kind <= self.serial_prob:
            return 1
        low, high = (self.low, self.med) if uniform() <= self.prob else (self.med, self.high)
        log2_size = uniform() * (high - low) + low
        if kind <= self.serial_prob + self.pow2_prob:
            log2_size = math.floor(log2_size + 0.5)
        return min(math.floor(math.pow(2, log2_size) + 0.5), nodes)


@dataclass(frozen=True, slots=True)
class _RunTime:
    """ln of the run time: Gamma(a1, b1) with probability pa * size + pb, else Gamma(a2, b2)."""

    a1: float
    b1: float
    a2: float
    b2: float
    pa: float
    pb: float

    def draw_s(self, uniform: Uniform, size: int) -> int:
        prob = min(max(self.pa * size + self.pb, 0), 1)
        ln_run_time = math.inf
        while ln_run_time > _MAX_LN_RUN_TIME:
            shape, scale = (self.a1, self.b1) if uniform() <= prob else (self.a2, self.b2)
            ln_run_time = gamma_variate(uniform, shape, scale)
        return max(int(math.exp(ln_run_time)), 1)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """ln of the rush hours' inter-arrival time: Gamma(aarr * arar, barr); the cycle of the day: Gamma(anum, bnum)."""

    aarr: float
    barr: float
    anum: float
    bnum: float
    arar: float

    def weights(self) -> list[float]:
        """Return the arrival rate in each half hour of the day, as a multiple of the mean."""
        weights = [0.0] * _BUCKETS
        for i in range(_DAY_STARTS_AT_BUCKET, _DAY_STARTS_AT_BUCKET + _BUCKETS):
            share = gamma_cdf(i + 0.5, self.anum, self.bnum) - gamma_cdf(i - 0.5, self.anum, self.bnum)
            weights[(i - 1) % _BUCKETS] = share
        mean = math.fsum(weights) / _BUCKETS
        return [weight / mean for weight in weights]


@dataclass(frozen=True, slots=True)
class _Type:
    size: _Size
    run_time: _RunTime
    arrival: _Arrival


_BATCH = _Type(
    _Size(serial_prob=0.2927, pow2_prob=0.6686, low=1.2, med=5, high=7, prob=0.875),
    _RunTime(a1=6.57, b1=0.823, a2=639.1, b2=0.0156, pa=-0.003, pb=0.6986),
    _Arrival(aarr=6.0415, barr=0.8531, anum=6.1271, bnum=5.2740, arar=1.0519),
)
_INTERACTIVE = _Type(
    _Size(serial_prob=0.1541, pow2_prob=0.625, low=1, med=3, high=5.5, prob=0.705),
    _RunTime(a1=3.8351, b1=0.6605, a2=7.073, b2=0.6856, pa=-0.0118, pb=0.9156),
    _Arrival(aarr=6.5510, barr=0.6621, anum=8.9186, bnum=3.6680, arar=0.9797),
)
_TYPELESS = _Type(
    _Size(serial_prob=0.244, pow2_prob=0.576, low=0.8, med=4.5, high=7, prob=0.86),
    _RunTime(a1=4.2, b1=0.94, a2=312, b2=0.03, pa=-0.0054, pb=0.78),
    _Arrival(aarr=10.2303, barr=0.4871, anum=8.1737, bnum=3.9631, arar=1.0225),
)


class _ArrivalProcess:
    """Arrival times of one type of jobs: an arrival costs points, and each half hour of the day has some points."""

    __slots__ = ("_bucket", "_bucket_share", "_points", "_scale", "_shape", "_weights", "next_s")

    def __init__(self, arrival: _Arrival, uniform: Uniform) -> None:
        self._shape = arrival.aarr * arrival.arar
        self._scale = arrival.barr
        self._weights = arrival.weights()
        self._points = 0.0
        self._bucket = 0
        self._bucket_share = 0.0
        self.next_s = 0
        self.draw_next(uniform)

    def draw_next(self, uniform: Uniform) -> None:
        ln_points = math.inf
        while ln_points > _MAX_LN_INTER_ARRIVAL:
            ln_points = gamma_variate(uniform, self._shape, self._scale)
        self._points += math.exp(ln_points) / _BUCKET_S
        gap_s = 0.0
        while self._points > self._weights[self._bucket]:
            self._points -= self._weights[self._bucket]
            self._bucket = (self._bucket + 1) % _BUCKETS
            gap_s += _BUCKET_S
        share = self._points / self._weights[self._bucket]
        gap_s += _BUCKET_S * (share - self._bucket_share)
        self._bucket_share = share
        self.next_s = int(self.next_s + gap_s)


def generate(nodes: int, jobs: int, seed: int, mode: str = "mixed") -> list[ModelJob]:
    """Return `jobs` jobs for a machine of `nodes` nodes, in the order of their submission, from midnight on.

    `mixed` has batch and interactive jobs, `typeless` the model's third set of constants. `seed` is that of the C
    library's `srand48`, 0 to 2^32 - 1: on 128 nodes the same seed gives the trace of the authors' program.

    The published constants of the sizes hold for 128 nodes. On another machine the upper two of them, UMed and UHi, are
    shifted by the change of log2 of the nodes, so their distance does not change. No bound falls below the next lower
    one, and ULow does not exceed the machine. A size that rounds above the machine is the whole machine. Run times and
    arrivals do not change.
    Raises UserError when a number is out of its range.
    """
    if nodes < 1 or jobs < 1:
        raise UserError(f"Lublin-Feitelson trace of {jobs} jobs on {nodes} nodes: expected 1 or more of each")
    if mode not in MODES:
        raise UserError(f"Lublin-Feitelson mode {mode!r}: expected one of {', '.join(MODES)}{nearest(mode, MODES)}")
    if not 0 <= seed <= MAX_SEED:
        raise UserError(f"Lublin-Feitelson seed {seed}: expected 0 to {MAX_SEED}")
    return list(islice(_stream(nodes, Drand48(seed), mode), jobs))


def _stream(nodes: int, uniform: Uniform, mode: str) -> Iterator[ModelJob]:
    types = (
        {"batch": _BATCH, "interactive": _INTERACTIVE}
        if mode == "mixed"
        else dict.fromkeys(("batch", "interactive"), _TYPELESS)
    )
    sizes = {name: kind.size.on(nodes) for name, kind in types.items()}
    # Both draw their first arrival, batch first; a typeless trace then never uses the batch one.
    arrivals = {name: _ArrivalProcess(kind.arrival, uniform) for name, kind in types.items()}
    while True:
        batch_is_next = mode == "mixed" and arrivals["batch"].next_s < arrivals["interactive"].next_s
        name = "batch" if batch_is_next else "interactive"
        submit_time_s = arrivals[name].next_s
        arrivals[name].draw_next(uniform)
        size = sizes[name].draw(uniform, nodes)
        run_time_s = types[name].run_time.draw_s(uniform, size)
        yield ModelJob(submit_time_s, size, run_time_s, name if mode == "mixed" else None)
