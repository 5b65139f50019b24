"""A model of the load of MARC, the cluster of the University of Marburg, from January to August 2006 [XGE II].

The paper gives numbers of jobs and mean run times by queue, the limits of the queues, and the numbers of cores that
parallel jobs requested. The model adds these assumptions, whose parameters are in `MarcModel`:

* Run times are log-normal below the limit of the queue, with the paper's mean.
* Serial jobs are submitted in farms of a geometric number of jobs, parallel ones alone or in farms. Farms are Poisson
  processes whose rates follow one cycle of the day and the week.
* Jobs of both parallel queues request cores with the same probabilities, as the paper counts them together.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import NamedTuple

from testbed.errors import UserError
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.segments import WEEK_S
from testbed.scheduling.workload.truncated import TruncatedLogNormal
from testbed.scheduling.workload.variates import Uniform

NODES = 85
CORES_PER_NODE = 4
SPAN_WEEKS = 243 / 7  # 1 January to 31 August 2006
JOBS_BY_CORES = {2: 3334, 4: 3141, 8: 2743, 16: 13, 32: 10}  # Table IV, parallel and parallel_long

MAX_SEED = 2**32 - 1
MOST_WEEKS = 100
MOST_RATE = 10.0
MOST_FARM_JOBS = 10_000.0
_PEAK_HOUR = 15
_WEEKEND = (5, 6)  # the week begins on Monday at midnight


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of the site. `jobs` and `mean_run_s` are of Table III, `limit_s` of Table I."""

    name: str
    jobs: int
    mean_run_s: float
    limit_s: float

    @property
    def is_parallel(self) -> bool:
        """Whether its jobs have several tasks."""
        return self.name.startswith("parallel")


QUEUES = (
    Queue("parallel", 8_922, 489 * 60.0, 72 * 3600.0),
    Queue("parallel_long", 225, 6_426 * 60.0, 240 * 3600.0),
    Queue("serial", 35_103, 678 * 60.0, 72 * 3600.0),
    Queue("serial_long", 1_088, 5_828 * 60.0, 240 * 3600.0),
    Queue("serial_low", 652_033, 26 * 60.0, 100 * 60.0),
)


@dataclass(frozen=True, slots=True)
class MarcModel:
    """Parameters of the model that the paper does not give. Raises UserError for a value outside its range.

    * `rate`: jobs per week, relative to the paper's;
    * `cv`: the coefficient of variation of run times before truncation at the queue's limit;
    * `farm_jobs`, `parallel_farm_jobs`: the mean number of jobs that are submitted at once; 1: each alone;
    * `daily`: the amplitude of the cycle of the day, with its peak from 15 to 16 h; 0: no cycle;
    * `weekend`: submissions at weekends, relative to other days;
    * `urgent_s`: jobs of the queue `parallel` with at most this run time are urgent; 0: none;
    * `mem_req_frac`: memory of a task, a fraction of a node; four tasks fit a node.
    """

    rate: float = 1.0
    cv: float = 2.0
    farm_jobs: float = 100.0
    parallel_farm_jobs: float = 1.0
    daily: float = 0.5
    weekend: float = 0.5
    urgent_s: float = 0.0
    mem_req_frac: float = 0.2

    def __post_init__(self) -> None:
        whole = 1.0 / CORES_PER_NODE
        for name, low, high in (
            ("rate", 0.001, MOST_RATE), ("farm_jobs", 1.0, MOST_FARM_JOBS),
            ("parallel_farm_jobs", 1.0, MOST_FARM_JOBS), ("daily", 0.0, 1.0), ("weekend", 0.0, 1.0),
            ("urgent_s", 0.0, QUEUES[0].limit_s), ("mem_req_frac", 0.001, whole),
        ):  # fmt: skip
            value = getattr(self, name)
            if not low <= value <= high:
                raise UserError(f"load of MARC: {name} = {value:g}: expected {low:g} to {high:g}")
        self.run_time_s(QUEUES[0])

    def jobs_per_week(self, queue: Queue) -> float:
        """Return the expected number of jobs of a queue per week."""
        return self.rate * queue.jobs / SPAN_WEEKS

    def run_time_s(self, queue: Queue) -> TruncatedLogNormal:
        """Return the distribution of the run times of a queue."""
        return TruncatedLogNormal.with_mean(queue.mean_run_s, self.cv, queue.limit_s)

    def hourly_weights(self) -> list[float]:
        """Return the rates of submission in the 168 hours of a week, as multiples of their mean."""
        weights = [
            (1.0 + self.daily * math.cos(2.0 * math.pi * (hour - _PEAK_HOUR) / 24))
            * (self.weekend if hour // 24 in _WEEKEND else 1.0)
            for hour in range(7 * 24)
        ]
        mean = math.fsum(weights) / len(weights)
        return [weight / mean for weight in weights]


def marc_trace(seed: int, weeks: int, model: MarcModel | None = None) -> list[Job]:
    """Return the jobs of `weeks` weeks, sorted by submission, with ids from 1 on; time 0 is a Monday's midnight.

    Each task needs a core, a quarter of a node's CPU. The class of a job is its queue, its estimate the queue's limit.
    The same seed gives the same trace; a parameter changes only the variates that depend on it. Raises UserError.
    """
    model = model or MarcModel()
    if not 0 <= seed <= MAX_SEED:
        raise UserError(f"load of MARC: seed {seed}: expected 0 to {MAX_SEED}")
    if not 1 <= weeks <= MOST_WEEKS:
        raise UserError(f"load of MARC: {weeks} weeks: expected 1 to {MOST_WEEKS}")
    found = [(job, queue) for queue in QUEUES for job in _submissions(seed, weeks, queue, model)]
    found.sort(key=lambda each: each[0].submit_s)
    need_frac = 1.0 / CORES_PER_NODE
    return [
        Job(
            number, float(job.submit_s), job.cores, need_frac, model.mem_req_frac, float(job.run_s), queue.name,
            queue.limit_s, queue.name == "parallel" and job.run_s <= model.urgent_s,
        )
        for number, (job, queue) in enumerate(found, start=1)
    ]  # fmt: skip


class _Submission(NamedTuple):
    """A job; times in whole seconds."""

    submit_s: int
    run_s: int
    cores: int


def _submissions(seed: int, weeks: int, queue: Queue, model: MarcModel) -> Iterator[_Submission]:
    """Yield the jobs of a queue: instants, numbers of jobs, run times and cores are from four generators."""
    # Separate generators, so that a parameter of one does not shift the variates of another. Only uniform variates are
    # used, which are the same in all versions of Python.
    instants, farms, run_times, sizes = (
        Random(f"{seed} {queue.name} {what}").random  # noqa: S311  # variates of a model
        for what in ("instants", "farms", "run times", "cores")
    )
    distribution = model.run_time_s(queue)
    shares = list(accumulate(JOBS_BY_CORES.values()))
    farm_jobs = model.parallel_farm_jobs if queue.is_parallel else model.farm_jobs
    weights = model.hourly_weights()
    for submit_s in _instants(instants, weeks, model.jobs_per_week(queue) / farm_jobs, weights):
        together = 1
        if farm_jobs > 1.0:  # a geometric number: P(n > k) = (1 - 1 / mean) ** k
            together += math.floor(math.log(1.0 - farms()) / math.log1p(-1.0 / farm_jobs))
        for _ in range(together):
            run_s = max(round(distribution.quantile(run_times())), 1)
            cores = list(JOBS_BY_CORES)[bisect(shares, sizes() * shares[-1])] if queue.is_parallel else 1
            yield _Submission(submit_s, run_s, cores)


def _instants(uniform: Uniform, weeks: int, per_week: float, weights: Sequence[float]) -> Iterator[int]:
    """Yield the instants of a Poisson process of `per_week` per week with hourly rates, rounded down to seconds."""
    hours = len(weights)
    by_hour = [part / hours for part in accumulate(weights)]  # expected part of a week's events by the end of each hour
    expected = 0.0  # expected events so far, in units of a week's
    while True:
        expected -= math.log(1.0 - uniform()) / per_week
        if expected >= weeks:
            return
        week = math.floor(expected)
        part = expected - week
        hour = min(bisect(by_hour, part), hours - 1)
        before = by_hour[hour - 1] if hour else 0.0
        width = by_hour[hour] - before
        within = (part - before) / width if width > 0.0 else 0.0  # by rounding errors the last sum may be below 1
        yield week * WEEK_S + min(math.floor((hour + within) * 3600), WEEK_S - 1)
