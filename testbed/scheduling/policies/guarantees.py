"""Admission test of jobs with guaranteed yields: whether a cluster can keep all guarantees at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.scheduling.policies.capacity import TOLERANCE_FRAC
from testbed.scheduling.policies.fairness import MOST_GUARANTEED_FRAC
from testbed.scheduling.workload.jobs import Job


def guarantees_fit(jobs: Sequence[Job], nodes: int) -> bool:
    """Whether all tasks with guaranteed yields fit on `nodes` nodes, by their guaranteed CPU and their memory.

    Tasks are placed first-fit in decreasing order of the larger of the two. The test may fail for jobs that would fit
    in another way, but never passes for jobs that do not fit.
    """
    tasks = [
        (job.cpu_need_frac * job.least_yield_frac, job.mem_req_frac)
        for job in jobs
        if job.least_yield_frac > 0.0
        for _ in range(job.tasks)
    ]
    cpu, memory = np.zeros(nodes), np.zeros(nodes)
    for cpu_frac, mem_frac in sorted(tasks, key=max, reverse=True):
        fits = (cpu + cpu_frac <= MOST_GUARANTEED_FRAC + TOLERANCE_FRAC) & (memory + mem_frac <= 1.0 + TOLERANCE_FRAC)
        node = int(fits.argmax())
        if not fits[node]:
            return False
        cpu[node] += cpu_frac
        memory[node] += mem_frac
    return True
