"""A reference implementation of XGE with arrays of numpy; the decisions of the kernel are compared with its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from testbed.scheduling.policies.capacity import CAPACITY_FRAC, offsets
from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Decision, Event, Floats, Ints, JobState
from testbed.scheduling.policies.xge import XgePolicy

_IDLE, _SERIAL, _PARALLEL = range(3)  # which slot of a node is active


@dataclass(frozen=True)
class XgeReference:
    """A policy that decides on views as the policy under test should."""

    policy: XgePolicy
    name: str = "reference"
    period_s: float | None = None

    @property
    def needs_estimates(self) -> bool:
        return self.policy.needs_estimates

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        return self.policy.can_ever_run(tasks, mem_req_frac, nodes)

    def decide(self, view: ClusterView, event: Event) -> Decision:
        return decided(self.policy, view)


def decided(policy: XgePolicy, view: ClusterView) -> Decision:
    """Start, pause and resume; a job whose nodes are lost goes back to its queue."""
    slots = Slots(view, policy.partition(view.node_available.size), policy.long_s)
    waits = False
    for row in np.flatnonzero(~slots.running & slots.is_parallel):
        if (view.urgent[row] or not waits) and not slots.start_parallel(int(row)):
            waits = True
    lends = policy.lends and not waits
    rows = np.flatnonzero(~slots.running & ~slots.is_parallel)
    was_paused = view.state[rows] != JobState.WAITING
    for row in np.concatenate([rows[was_paused], rows[~was_paused]]):
        if not slots.start_serial(int(row), lends=lends):
            break
    return Decision(task_node=slots.task_node, yield_frac=slots.running.astype(np.float64))


class Slots:
    """The nodes during a decision: the guests on each, the booked CPU and memory, and the active slot."""

    def __init__(self, view: ClusterView, partition: int, long_s: float) -> None:
        self.view = view
        self.offset = offsets(view.tasks)
        self.task_node: Ints = view.task_node.copy()
        self.is_parallel = view.tasks > 1
        nodes = view.node_available.size
        self.in_partition = np.arange(nodes) < partition
        self.is_long = view.estimate_s >= long_s if long_s else np.ones(view.tasks.size, dtype=np.bool_)
        self.running = view.state == JobState.RUNNING
        lost = np.zeros(view.tasks.size, dtype=np.bool_)
        owner = np.repeat(np.arange(view.tasks.size), view.tasks)
        placed = self.task_node != NOT_PLACED
        lost[owner[placed][~view.node_available[self.task_node[placed]]]] = True
        self.running &= ~lost
        self.task_node[lost[owner]] = NOT_PLACED
        self.cpu: Floats = np.zeros(nodes)
        self.memory: Floats = np.where(view.node_available, 0.0, np.inf)
        self.slot = np.full(nodes, _IDLE)
        self.guests: Ints = np.zeros(nodes, dtype=np.int64)  # number of serial guests
        self.all_long = np.ones(nodes, dtype=np.bool_)
        placed = self.task_node != NOT_PLACED
        rows, places = owner[placed], self.task_node[placed]
        np.add.at(self.cpu, places, view.cpu_need_frac[rows])
        np.add.at(self.memory, places, view.mem_req_frac[rows])
        self.slot[places] = np.where(self.is_parallel[rows], _PARALLEL, _SERIAL)
        np.add.at(self.guests, places, ~self.is_parallel[rows])
        self.all_long[places[~self.is_long[rows]]] = False

    def start_parallel(self, row: int) -> bool:
        """Place a parallel job, and pause the serial jobs of nodes that it takes; False if there is no room."""
        tasks, urgent = int(self.view.tasks[row]), bool(self.view.urgent[row])
        serial, idle, ours = self.slot == _SERIAL, self.slot == _IDLE, self.in_partition
        allowed = ours | (urgent & (~serial | self.all_long))
        room = np.where(allowed, self._room(row, empty=serial), 0)
        if room.sum() < tasks:
            return False
        rank = np.select([~serial & ~idle, idle & ours, idle, ours], range(4), 4)
        order = np.lexsort((self.guests, rank))
        counts = np.diff(np.minimum(np.cumsum(room[order]), tasks), prepend=0)
        for node in order[(counts > 0) & serial[order]]:
            self._pause_all(int(node))
        self._place(row, np.repeat(order, counts), _PARALLEL)
        return True

    def start_serial(self, row: int, *, lends: bool) -> bool:
        """Start or resume a serial job: on a node with others, otherwise on an idle one, otherwise on a lent one."""
        fits = (self._room(row) > 0) & (self.slot != _PARALLEL) & (lends | ~self.in_partition)
        if not fits.any():
            return False
        nodes = np.arange(fits.size)
        last = fits.size - nodes  # parallel jobs begin with the first nodes of their partition, lending with its last
        order = np.lexsort((np.where(self.in_partition, last, nodes), self.slot != _SERIAL, self.in_partition, ~fits))
        self._place(row, order[:1], _SERIAL)
        return True

    def _room(self, row: int, empty: np.ndarray | None = None) -> Ints:
        """Return the number of tasks of a job that fit on each node, if the `empty` nodes are emptied."""
        cpu, memory = self.cpu, self.memory
        if empty is not None:
            cpu, memory = np.where(empty, 0.0, cpu), np.where(empty, 0.0, memory)
        by_cpu = (CAPACITY_FRAC - cpu) / self.view.cpu_need_frac[row]
        by_memory = (CAPACITY_FRAC - memory) / self.view.mem_req_frac[row]
        room: Ints = np.floor(np.maximum(np.minimum(by_cpu, by_memory), 0.0)).astype(np.int64)
        return room

    def _place(self, row: int, nodes: Ints, slot: int) -> None:
        self.task_node[self.offset[row] : self.offset[row + 1]] = nodes
        self.running[row] = True
        np.add.at(self.cpu, nodes, self.view.cpu_need_frac[row])
        np.add.at(self.memory, nodes, self.view.mem_req_frac[row])
        self.slot[nodes] = slot
        if slot == _SERIAL:
            self.guests[nodes] += 1
            self.all_long[nodes] &= self.is_long[row]

    def _pause_all(self, node: int) -> None:
        """Pause all serial jobs of a node."""
        for task in np.flatnonzero(self.task_node == node):
            row = int(np.searchsorted(self.offset, task, side="right")) - 1
            self.task_node[task] = NOT_PLACED
            self.running[row] = False
        self.cpu[node] = self.memory[node] = 0.0
        self.slot[node], self.guests[node], self.all_long[node] = _IDLE, 0, True
