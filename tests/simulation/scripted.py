"""Policies whose decisions are written down, for either loop."""

from dataclasses import dataclass, field

import numpy as np

from testbed.policies.state import Rules
from testbed.policies.view import NOT_PLACED, Decision
from testbed.simulation import engine
from testbed.simulation.by_views import simulate_by_views
from testbed.simulation.compiling import NEVER
from testbed.simulation.fractional import simulate_fractional

NO_RULES = Rules(0, 0, 0, 0, 0, 0.0, 0.0, 0.0, clamps_yields=False, backs_off=False)


@dataclass
class Scripted:
    """At each instant, which job has which nodes and yield: {time: {job row: (nodes, yield)}}; others do not run."""

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


def by_views(monkeypatch, jobs, nodes, policy, table, debug=True):
    return simulate_by_views(jobs, nodes, policy, table, debug=debug)


def on_arrays(monkeypatch, jobs, nodes, policy, table, debug=True):
    """Run the loop of the compiled kernels, as the plain function that it is, with a decision of our own."""
    monkeypatch.setattr(engine, "decide", policy.decide_on_arrays)
    rules = NO_RULES._replace(period_s=policy.period_s)
    return simulate_fractional(jobs, nodes, policy.name, rules, table, debug=debug, compiling=NEVER)
