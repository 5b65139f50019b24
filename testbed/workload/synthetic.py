"""Synthetic traces: the jobs of the Lublin-Feitelson model with CPU needs and memory of their own [RR 5.3.2]."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.workload.jobs import Job
from testbed.workload.lublin import ModelJob, generate

_SEQUENTIAL_CPU_NEED_FRAC = 0.25  # one core of four
_SMALL_MEM_REQ_FRAC = 0.1
_SMALL_MEM_PROB = 0.55


def annotate(model_jobs: Sequence[ModelJob], seed: int) -> list[Job]:
    """Return jobs with ids from 1 on, needs as [RR 5.3.2] gives them, and a task on each node of the model's job.

    Nodes have four cores: the one task of a one-task job needs 0.25 of the CPU, any other task 1.0. Memory is 0.1
    with probability 0.55, else 0.1 x with x uniform on 2..10, for all tasks of a job alike. `seed`, 0 or more, is that
    of numpy's default generator, which has no share in the model's own numbers.
    """
    import numpy as np  # noqa: PLC0415  # a tenth of a second that reading a trace does without

    random = np.random.default_rng(seed)
    is_small = random.random(len(model_jobs)) < _SMALL_MEM_PROB
    tenths = random.integers(2, 10, size=len(model_jobs), endpoint=True)
    return [
        Job(
            job_id=index,
            submit_time_s=float(job.submit_time_s),
            tasks=job.nodes,
            cpu_need_frac=_SEQUENTIAL_CPU_NEED_FRAC if job.nodes == 1 else 1.0,
            mem_req_frac=_SMALL_MEM_REQ_FRAC if small else int(tenth) / 10,
            run_time_s=float(job.run_time_s),
            job_class=job.job_class,
        )
        for index, (job, small, tenth) in enumerate(zip(model_jobs, is_small, tenths, strict=True), start=1)
    ]


def synthetic_trace(nodes: int, jobs: int, seed: int, mode: str = "mixed") -> list[Job]:
    """Return an annotated Lublin-Feitelson trace; one seed, 0 to 2^32 - 1, for both. Raises UserError."""
    return annotate(generate(nodes, jobs, seed, mode), seed)
