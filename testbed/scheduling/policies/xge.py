"""Two virtual clusters on the same nodes, one for serial and one for parallel jobs [XGE].

Each node has a slot for serial and one for parallel jobs, and one of them is active at a time. The first nodes are the
partition of the parallel cluster, the others that of the serial one. Jobs of one task are serial. The paper leaves some
rules open. In this implementation:

* Both queues are first in, first out, and no job overtakes the head of its queue, except urgent jobs (`-xge`).
* A parallel job goes to nodes of its partition: first to nodes whose parallel slot is active, then to idle ones, then
  to lent ones. An urgent job may go to all nodes: to idle nodes of the serial partition before lent ones, and last to
  nodes of the serial partition whose serial jobs are all long. Among nodes with serial jobs, the nodes with the fewest
  are taken first. All serial jobs of a node that is taken are paused.
* While no parallel job waits, idle nodes of the parallel partition are lent to serial jobs. They return when they are
  idle, or are taken.
* Paused jobs are resumed before others are started, on any node with enough free CPU and memory.
* A parallel job is never paused. No node is booked above its CPU, so all yields are 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from testbed.errors import UserError, shown
from testbed.scheduling.policies.capacity import CAPACITY_FRAC
from testbed.scheduling.policies.kernel_policy import JobColumns, Kernels, decide_view, first_argument
from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Decision, Event, JobState
from testbed.scheduling.policies.xge_kernel import XgeRules, decide

DEFAULT_PARALLEL_FRAC = 0.5
XGE = Kernels(decide)
_VALUES = {"PARALLEL": r"0?\.\d+|[01](?:\.0*)?", "LEND": "yes|no", "LONG": r"\d{1,12}(?:\.\d+)?"}


@dataclass(frozen=True, slots=True)
class XgePolicy:
    """`parallel_frac` of all nodes, rounded, are the parallel partition; `lends` says whether its idle nodes are lent.

    Urgent jobs may pause serial jobs of the serial partition with estimates of at least `long_s` seconds; 0: all.
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
        """Whether `long_s` is set: then estimates determine which serial jobs are long."""
        return self.long_s > 0

    @property
    def kernels(self) -> Kernels:
        """The kernels."""
        return XGE

    @property
    def rules(self) -> XgeRules:
        """The numeric rules of the policy."""
        return XgeRules(self.parallel_frac, self.lends, self.long_s)

    @property
    def needs_columns(self) -> bool:
        """True: kernels need to know which jobs are urgent, which ones have run before, and perhaps estimates."""
        return True

    @property
    def period_s(self) -> float | None:
        """None, as the policy acts on events only."""
        return None

    def partition(self, nodes: int) -> int:
        """Return the number of nodes of the parallel partition."""
        return round(self.parallel_frac * nodes)

    def can_ever_run(self, tasks: int, mem_req_frac: float, nodes: int) -> bool:
        """Whether the memory of all nodes that a job of this shape may get holds its tasks; see `can_ever_start`."""
        return self.can_ever_start(tasks, 1e-9, mem_req_frac, nodes, urgent=True)

    def can_ever_start(
        self, tasks: int, cpu_need_frac: float, mem_req_frac: float, nodes: int, *, urgent: bool
    ) -> bool:  # fmt: skip
        """See `BookingPolicy`: an urgent job may get all nodes, another job its partition or lent nodes."""
        parallel = self.partition(nodes)
        serial = nodes if self.lends else nodes - parallel
        mine = serial if tasks == 1 else nodes if urgent else parallel
        each = int(min(CAPACITY_FRAC / cpu_need_frac, CAPACITY_FRAC / mem_req_frac))
        return tasks <= each * mine

    def decide(self, view: ClusterView, event: Event) -> Decision:
        """Return the decision at an event; it depends on the view alone."""
        # A job that was started and has lost its nodes is not in the state WAITING, and counts as started.
        start_time_s = np.where(view.state == JobState.WAITING, np.nan, view.time_s)
        no_costs, no_images = np.full(view.tasks.size, np.nan), np.full(view.task_node.size, NOT_PLACED, dtype=np.int64)
        columns = JobColumns(start_time_s, view.estimate_s.copy(), view.urgent.copy(), no_costs, no_images)
        return decide_view(self.kernels, first_argument(self, columns), view, event)


def named(name: str) -> XgePolicy | None:
    """Return the policy of a name, None if it is of another family; raises `UserError` for invalid parts."""
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
