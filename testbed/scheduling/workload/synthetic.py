"""Synthetic needs: jobs of a model or a log with the CPU needs and memory requirements of [RR 5.3.2]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from testbed.errors import UserError
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.lublin import generate

_SEQUENTIAL_CPU_NEED_FRAC = 0.25  # one core of four
_SMALL_MEM_REQ_FRAC = 0.1
_SMALL_MEM_PROB = 0.55


def annotate(jobs: Sequence[Job], seed: int) -> list[Job]:
    """Return the jobs, in their order, with the needs of [RR 5.3.2]; other data of a job does not change.

    Nodes have four cores: the one task of a one-task job needs 0.25 of the CPU, any other task 1.0. Memory is 0.1
    with probability 0.55, else 0.1 x with x uniform on 2..10, for all tasks of a job alike. `seed`, 0 or more, is that
    of numpy's default generator. The needs of a job depend on the seed, the job's position and the number of jobs.
    Raises UserError on a seed below 0.
    """
    if seed < 0:
        raise UserError(f"seed {seed} of the needs: expected 0 or more")
    import numpy as np  # noqa: PLC0415  # takes a tenth of a second, and reading a trace does not need it

    random = np.random.default_rng(seed)
    is_small = random.random(len(jobs)) < _SMALL_MEM_PROB
    tenths = random.integers(2, 10, size=len(jobs), endpoint=True)
    return [
        replace(
            job,
            cpu_need_frac=_SEQUENTIAL_CPU_NEED_FRAC if job.tasks == 1 else 1.0,
            mem_req_frac=_SMALL_MEM_REQ_FRAC if small else int(tenth) / 10,
        )
        for job, small, tenth in zip(jobs, is_small, tenths, strict=True)
    ]


def synthetic_trace(nodes: int, jobs: int, seed: int, mode: str = "mixed") -> list[Job]:
    """Return a Lublin-Feitelson trace with needs: ids from 1 on, one task per node of the model's job.

    One seed, 0 to 2^32 - 1, serves the model and the needs, which draw from two generators. Raises UserError.
    """
    rigid = [
        Job(index, float(job.submit_time_s), job.nodes, 1.0, 1.0, float(job.run_time_s), job.job_class)
        for index, job in enumerate(generate(nodes, jobs, seed, mode), start=1)
    ]
    return annotate(rigid, seed)
