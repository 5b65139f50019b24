"""Dispatches events of guests to one callback per guest."""

from __future__ import annotations

from collections.abc import Callable

from testbed.bus.guest_details import GuestReport


class GuestEvents:
    """Callbacks by guest name; the fleet calls `hear` with the events of all nodes."""

    def __init__(self) -> None:
        self._listeners: dict[str, Callable[[int, GuestReport], None]] = {}

    def listen(self, guest: str, hear: Callable[[int, GuestReport], None]) -> None:
        """Call `hear(node index, report)` for each event of a guest from now on."""
        self._listeners[guest] = hear

    def unlisten(self, guest: str) -> None:
        """Stop the calls for a guest."""
        self._listeners.pop(guest, None)

    def hear(self, node: int, report: GuestReport) -> None:
        """Dispatch an event."""
        listener = self._listeners.get(report.guest)
        if listener is not None:
            listener(node, report)
