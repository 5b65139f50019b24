"""The progress that the model expects between the decisions of a live run, one decision at a time.

Each decision is applied at its instant, with the progress of jobs that was measured then. Until the next decision jobs
progress as in the event loop, whose functions are used: at their yields, after the overheads of moves, at the speed of
their nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Decision, Floats, Ints, Policy
from testbed.scheduling.simulation.engine import advance
from testbed.scheduling.simulation.moving import begin_moves, note_changes, note_speeds
from testbed.scheduling.simulation.overheads import Overheads
from testbed.scheduling.simulation.run import PREEMPTION
from testbed.scheduling.simulation.speeds import NodeSpeeds, Paced
from testbed.scheduling.simulation.world import ACTIVE, new_moves, new_world
from testbed.scheduling.workload.jobs import Job


class Follower:
    """A simulated cluster that follows decisions; `jobs` are in order of submission, `overheads` in trace seconds."""

    def __init__(
        self,
        jobs: Sequence[Job],
        nodes: int,
        policy: Policy,
        overheads: Overheads,
        *,
        node_memory_gb: float,
        speeds: NodeSpeeds | None = None,
    ) -> None:
        self._overheads = overheads.table(node_memory_gb)
        self._jobs, self._cluster, self._world = new_world(jobs, nodes)
        self._moves = new_moves(self._jobs, nodes)
        bends = self._overheads.beyond.bends
        self._speed: Floats = self._moves.speed if bends else self._cluster.yield_frac
        self._row = {job.job_id: row for row, job in enumerate(jobs)}
        self._advance = advance
        if speeds is not None:
            paced = Paced(policy, jobs, self._jobs, self._cluster, self._world, self._overheads, speeds)
            self._advance = paced.advance

    def virtual_time_s(self, view: ClusterView) -> Floats:
        """Advance to the time of the view; return the expected virtual times of its jobs (J,).

        Each view must be later than the previous one. A job that ends in the model stays at its run time.
        """
        self._advance(self._cluster, self._world, self._speed, view.time_s)
        rows = self._rows(view)
        expected: Floats = np.minimum(self._cluster.virtual_time_s[rows], self._world.run_time_s[rows])
        return expected

    def take(self, view: ClusterView, decision: Decision) -> None:
        """Apply a decision on a view, with the virtual times of the view."""
        cluster, world = self._cluster, self._world
        rows = self._rows(view)
        world.time_s[0] = view.time_s
        cluster.running[:] = False
        cluster.yield_frac[:] = 0.0
        cluster.task_node[:] = NOT_PLACED
        cluster.virtual_time_s[rows] = view.virtual_time_s
        cluster.yield_frac[rows] = decision.yield_frac
        first = 0
        for row, tasks in zip(rows.tolist(), view.tasks.tolist(), strict=True):
            nodes = decision.task_node[first : first + tasks]
            cluster.task_node[self._jobs.offset[row] : self._jobs.offset[row + 1]] = nodes
            cluster.running[row] = nodes[-1] != NOT_PLACED
            first += tasks
        world.active[: rows.size] = rows
        world.counts[ACTIVE] = rows.size
        if self._overheads.beyond.bends:
            note_speeds(rows, self._overheads.beyond, self._jobs, cluster, self._speed)
        changed = note_changes(rows, True, self._jobs, cluster, world)
        begin_moves(changed, rows, self._overheads, self._jobs, cluster, world, self._moves)
        for index in range(changed):
            if world.change[index] != PREEMPTION:
                row = int(world.changed_row[index])
                own = slice(self._jobs.offset[row], self._jobs.offset[row + 1])
                world.stood_on[own] = world.stands_on[own]

    def _rows(self, view: ClusterView) -> Ints:
        return np.array([self._row[job] for job in view.job_id.tolist()], dtype=np.int64)
