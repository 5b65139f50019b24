"""Distribution of nodes' reports of guests to listeners by guest."""

from __future__ import annotations

from collections.abc import Callable

from testbed.bus.guest_details import GuestReport


class GuestEvents:
    """Callbacks by guest; `hear` takes the reports of all nodes."""

    def __init__(self) -> None:
        self._listeners: dict[str, Callable[[int, GuestReport], None]] = {}

    def listen(self, guest: str, hear: Callable[[int, GuestReport], None]) -> None:
        """Call `hear(node index, report)` for each report about a guest from now on."""
        self._listeners[guest] = hear

    def unlisten(self, guest: str) -> None:
        """Stop that."""
        self._listeners.pop(guest, None)

    def hear(self, node: int, report: GuestReport) -> None:
        """Deliver a report."""
        listener = self._listeners.get(report.guest)
        if listener is not None:
            listener(node, report)
