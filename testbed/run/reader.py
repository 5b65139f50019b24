"""Folds the journal of a run directory, and sends each event to listeners together with the state after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from testbed.errors import UserError
from testbed.run import events
from testbed.run.history import History
from testbed.run.journal import read_events
from testbed.run.phases import IllegalEventError

Listener: TypeAlias = Callable[[events.Known, History], None]
"""Called with each event and the state after it. A listener must not change the state."""


def read_history(path: Path, names: Sequence[str] = (), *listeners: Listener) -> History:
    """Return the state after all events of events.jsonl; see `History` for `names`.

    Raises `UserError`, with the number of the entry, for an event that contradicts earlier ones, and the errors of
    `read_events`.
    """
    history = History(names)
    for number, event in enumerate(read_events(path), 1):
        try:
            history.apply(event)
        except IllegalEventError as error:
            raise UserError(f"{path}:{number}: {error}") from None
        for listener in listeners:
            listener(event, history)
    return history
