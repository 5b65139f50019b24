"""Two virtual clusters on the same nodes, one for serial and one for parallel jobs [XGE].

Each node has a slot for serial and one for parallel jobs, and one of them is active at a time. The first nodes are the
partition of the parallel cluster, the others that of the serial one. Jobs of one task are serial. What the paper leaves
open is decided so:

* Both queues are first in, first out, and no job goes ahead of the head of its queue, but for urgent ones (`-xge`).
* A parallel job goes to nodes of its partition: first to those whose parallel slot is active, then to idle ones, then
  to lent ones. An urgent job may go to all nodes: before lent ones to idle ones of the serial partition, and last to
  those there whose serial jobs are all long. Of nodes with serial jobs those with the fewest are taken first. All
  serial jobs of a node that is taken are paused.
* While no parallel job waits, idle nodes of the parallel partition are lent to serial jobs. They go back when they are
  idle, or taken.
* Paused jobs are resumed before others are started, on any node that has room.
* A parallel job is never paused, and no node gets more CPU to give than it has: all yields are 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from testbed.errors import UserError, shown
from testbed.scheduling.policies.capacity import CAPACITY_FRAC, offsets
from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Decision, Event, Floats, Ints, JobState

DEFAULT_PARALLEL_FRAC = 0.5
_IDLE, _SERIAL, _PARALLEL = range(3)  # which slot of a node is active
_VALUES = {"PARALLEL": r"0?\.\d+|[01](?:\.0*)?", "LEND": "yes|no", "LONG": r"\d{1,12}(?:\.\d+)?"}


@dataclass(frozen=True, slots=True)
class XgePolicy:
    """`parallel_frac` of all nodes, rounded, are the parallel partition; `lends` says whether its idle nodes are lent.

    Urgent jobs have serial jobs of the serial partition paused whose estimates are `long_s` seconds or more; 0: all.
    """

    parallel_frac: float = DEFAULT_PARALLEL_FRAC
    lends: bool = True
    long_s: float = 0.0

    @property
    def name(self) -> str:
        """`XGE`, and what differs from the defaults: `XGE/PARALLEL=0.4/LEND=no/LONG=6000`."""
        parts = ["XGE"]
        if self.parallel_frac != DEFAULT_PARALLEL_FRAC:
            parts.append(f"PARALLEL={_plain(self.parallel_frac)}")
        if not self.lends:
            parts.append("LEND=no")
        if self.long_s:
            parts.append(f"LONG={_plain(self.long_s)}")
        return "/".join(parts)

    @property
    def needs_estimates(self) -> bool:
        """Estimates say which serial jobs are long."""
        return self.long_s > 0

    @property
    def period_s(self) -> float | None:
        """The policy acts on events only."""
        return None

    def partition(self, nodes: int) -> int:
        """Return how many of the nodes are the parallel partition."""
        return round(self.parallel_frac * nodes)

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        """Whether the memory of the job's partition has room for it; see `can_ever_start`."""
        return self.can_ever_start(tasks, 1e-9, mem_req_frac, nodes, urgent=True)

    def can_ever_start(
        self, tasks: int, cpu_need_frac: float, mem_req_frac: float, nodes: int, *, urgent: bool
    ) -> bool:  # fmt: skip
        """See `BookingPolicy`: an urgent job may have all nodes, another one those of its partition, or lent ones."""
        parallel = self.partition(nodes)
        serial = nodes if self.lends else nodes - parallel
        mine = serial if tasks == 1 else nodes if urgent else parallel
        each = int(min(CAPACITY_FRAC / cpu_need_frac, CAPACITY_FRAC / mem_req_frac))
        return tasks <= each * mine

    def decide(self, view: ClusterView, event: Event) -> Decision:  # noqa: ARG002 - the queues say it all
        """Start, pause and resume; a job whose nodes are lost goes back to its queue."""
        slots = _Slots(view, self.partition(view.node_available.size), self.long_s)
        waits = False
        for row in np.flatnonzero(~slots.running & slots.is_parallel):
            if (view.urgent[row] or not waits) and not slots.start_parallel(int(row)):
                waits = True
        lends = self.lends and not waits
        rows = np.flatnonzero(~slots.running & ~slots.is_parallel)
        was_paused = view.state[rows] != JobState.WAITING
        for row in np.concatenate([rows[was_paused], rows[~was_paused]]):
            if not slots.start_serial(int(row), lends=lends):
                break
        return Decision(task_node=slots.task_node, yield_frac=slots.running.astype(np.float64))


class _Slots:
    """The nodes while a decision is made: who is where, what is booked, and which slot is active."""

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
        self.guests: Ints = np.zeros(nodes, dtype=np.int64)  # serial ones
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
        """Start or resume a serial job: on a node with others, else on an idle one, else on a lent one."""
        fits = (self._room(row) > 0) & (self.slot != _PARALLEL) & (lends | ~self.in_partition)
        if not fits.any():
            return False
        nodes = np.arange(fits.size)
        last = fits.size - nodes  # parallel jobs begin with the first nodes of their partition, lending with its last
        order = np.lexsort((np.where(self.in_partition, last, nodes), self.slot != _SERIAL, self.in_partition, ~fits))
        self._place(row, order[:1], _SERIAL)
        return True

    def _room(self, row: int, empty: np.ndarray | None = None) -> Ints:
        """Return how many tasks of a job each node has room for, if nodes that are to be `empty` are."""
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


def named(name: str) -> XgePolicy | None:
    """Return the policy of a name, None if it is of another family; raises `UserError` for nonsense after `XGE/`."""
    family, *parts = "".join(name.split()).split("/")
    if family.casefold() != "xge":
        return None
    found: dict[str, str] = {}
    for part in parts:
        key, _, value = part.partition("=")
        key = key.upper()
        expected = _VALUES.get(key)
        if expected is None or key in found or not re.fullmatch(expected, value, re.IGNORECASE):
            raise UserError(
                f"policy {shown(name, 60)}: {shown(part, 30)}: expected after XGE, at most once each, /PARALLEL= a "
                "part of the nodes, 0 to 1, /LEND=yes or no, /LONG= seconds; such as XGE/PARALLEL=0.4/LONG=6000"
            )
        found[key] = value
    return XgePolicy(
        float(found.get("PARALLEL", DEFAULT_PARALLEL_FRAC)), found.get("LEND", "yes").casefold() == "yes",
        float(found.get("LONG", 0.0)),
    )  # fmt: skip


def _plain(value: float) -> str:
    return repr(value).removesuffix(".0")
