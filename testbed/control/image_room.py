"""The controller's account of image space per node: the reported free space, less the space ordered since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from testbed.bus.no_room import NoRoom
from testbed.control.planner import PlannedAction, Verb


@dataclass(frozen=True, slots=True)
class Shortage:
    """A node with less free image space than an operation needs, in MiB."""

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
    """Free image space by node, in MiB.

    An order occupies its space from its beginning until the first sample of the node that was taken after the end of
    the order. If a node refuses an order although it has reported enough space, it gets no order of that size or larger
    until it reports sufficiently more. Times are nanoseconds of the event loop's clock.
    """

    def __init__(self, nodes: int) -> None:
        self._reported_mib: list[int | None] = [None] * nodes  # None: not known, or no limit
        self._orders: list[list[_Order]] = [[] for _ in range(nodes)]
        self._refusals: dict[int, _Refusal] = {}

    def heard(self, node: int, free_mib: int | None, taken_ns: int) -> bool:
        """Record a node's sample; return whether more images may fit on the node than before."""
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
        """Return the space that no order occupies, None if it is unknown or unlimited."""
        reported_mib = self._reported_mib[node]
        if reported_mib is None:
            return None
        return max(0, reported_mib - sum(order.mib for order in self._orders[node]))

    def short(self, needs_mib: Mapping[int, int]) -> tuple[Shortage, ...]:
        """Return the nodes that have less free space than needed, in ascending order."""
        found = []
        for node, needed_mib in sorted(needs_mib.items()):
            refusal, free_mib = self._refusals.get(node), self.free_mib(node)
            if refusal is not None and needed_mib >= refusal.room.needed_mib:
                found.append(Shortage(node, needed_mib, refusal.room.free_mib))
            elif free_mib is not None and needed_mib > free_mib:
                found.append(Shortage(node, needed_mib, free_mib))
        return tuple(found)

    def order(self, operation: int, needs_mib: Mapping[int, int]) -> None:
        """Reserve space for an operation that begins, and may write these amounts, by node."""
        for node, mib in needs_mib.items():
            self._orders[node].append(_Order(operation, mib))

    def over(self, operation: int, at_ns: int) -> None:
        """Mark the orders of an operation as over, whether it succeeded or not."""
        for orders in self._orders:
            for order in orders:
                if order.operation == operation:
                    order.over_ns = at_ns

    def refused(self, node: int, room: NoRoom) -> None:
        """Record that a node refused an order for lack of space."""
        enough = room.free_mib if room.free_mib >= room.needed_mib else 0  # the report was too high
        self._refusals[node] = _Refusal(room, enough + room.needed_mib)


def image_needs(
    action: PlannedAction, memory_mib: int, copies: Sequence[Collection[int]] = (), then_to: Sequence[int] | None = None
) -> dict[int, int]:
    """Return the image space that an action needs, in MiB by node: the memory of each task, which is an upper bound.

    `copies` has the nodes with a copy of each task's image, which need no space for it. A save whose images are then
    transferred to the nodes `then_to` also needs space for the copies: a saved job that cannot continue is worse off
    than a job that was not saved.
    """
    tasks: Counter[int] = Counter()
    if action.verb is Verb.SAVE:
        tasks.update(action.nodes)
        tasks.update(b for a, b in zip(action.nodes, then_to or action.nodes, strict=True) if a != b)
    elif action.verb is Verb.TRANSFER and copies:
        tasks.update(node for node, there in zip(action.nodes, copies, strict=True) if node not in there)
    return {node: count * memory_mib for node, count in tasks.items()}
