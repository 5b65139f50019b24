"""The controller's account of the room for images on each node: what was reported, less what was ordered since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from testbed.bus.no_room import NoRoom
from testbed.control.planner import PlannedAction, Verb


@dataclass(frozen=True, slots=True)
class Shortage:
    """A node that has not the room for images that an operation needs; MiB."""

    node: int
    needed_mib: int
    free_mib: int


@dataclass(slots=True)
class _Order:
    operation: int
    mib: int
    over_ns: int | None = None  # by the event loop's clock


@dataclass(frozen=True, slots=True)
class _Refusal:
    room: NoRoom
    reopens_mib: int


class RoomLedger:
    """Room for images by node, in MiB.

    An order occupies its room from its beginning until the first sample of the node that was taken after the end of the
    order. A node that refused an order contrary to its reported room gets no order of that size or a larger one before
    it reports enough more. Times are nanoseconds of the event loop's clock.
    """

    def __init__(self, nodes: int) -> None:
        self._reported_mib: list[int | None] = [None] * nodes  # None: not known, or no limit
        self._orders: list[list[_Order]] = [[] for _ in range(nodes)]
        self._refusals: dict[int, _Refusal] = {}

    def heard(self, node: int, free_mib: int | None, taken_ns: int) -> bool:
        """Take a node's sample; return whether more may fit there than before."""
        before_mib, closed = self.free_mib(node), node in self._refusals
        self._reported_mib[node] = free_mib
        self._orders[node] = [
            order for order in self._orders[node] if order.over_ns is None or order.over_ns >= taken_ns
        ]
        if closed and free_mib is not None and free_mib >= self._refusals[node].reopens_mib:
            del self._refusals[node]
            return True
        now_mib = self.free_mib(node)
        return before_mib is not None and (now_mib is None or now_mib > before_mib)

    def free_mib(self, node: int) -> int | None:
        """Return the room that no order occupies, None if it is unknown or unlimited."""
        reported_mib = self._reported_mib[node]
        if reported_mib is None:
            return None
        return max(0, reported_mib - sum(order.mib for order in self._orders[node]))

    def short(self, needs_mib: Mapping[int, int]) -> tuple[Shortage, ...]:
        """Return the nodes, in their order, that have less than the needed room."""
        found = []
        for node, needed_mib in sorted(needs_mib.items()):
            refusal, free_mib = self._refusals.get(node), self.free_mib(node)
            if refusal is not None and needed_mib >= refusal.room.needed_mib:
                found.append(Shortage(node, needed_mib, refusal.room.free_mib))
            elif free_mib is not None and needed_mib > free_mib:
                found.append(Shortage(node, needed_mib, free_mib))
        return tuple(found)

    def order(self, operation: int, needs_mib: Mapping[int, int]) -> None:
        """An operation of this number begins, and may write the given amounts on these nodes."""
        for node, mib in needs_mib.items():
            self._orders[node].append(_Order(operation, mib))

    def over(self, operation: int, at_ns: int) -> None:
        """The operation has ended, with success or not."""
        for orders in self._orders:
            for order in orders:
                if order.operation == operation:
                    order.over_ns = at_ns

    def refused(self, node: int, room: NoRoom) -> None:
        """A node refused an order for want of room."""
        enough = room.free_mib if room.free_mib >= room.needed_mib else 0  # the report was too high
        self._refusals[node] = _Refusal(room, enough + room.needed_mib)


def image_needs(
    action: PlannedAction, memory_mib: int, copies: Sequence[Collection[int]] = (), then_to: Sequence[int] | None = None
) -> dict[int, int]:
    """Return the room for images that an action needs by node: at most the memory of each task.

    `copies` are the nodes that have a copy of each task's image; none is needed there. A save whose images are
    `then_to` be transferred needs the room for the copies, too: a saved job that cannot continue is worse off than a
    job that was not saved.
    """
    tasks: Counter[int] = Counter()
    if action.verb is Verb.SAVE:
        tasks.update(action.nodes)
        tasks.update(b for a, b in zip(action.nodes, then_to or action.nodes, strict=True) if a != b)
    elif action.verb is Verb.TRANSFER and copies:
        tasks.update(node for node, there in zip(action.nodes, copies, strict=True) if node not in there)
    return {node: count * memory_mib for node, count in tasks.items()}
