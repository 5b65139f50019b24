"""Dynamic fractional resource scheduling: one decision from the shared kernels [RR 4].

At one instant completions are handled first, then submissions one by one, then the periodic pass; yields are
computed once, at the end. A job that runs on a node that is no longer available has lost its place: it is
paused for the decision, and can be placed anew like any other. A change of the nodes frees resources or takes
them, so it is handled as a completion is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.policies.capacity import node_memory, node_usage, offsets, tasks_per_node
from testbed.policies.configuration import Configuration, Limit, OnSubmission, Periodic
from testbed.policies.greedy import make_room, place
from testbed.policies.moves import keep_places
from testbed.policies.packing import mcb8
from testbed.policies.priority import by_decreasing_priority, priorities
from testbed.policies.view import NOT_PLACED, ClusterView, Decision, Event, Floats, Ints, JobState
from testbed.policies.yields import max_min_yields


@dataclass(frozen=True, slots=True)
class DfrsPolicy:
    """An algorithm of [RR] Table 1 with OPT=MIN."""

    configuration: Configuration

    @property
    def name(self) -> str:
        """The catalogue name."""
        return self.configuration.name

    @property
    def needs_estimates(self) -> bool:
        """DFRS knows nothing of run times."""
        return False

    @property
    def period_s(self) -> float | None:
        """Seconds of trace time between packings of all jobs, None without them."""
        periodic = self.configuration.periodic
        return None if periodic is Periodic.NOTHING else self.configuration.period_s

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        """Whether the memory of `nodes` empty nodes holds `tasks` tasks; CPU never stands in the way."""
        return tasks <= nodes * tasks_per_node(mem_req_frac)

    def decide(self, view: ClusterView, event: Event) -> Decision:
        """Answer an event; raise ValueError where it names a submitted job that is not in the view."""
        configuration = self.configuration
        work = _Mapping(view, configuration)
        submitted = [_row(view, job_id) for job_id in event.submitted]
        work.known[submitted] = False
        if configuration.opportunistic and (event.completed or event.changed):
            work.fill()
        for row in submitted:
            work.known[row] = True
            work.admit(row)
        if event.periodic and configuration.periodic is Periodic.MCB8:
            work.pack()
        return Decision(
            task_node=keep_places(work.offset, view.task_node, work.task_node, view.node_available.size),
            yield_frac=max_min_yields(work.offset, view.cpu_need_frac, work.task_node, view.node_available.size),
        )


class _Mapping:
    """The map while it is being changed within one decision."""

    def __init__(self, view: ClusterView, configuration: Configuration) -> None:
        self.view = view
        self.configuration = configuration
        self.offset = offsets(view.tasks)
        self.task_node: Ints = view.task_node.copy()
        self.running = view.state == JobState.RUNNING
        self.known = np.ones(view.tasks.size, dtype=np.bool_)
        self.order = by_decreasing_priority(priorities(view.time_s, view.submit_time_s, view.virtual_time_s))
        for row in np.flatnonzero(self.running):
            if not view.node_available[self.nodes_of(row)].all():
                self.nodes_of(row)[:] = NOT_PLACED
                self.running[row] = False
        self.cpu: Floats = self._loads()
        self.mem: Floats = self._memory()

    def nodes_of(self, row: int | np.int64) -> Ints:
        """Return the tasks of a row in the map, to read or to write."""
        return self.task_node[self.offset[row] : self.offset[row + 1]]

    def fill(self) -> None:
        """Start what can be started, after something was freed."""
        if self.configuration.on_submission is OnSubmission.MCB8:
            self.pack()
            return
        for row in self.order:
            if self.known[row] and not self.running[row]:
                self._place(row)

    def admit(self, row: int) -> None:
        """Handle the submission of the job in `row`."""
        match self.configuration.on_submission:
            case OnSubmission.GREEDY:
                self._place(row)
            case OnSubmission.GREEDY_P:
                self._place_by_force(row, migrate=False)
            case OnSubmission.GREEDY_PM:
                self._place_by_force(row, migrate=True)
            case OnSubmission.MCB8:
                self.pack()
            case OnSubmission.NOTHING:
                pass

    def pack(self) -> None:
        """Map all known jobs anew with MCB8."""
        view = self.view
        self.task_node = mcb8(
            self.known,
            self.running & self._protected(),
            self.order,
            self.offset,
            view.cpu_need_frac,
            view.mem_req_frac,
            self.task_node,
            view.node_available,
        )
        self.running = self.task_node[self.offset[:-1]] != NOT_PLACED
        self.cpu = self._loads()
        self.mem = self._memory()

    def _protected(self) -> NDArray[np.bool_]:
        """Return (J,) which jobs keep their nodes if they go on running: those strictly below the limit."""
        view, limit_s = self.view, self.configuration.limit_s
        match self.configuration.limit:
            case Limit.VIRTUAL_TIME:
                return view.virtual_time_s < limit_s
            case Limit.FLOW_TIME:
                return view.time_s - view.submit_time_s < limit_s
            case None:
                return np.zeros(view.tasks.size, dtype=np.bool_)

    def _place(self, row: int | np.int64) -> None:
        view = self.view
        self.running[row] = place(
            view.cpu_need_frac[row], view.mem_req_frac[row], self.cpu, self.mem, self.nodes_of(row)
        )

    def _place_by_force(self, newcomer: int, *, migrate: bool) -> None:
        view = self.view
        candidates = self.order[::-1][self.running[self.order[::-1]]]
        possible, marked = make_room(newcomer, candidates, self.offset, view.mem_req_frac, self.task_node, self.mem)
        if not possible:
            return
        paused = candidates[marked][::-1]
        for row in paused:
            self.nodes_of(row)[:] = NOT_PLACED
            self.running[row] = False
        self.cpu = self._loads()
        self._place(newcomer)
        if migrate:
            for row in paused:
                self._place(row)

    def _loads(self) -> Floats:
        view = self.view
        return node_usage(self.task_node, view.tasks, view.cpu_need_frac, view.node_available.size)

    def _memory(self) -> Floats:
        view = self.view
        return node_memory(self.task_node, view.tasks, view.mem_req_frac, view.node_available)


def _row(view: ClusterView, job_id: int) -> int:
    rows = np.flatnonzero(view.job_id == job_id)
    if rows.size != 1:
        raise ValueError(f"submitted job {job_id}: {rows.size} rows in the view, expected 1")
    return int(rows[0])
