"""One-step prediction: each live decision is repeated with modelled progress since the previous live decision.

From each live decision the model lets jobs progress until the next one. The policy then decides again, for the same
event at the same instant, with these virtual times instead of the measured ones. Another placement is then due to the
model of this one step, and not to an error of an earlier step or to another order of events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from testbed.run import events
from testbed.run.decisions import read_choice, read_event, read_view
from testbed.run.journal import read_events
from testbed.scheduling.simulation.following import Follower
from testbed.scheduling.simulation.simulate import can_pace
from testbed.scheduling.simulation.speeds import NodeSpeeds
from testbed.study.compare.decisions import placement_of, shape_of
from testbed.study.compare.live import LiveRun
from testbed.study.report.run.simulated import Simulation


@dataclass(frozen=True, slots=True)
class OneStep:
    """Numbers of decisions after the first, and of those with the same placement up to a renaming of nodes.

    `progress_error_s` is the median absolute error of virtual times in trace seconds, over all decisions and the jobs
    that ran before each; None without such jobs.
    """

    decisions: int
    same: int
    progress_error_s: float | None

    @property
    def same_frac(self) -> float:
        """Share of decisions with the same placement; 1 without any."""
        return self.same / self.decisions if self.decisions else 1.0


def one_step(run: LiveRun, simulation: Simulation, speeds: NodeSpeeds | None) -> OneStep | None:
    """Repeat the decisions of a run in a model with its simulation's overheads; None if no model supports the policy.

    `speeds` are the speeds of the nodes, None for constant ones.
    """
    if not can_pace(simulation.policy) or simulation.run.needs is not None:
        return None
    policy, jobs = simulation.policy, simulation.run.jobs
    model = Follower(
        jobs, simulation.run.nodes, policy, simulation.overheads, node_memory_gb=simulation.node_memory_gb,
        speeds=speeds,
    )  # fmt: skip
    known = {job.job_id for job in jobs}
    ran: frozenset[int] | None = None  # the jobs that the previous decision ran
    total = same = 0
    errors_s: list[float] = []
    for recorded in read_events(run.facts.path / "events.jsonl"):
        if not isinstance(recorded, events.Decision) or not known.issuperset(recorded.view.job_id):
            continue
        view, chosen = read_view(recorded.view), recorded.decision
        placed = placement_of(recorded.view.job_id, recorded.view.tasks, chosen.task_node)
        if ran is not None:
            expected_s = model.virtual_time_s(view)
            off_s = np.abs(expected_s - view.virtual_time_s)
            errors_s += off_s[np.isin(view.job_id, list(ran))].tolist()
            found = policy.decide(replace(view, virtual_time_s=expected_s), read_event(recorded.event))
            other = placement_of(recorded.view.job_id, recorded.view.tasks, found.task_node.tolist())
            total += 1
            same += shape_of(placed) == shape_of(other)
        model.take(view, read_choice(chosen))
        ran = frozenset(placed)
    return OneStep(total, same, median(errors_s) if errors_s else None)
