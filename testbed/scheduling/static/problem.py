"""The static problem, its solutions, and the bound that no solution can beat [PHD V].

Tasks run for ever with constant needs. A placement gives each task a node, and exceeds the memory of no node. Tasks of
a node share its CPU at the same yield, which is 1 if the CPU suffices for all needs. The objective is to maximise the
least yield of any task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from testbed.bus.limits import MOST_NODES
from testbed.errors import UserError
from testbed.scheduling.policies.capacity import CAPACITY_FRAC
from testbed.scheduling.workload.jobs import Job

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=False, eq=False)
class StaticProblem:
    """Tasks with a CPU need and a memory requirement (T,), as fractions of one of `nodes` identical nodes."""

    cpu_need_frac: Floats
    mem_req_frac: Floats
    nodes: int

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return int(self.cpu_need_frac.size)

    @cached_property
    def bound(self) -> float:
        """The optimum of the linear relaxation: each task is spread evenly over all nodes; 0 if the tasks do not fit.

        Averaging any solution of the relaxation over all orders of the nodes gives a solution as good, in which each
        node has the same part of each task. So the optimum depends on the sums alone.
        """
        if (
            float(self.mem_req_frac.sum()) > self.nodes * CAPACITY_FRAC
            or float(self.mem_req_frac.max()) > CAPACITY_FRAC
        ):
            return 0.0
        demand = float(self.cpu_need_frac.sum())
        return 1.0 if demand <= 0.0 else min(1.0, self.nodes / demand)

    @property
    def memory_slack_frac(self) -> float:
        """The part of all memory that stays free."""
        return 1.0 - float(self.mem_req_frac.sum()) / self.nodes


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The node of each task (T,), by the algorithm of this name."""

    algorithm: str
    node: Ints


def problem_of(jobs: Sequence[Job], nodes: int) -> StaticProblem:
    """Return the problem of all tasks of these jobs; raise `UserError` for none, or for a wrong number of nodes."""
    if not jobs:
        raise UserError("no jobs to place: expected at least one")
    if not 1 <= nodes <= MOST_NODES:
        raise UserError(f"nodes = {nodes}: expected from 1 to {MOST_NODES}")
    tasks = [job.tasks for job in jobs]
    return StaticProblem(
        np.repeat([job.cpu_need_frac for job in jobs], tasks).astype(np.float64),
        np.repeat([job.mem_req_frac for job in jobs], tasks).astype(np.float64),
        nodes,
    )


def minimum_yield(problem: StaticProblem, node: Ints) -> float:
    """Return the least yield of a placement; raises ValueError for an invalid placement."""
    if node.shape != problem.cpu_need_frac.shape or np.any((node < 0) | (node >= problem.nodes)):
        raise ValueError("a placement gives each task one of the nodes")
    memory = np.bincount(node, problem.mem_req_frac, problem.nodes)
    if np.any(memory > CAPACITY_FRAC):
        raise ValueError(f"node {int(memory.argmax())} has tasks of {memory.max():.6g} times its memory")
    most = float(np.bincount(node, problem.cpu_need_frac, problem.nodes).max())
    return 1.0 if most <= 1.0 else 1.0 / most
