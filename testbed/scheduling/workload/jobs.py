"""A job of a trace: the data that every scheduler gets, and the run time, which only clairvoyant schedulers get."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the model of [RR] section 2.2: `tasks` equal tasks that run at one common yield.

    Times are trace seconds. `cpu_need_frac` and `mem_req_frac` are per task, as fractions of one node in (0, 1].
    `run_time_s` is the processing time on a dedicated cluster, > 0; DFRS policies never get it.
    `estimate_s` is the user's estimate for batch policies; None means that it is the run time. Other jobs may be paused
    for an `urgent` job, under policies that support urgent jobs ([XGE]'s option `-xge`). `program` is the program of
    its tasks, by default the scenario's for serial or parallel jobs. `weight`, more than 0, and `least_yield_frac`, a
    yield that is guaranteed while the job runs, count under policies that support them. `true_need_frac` is the real
    CPU need of a task if it differs from `cpu_need_frac`, the declared need, which policies get.
    """

    job_id: int
    submit_time_s: float
    tasks: int
    cpu_need_frac: float
    mem_req_frac: float
    run_time_s: float
    job_class: str | None = None
    estimate_s: float | None = None
    urgent: bool = False
    program: str | None = None
    weight: float = 1.0
    least_yield_frac: float = 0.0
    true_need_frac: float | None = None

    @property
    def real_need_frac(self) -> float:
        """The real CPU need of a task, a fraction of a node: `true_need_frac`, or else the declared need."""
        return self.cpu_need_frac if self.true_need_frac is None else self.true_need_frac

    @property
    def batch_estimate_s(self) -> float:
        """Run time that batch policies plan with, in trace seconds: the user's estimate, or else the real one."""
        return self.run_time_s if self.estimate_s is None else self.estimate_s
