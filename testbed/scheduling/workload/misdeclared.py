"""Traces with wrongly declared CPU needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from testbed.scheduling.workload.jobs import Job


def misdeclared(jobs: Sequence[Job], factor: float, seed: int) -> list[Job]:
    """Return the jobs with CPU needs declared `factor` times too high or too low, with equal probability, at most 1.

    Their real needs do not change. Raises ValueError for a factor below 1.
    """
    if not 1.0 <= factor < np.inf:
        raise ValueError(f"factor {factor}: expected a finite one of at least 1")
    wrong = np.where(np.random.default_rng(seed).random(len(jobs)) < 0.5, factor, 1.0 / factor)
    return [
        replace(job, cpu_need_frac=min(job.cpu_need_frac * by, 1.0), true_need_frac=job.real_need_frac)
        for job, by in zip(jobs, wrong.tolist(), strict=True)
    ]
