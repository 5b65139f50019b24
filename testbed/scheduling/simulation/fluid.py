"""EQUIPARTITION: one machine with the CPU of the whole platform, an equal share for every job [RR 3.2]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.scheduling.policies.catalogue import EQUIPARTITION
from testbed.scheduling.policies.view import Floats
from testbed.scheduling.simulation.run import SimulatedRun
from testbed.scheduling.workload.jobs import Job


def equal_shares(need: Floats, capacity: float) -> Floats:
    """Return the CPU (J,) of jobs: the same for all, but never more than a job's `need`; the others share the rest."""
    shares = np.zeros(need.size)
    left = capacity
    order = np.argsort(need, kind="mergesort")
    for place, row in enumerate(order):
        shares[row] = min(need[row], left / (need.size - place))
        left -= shares[row]
    return shares


def equipartition(jobs: Sequence[Job], nodes: int) -> SimulatedRun:
    """Return the run of `jobs`, in order of submission; memory is ignored, and jobs start at their submission.

    The platform is one machine with the CPU of `nodes` nodes. Every job gets the same share of it, but never more than
    its total CPU need; the other jobs share the rest. There is no map to nodes, so no cluster could run this schedule.
    """
    submit_s = np.array([job.submit_time_s for job in jobs], dtype=np.float64)
    left_s = np.array([job.run_time_s for job in jobs], dtype=np.float64)
    need = np.array([job.tasks * job.cpu_need_frac for job in jobs], dtype=np.float64)
    end_s = np.full(len(jobs), np.nan)
    active = np.zeros(0, dtype=np.int64)
    now_s, to_come, events = float(submit_s[0]), 0, 0
    while active.size or to_come < len(jobs):
        speed = equal_shares(need[active], float(nodes)) / need[active]
        expected_s = now_s + left_s[active] / speed
        next_s = submit_s[to_come] if to_come < len(jobs) else np.inf
        time_s = float(min(next_s, expected_s.min(initial=np.inf)))
        left_s[active] = np.maximum(left_s[active] - speed * (time_s - now_s), 0.0)
        ends = expected_s <= time_s
        end_s[active[ends]] = time_s
        first = to_come
        to_come += int(np.searchsorted(submit_s[to_come:], time_s, side="right"))
        active = np.concatenate((active[~ends], np.arange(first, to_come)))
        now_s, events = time_s, events + 1
    return SimulatedRun.undisturbed(
        EQUIPARTITION, nodes, tuple(jobs), submit_s, end_s, decisions=events, decide_total_s=0.0, decide_max_s=0.0
    )
