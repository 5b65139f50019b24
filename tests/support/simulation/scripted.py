"""Policies with scripted decisions, for views and for arrays."""

from dataclasses import dataclass, field

import numpy as np

from testbed.scheduling.policies.kernel_policy import Kernels
from testbed.scheduling.policies.view import NOT_PLACED, Decision
from testbed.scheduling.simulation.compiling import NEVER
from testbed.scheduling.simulation.loop import run_loop


@dataclass
class Scripted:
    """The nodes and yields of jobs at each instant: {time: {job row: (nodes, yield)}}; other jobs do not run."""

    script: dict
    period_s: float = 0.0
    name: str = "scripted"
    needs_estimates: bool = False
    seen: list = field(default_factory=list)

    def can_ever_run(self, tasks, mem_req_frac, nodes):
        return True

    def answer(self, time_s):
        return self.script[max(instant for instant in self.script if instant <= time_s)]

    def decide(self, view, event):
        self.seen.append((view.time_s, len(event.completed) > 0, len(event.submitted), event.periodic))
        task_node, shares, begin = np.full(view.task_node.size, NOT_PLACED), np.zeros(view.tasks.size), 0
        for index, job_id in enumerate(view.job_id):
            nodes, shares[index] = self.answer(view.time_s).get(int(job_id), (NOT_PLACED, 0.0))
            task_node[begin : begin + view.tasks[index]] = nodes
            begin += view.tasks[index]
        return Decision(task_node=task_node, yield_frac=shares)

    def decide_on_arrays(self, rules, jobs, cluster, time_s, active, submitted, freed, periodic):
        self.seen.append((time_s, freed, submitted.size, periodic))
        for row in active:
            nodes, cluster.yield_frac[row] = self.answer(time_s).get(int(row), (NOT_PLACED, 0.0))
            cluster.task_node[jobs.offset[row] : jobs.offset[row + 1]] = nodes
            cluster.running[row] = np.any(np.asarray(nodes) != NOT_PLACED)


def by_views(jobs, nodes, policy, table):
    """Run the event loop with a policy that gets views."""
    return run_loop(jobs, nodes, policy, table, debug=True, record=True)


def on_arrays(jobs, nodes, policy, table):
    """Run the event loop as a plain Python function, with a decision on its arrays."""
    return run_loop(jobs, nodes, _OnArrays(policy), table, debug=True, compiling=NEVER, record=True)


class _OnArrays:
    """A policy with a plain function in place of a compiled kernel."""

    def __init__(self, policy):
        self.name, self.period_s, self.needs_estimates = policy.name, policy.period_s, False
        self.kernels, self.rules = Kernels(policy.decide_on_arrays), ()
        self.can_ever_run, self.decide = policy.can_ever_run, policy.decide
