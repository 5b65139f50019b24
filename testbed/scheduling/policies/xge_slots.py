"""The active slot of a node under XGE, derived from the tasks on the node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from testbed.errors import UserError

SERIAL: Final = "serial"  # serial jobs in their own partition
LENT: Final = "lent"  # serial jobs on a node of the parallel partition
PARALLEL: Final = "parallel"  # parallel jobs in their own partition
TAKEN: Final = "taken"  # parallel jobs on a node of the serial partition
CHANGING: Final = "changing"  # tasks are started, saved or restored, and none runs
IDLE: Final = "idle"  # no task is in memory
SLOTS: Final = (SERIAL, LENT, PARALLEL, TAKEN, CHANGING, IDLE)
PARALLEL_JOBS: Final = frozenset({PARALLEL, TAKEN})  # slots that run parallel jobs


@dataclass(frozen=True, slots=True)
class Partitions:
    """The first `parallel` nodes are the parallel partition, the others the serial one."""

    parallel: int

    def home(self, node: int) -> str:
        """Return the partition of a node: `PARALLEL` or `SERIAL`."""
        return PARALLEL if node < self.parallel else SERIAL

    def slot(self, node: int, tasks: Iterable[tuple[bool, bool]]) -> str:
        """Return the active slot of a node.

        `tasks` holds for each task in memory of the node whether its job is parallel, and whether the task runs.
        """
        found = list(tasks)
        kinds = {is_parallel for is_parallel, runs in found if runs}
        if not kinds:
            return CHANGING if found else IDLE
        if True in kinds:
            return PARALLEL if node < self.parallel else TAKEN
        return LENT if node < self.parallel else SERIAL


def partitions_of(policy: str, nodes: int) -> Partitions | None:
    """Return the partitions of `nodes` nodes under the policy of this name, None if it is not XGE."""
    if policy.strip().partition("/")[0].strip().casefold() != "xge":
        return None
    from testbed.scheduling.policies.xge import named  # noqa: PLC0415  # numpy, which pages of other runs do not need

    try:
        parsed = named(policy)
    except UserError:  # the name is from a version with other suffixes
        return None
    return None if parsed is None else Partitions(parsed.partition(nodes))
