"""Work-conserving shares: jobs start in order of submission, where their shares are free, and are never moved [DPS].

The policy books shares; it does not divide CPU time. A task gets its share when others want the rest of its node, and
more when they do not. The agents move shares that a task does not use to other tasks of its job, in the mode `exchange`
(`testbed.shares`). The policy does not decide on these moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.scheduling.policies.capacity import CAPACITY_FRAC, offsets
from testbed.scheduling.policies.view import (
    NOT_PLACED,
    ClusterView,
    Decision,
    Event,
    ExchangeMode,
    Floats,
    Ints,
    JobState,
)


@dataclass(frozen=True, slots=True)
class DpsPolicy:
    """A job starts when all jobs before it have started, and nodes have room for the shares and memory of its tasks.

    Each task goes to the node with the least booked CPU that has room for it; of equal nodes to the first.
    """

    exchange: ExchangeMode

    @property
    def name(self) -> str:
        """`DPS/none`, `DPS/distributed` or `DPS/bank`."""
        return f"DPS/{self.exchange}"

    @property
    def needs_estimates(self) -> bool:
        """False, as the policy does not use run times."""
        return False

    @property
    def period_s(self) -> float | None:
        """None, as the policy acts on events only."""
        return None

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        """Whether an empty cluster has memory for all tasks; see `can_ever_start`."""
        return _place(tasks, 0.0, mem_req_frac, np.zeros(nodes), np.zeros(nodes)) is not None

    def can_ever_start(
        self, tasks: int, cpu_need_frac: float, mem_req_frac: float, nodes: int, *, urgent: bool
    ) -> bool:  # fmt: skip
        """See `BookingPolicy`: whether an empty cluster has the shares and the memory of all tasks."""
        del urgent  # all jobs wait in one queue
        return _place(tasks, cpu_need_frac, mem_req_frac, np.zeros(nodes), np.zeros(nodes)) is not None

    def decide(self, view: ClusterView, event: Event) -> Decision:  # noqa: ARG002 - the queue is in the view
        """Start the jobs that may start; running jobs keep their nodes, unless one of the nodes is lost."""
        offset = offsets(view.tasks)
        task_node: Ints = view.task_node.copy()
        running = view.state == JobState.RUNNING
        nodes = view.node_available.size
        cpu_frac, mem_frac = np.zeros(nodes), np.where(view.node_available, 0.0, np.inf)
        for row in np.flatnonzero(running):
            places = task_node[offset[row] : offset[row + 1]]
            if view.node_available[places].all():
                np.add.at(cpu_frac, places, view.cpu_need_frac[row])
                np.add.at(mem_frac, places, view.mem_req_frac[row])
            else:
                places[:] = NOT_PLACED
                running[row] = False
        for row in np.flatnonzero(~running):
            found = _place(int(view.tasks[row]), view.cpu_need_frac[row], view.mem_req_frac[row], cpu_frac, mem_frac)
            if found is None:
                break
            task_node[offset[row] : offset[row + 1]] = found
            running[row] = True
        return Decision(task_node=task_node, yield_frac=running.astype(np.float64))


def _place(tasks: int, need_frac: float, mem_frac_each: float, cpu_frac: Floats, mem_frac: Floats) -> list[int] | None:
    """Return nodes for all tasks, and book them; None, with nothing booked, if they do not fit."""
    cpu, memory, found = cpu_frac.copy(), mem_frac.copy(), []
    for _ in range(tasks):
        fits = (cpu + need_frac <= CAPACITY_FRAC) & (memory + mem_frac_each <= CAPACITY_FRAC)
        if not fits.any():
            return None
        node = int(np.argmin(np.where(fits, cpu, np.inf)))
        cpu[node] += need_frac
        memory[node] += mem_frac_each
        found.append(node)
    cpu_frac[:], mem_frac[:] = cpu, memory
    return found


DPS = (DpsPolicy("none"), DpsPolicy("distributed"), DpsPolicy("bank"))
