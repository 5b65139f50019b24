"""Saves of virtual machines that are in progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from node_agent.drivers.protocol import SaveReport


class SavesUnderWay:
    """At most one save per guest, each as a task of its own.

    A save that cannot be aborted continues when its order is cancelled; a repeated order gets its result later.
    """

    def __init__(self) -> None:
        self._saves: dict[str, tuple[Path, asyncio.Task[SaveReport]]] = {}

    def __contains__(self, guest: str) -> bool:
        """Whether a save of the guest is in progress."""
        return guest in self._saves

    async def save(
        self, guest: str, image: Path, write: Callable[[], Coroutine[Any, Any, SaveReport]], *, aborts: bool
    ) -> SaveReport:  # fmt: skip
        """Have `write` write the image, unless it is being written already; `aborts`: if cancelled, `write` is, too."""
        under_way = self._saves.get(guest)
        if under_way is None or under_way[0] != image:
            writing = asyncio.create_task(write(), name=f"save {guest}")
            # retrieved here, so that asyncio does not log "never retrieved"; the same order again raises it
            writing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            under_way = self._saves[guest] = image, writing
        saving = under_way[1]
        try:
            report = await asyncio.shield(saving)
        except asyncio.CancelledError:
            if aborts:
                saving.cancel()
                await asyncio.wait((saving,))
                if saving.cancelled() or saving.exception() is not None:  # else it was written before the abort
                    self._saves.pop(guest, None)
            raise
        except BaseException:
            self._saves.pop(guest, None)
            raise
        self._saves.pop(guest, None)
        return report

    def end(self, guest: str) -> None:
        """Cancel the save of a guest that is to be destroyed."""
        _, saving = self._saves.pop(guest, (None, None))
        if saving is not None:
            saving.cancel()

    def clear(self) -> None:
        """Forget all of them."""
        self._saves.clear()
