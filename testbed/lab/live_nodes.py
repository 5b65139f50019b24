"""Context of a job in a lab: the leased nodes, the operations on them, and their events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from testbed.bus.messages import CapChange, NodeFacts, Watch
from testbed.lab.fleet import Fleet
from testbed.lab.guest_events import GuestEvents
from testbed.lab.node_refs import NodeRef, node_index
from testbed.lab.operations import Operations
from testbed.lab.outcomes import Watched
from testbed.lab.replies import ReplyError, ask
from testbed.scenario.schema import Scenario


@dataclass(frozen=True, slots=True)
class LiveNodes:
    """Nodes under this process's lease; `facts` are by index in the fleet."""

    scenario: Scenario
    fleet: Fleet
    facts: tuple[NodeFacts, ...]
    operations: Operations
    guest_events: GuestEvents

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes, by index."""
        return tuple(node.name for node in self.fleet.nodes)

    @property
    def command_s(self) -> float:
        """Deadline of a command."""
        return self.scenario.deadlines.command_s

    def index(self, node: NodeRef) -> int:
        """Return the index of a node; raises `UserError` if no node has this name or index."""
        return node_index(self.names, node)

    async def watch(
        self, node: NodeRef, guests: Sequence[str], every_s: float, for_s: float, caps: Sequence[CapChange] = ()
    ) -> Watched:
        """See `Lab.watch`."""
        index = self.index(node)
        action = Watch(guests=tuple(guests), every_s=every_s, for_s=for_s, caps=tuple(caps))
        found = await ask(self.fleet, index, action, Watched, for_s + self.command_s)
        for name, samples in (("cpu_s", found.cpu_s), ("units", found.units)):
            if {guest: len(samples.get(guest, ())) for guest in guests} != dict.fromkeys(guests, len(found.t_s)):
                expected = f"expected {len(found.t_s)} samples of each of {', '.join(guests)}"
                raise ReplyError(self.fleet.name(index), action, name, samples, expected)
        return found
