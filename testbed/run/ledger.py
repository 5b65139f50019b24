"""The one place where the state of a run changes: events are journalled, applied to the history, sent to listeners."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from testbed.run import events
from testbed.run.history import History

Listener: TypeAlias = Callable[[events.Event], None]


class Ledger:
    """The history of a run in progress, and its journal; `append` writes an event and returns its number.

    `history` is the state after the events that are in the journal already.

    Listeners get each event that counts (see `History.apply`), in the order of the journal and of registration. An
    event that a listener records is appended and applied at once, so that the state is never behind the journal.
    Listeners get this event after all earlier ones, so that no listener is called recursively. `written` is the number
    of the last entry.
    """

    def __init__(self, append: Callable[[events.Event], int], history: History | None = None) -> None:
        self.history = history or History()
        self.written = 0
        self._append = append
        self._listeners: list[Listener] = []
        self._untold: deque[events.Event] = deque()
        self._telling = False

    def listen(self, hear: Listener) -> None:
        """Send events to `hear` from now on."""
        self._listeners.append(hear)

    def record(self, event: events.Event) -> bool:
        """Append an event, apply it, and send it to listeners; return whether it counts.

        Raises `IllegalEventError` for an event that contradicts earlier ones. The event stays in the journal, as
        evidence of a bug in the controller.
        """
        self.written = self._append(event)
        counts = self.history.apply(event)
        if counts:
            self._untold.append(event)
            self._tell()
        return counts

    def _tell(self) -> None:
        if self._telling:
            return
        self._telling = True
        try:
            while self._untold:
                event = self._untold.popleft()
                for hear in self._listeners:
                    hear(event)
        finally:
            self._telling = False
