"""Fences of guests, the controller's side: the granted fences, and the time by which a guest has certainly ended.

A fence is a moment of the node's own monotonic clock. The controller computes a fence as the clock reading of a
received sample plus `fence_s`, and accounts for each fence before it sends the fence. The proof is in docs/resume.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from testbed.bus.messages import Fence
from testbed.errors import UserError

DRIFT_FRAC = 1e-3
"""The rates of the monotonic clocks of two machines differ by less than this; those of steered clocks by 5e-4."""
DESTROYED_WITHIN_S = 2.0
"""Time within which an agent or its keeper destroys a guest after its fence has passed."""
NEVER_S = float("-inf")
UNKNOWN_S = float("inf")
FENCES = "fences"  # the capability of nodes that enforce fences also when their agent is dead, stopped or stuck
_MOST_CLOCKS = 8  # of one node


@dataclass(slots=True)
class _Clock:
    """One clock of a node: its latest reading, and the reading with its reception that is its best lower bound."""

    latest_ns: int
    bound_ns: int
    bound_s: float

    def hear(self, mono_ns: int, at_s: float) -> None:
        self.latest_ns = max(self.latest_ns, mono_ns)
        if self.ahead_s(mono_ns, at_s) > self.ahead_s(self.bound_ns, self.bound_s):
            self.bound_ns, self.bound_s = mono_ns, at_s

    @staticmethod
    def ahead_s(mono_ns: int, at_s: float) -> float:
        return mono_ns / 1e9 - at_s * (1 - DRIFT_FRAC)

    def passes_s(self, until_ns: int) -> float:
        """Return the first moment of the controller at which this clock has certainly passed `until_ns`."""
        return self.bound_s + (until_ns - self.bound_ns) / 1e9 / (1 - DRIFT_FRAC)


class FenceBook:
    """The controller's readings of its nodes' clocks, and the fences that it has granted; nodes by index.

    All `*_s` are seconds of the controller's own monotonic clock. The `unenforced` nodes lack the capability `fences`:
    a guest there has ended only if its node reports that.
    """

    def __init__(self, fence_s: float, destroyed_within_s: float = DESTROYED_WITHIN_S) -> None:
        self.fence_s = fence_s
        self.unenforced: frozenset[int] = frozenset()
        self._destroyed_within_s = destroyed_within_s
        self._clocks: dict[int, dict[str, _Clock]] = {}  # of each node; the clock of the latest reading is the last
        self._falls_s: dict[tuple[int, str], float] = {}  # by node and guest

    def hear(self, node: int, clock: str, mono_ns: int, at_s: float) -> None:
        """Record a reading of a node's clock that was received at `at_s`; late and repeated readings do no harm."""
        if not clock:
            return
        clocks = self._clocks.setdefault(node, {})
        known = clocks.pop(clock, None) or _Clock(mono_ns, mono_ns, at_s)
        known.hear(mono_ns, at_s)
        clocks[clock] = known
        if len(clocks) > _MOST_CLOCKS:
            del clocks[next(iter(clocks))]

    def grant(self, node: int, guests: Iterable[str]) -> Fence | None:
        """Account for a fence of these guests, and return it; None if no reading of the node's clock is known."""
        clocks = self._clocks.get(node)
        if not clocks:
            return None
        name, clock = next(reversed(clocks.items()))
        until_ns = clock.latest_ns + int(self.fence_s * 1e9)
        for guest in guests:
            self._note(node, guest, clock.passes_s(until_ns))
        return Fence(clock=name, until_ns=until_ns)

    def inherit(self, node: int, guest: str, taken_over_s: float) -> None:
        """Account for all fences that earlier controllers may have granted to a guest.

        Those fences were computed from readings that are older than the takeover.
        """
        self._note(node, guest, taken_over_s + self.fence_s / (1 - DRIFT_FRAC))

    def _note(self, node: int, guest: str, falls_s: float) -> None:
        self._falls_s[node, guest] = max(falls_s, self._falls_s.get((node, guest), NEVER_S))

    def ended_s(self, node: int, guest: str) -> float:
        """Return the moment from which a guest has certainly ended on a node that cannot be queried.

        The moment is `NEVER_S` for a guest that was never granted a fence there, as the node would have refused its
        start, and `UNKNOWN_S` where fences may not be enforced.
        """
        if node in self.unenforced and (node, guest) in self._falls_s:
            return UNKNOWN_S
        return self._falls_s.get((node, guest), NEVER_S) + self._destroyed_within_s

    def stopped(self, node: int, guest: str) -> None:
        """Record that a node has confirmed the end of a guest, by its reply to a `Stop` with the current generation."""
        self._falls_s.pop((node, guest), None)


def check_clocks(names: Sequence[str], book: FenceBook | None) -> None:
    """Raise `UserError` if a node has reported no clock, which fences need; `names` are by index."""
    for node, name in enumerate(names):
        if book is not None and book.grant(node, ()) is None:
            raise UserError(
                f'node {name}: its agent cannot enforce fences, which on_node_loss = "restart" needs: '
                'install this release there, or set on_node_loss = "fail"'
            )


def note_unenforced(capabilities: Sequence[Sequence[str]], book: FenceBook | None) -> None:
    """Record in the book the nodes that lack the capability `fences`; `capabilities` are by node index."""
    if book is not None:
        book.unenforced = frozenset(node for node, able in enumerate(capabilities) if FENCES not in able)


Place: TypeAlias = tuple[int, str]


class Clearance:
    """The guests of a job that will run again, until each of them has certainly ended; places are (node, guest).

    A guest has ended once its node has answered a `Stop` of the current generation, or once its fence has passed. At
    the `targets` of a live migration a guest may arrive for as long as it may run at its source. So a target is settled
    only after all `sources`, by a `Stop` that is sent then, or by its fence.
    """

    def __init__(self, book: FenceBook, sources: Iterable[Place], targets: Iterable[Place] = ()) -> None:
        self._book = book
        self._sources = frozenset(sources)
        self._targets = frozenset(targets) - self._sources
        self._stopped: set[Place] = set()

    @property
    def places(self) -> list[Place]:
        """All places, the sources first."""
        return [*sorted(self._sources), *sorted(self._targets)]

    def left(self, now_s: float) -> list[Place]:
        """Return the places that a `Stop` sent now can settle; empty once all guests have certainly ended."""
        return self._running(self._sources, now_s) or self._running(self._targets, now_s)

    def _running(self, places: frozenset[Place], now_s: float) -> list[Place]:
        return sorted(p for p in places if p not in self._stopped and self._book.ended_s(*p) > now_s)

    def stopped(self, places: Iterable[Place]) -> None:
        """Record that places from `left` have answered a `Stop` that was sent after that call."""
        for place in places:
            self._stopped.add(place)
            self._book.stopped(*place)

    def ends_s(self) -> float:
        """Return the moment by which the last guest has ended even if no node answers.

        The moment is `NEVER_S` if no guest is left, and `UNKNOWN_S` if only a reply of a node can confirm the end.
        """
        places = (self._sources | self._targets) - self._stopped
        return max((self._book.ended_s(*place) for place in places), default=NEVER_S)
