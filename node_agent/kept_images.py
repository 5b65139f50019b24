"""Retention of a node's guests and images: their holder, and whether that holder may still resume.

The holder of a lease is its run, which several controllers may drive one after the other, or else the lease itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from node_agent.stores import ImageStores
from testbed.bus.messages import Lease
from testbed.host.whole_files import write_whole

FILE = "images-of"


class _Note(msgspec.Struct, frozen=True):
    """The last holder, and whether it may come back after its lease has run out."""

    holder: str = ""
    may_return: bool = False


class KeptImages:
    """Deletes images that belong to no lease in force, and to no run that may be resumed.

    The holder is noted beside the images, so that the successor of a killed agent keeps them, too, also after a restart
    of the machine. `holds(run)` says whether the node has guests of a run.

    `kept` is a run whose controller was lost while another lease is in force: its guests and images stay until they are
    removed one by one, as `testbed lab take` does. It is empty without one.
    """

    def __init__(self, stores: ImageStores, holds: Callable[[str], bool]) -> None:
        self.kept = ""
        self._stores = stores
        self._holds = holds
        self._file = stores.disk.folder / FILE
        self._note = _Note()
        self._heard = False  # whether this agent has received a lease

    def begin(self) -> None:
        """Keep the images of the noted holder, if any, until the lease of another holder is received."""
        self._note = self._noted()
        if not self._note.holder:
            self._stores.clear()

    def keep(self, lease: Lease) -> None:
        """Keep the images of the holder of this lease, also those that a killed agent has saved; delete all others."""
        self._heard = True
        note = _Note(lease.run or lease.digest, bool(lease.run) and lease.on_controller_loss == "keep")
        if note == self._note and not self.kept:
            return
        last = self._note
        if note.holder != last.holder:
            left = self._holds(last.holder) or bool(self._stores.all())
            self.kept = last.holder if last.may_return and left else ""
            if self.kept:
                return
            self._stores.clear()
        self.kept = ""
        self._write(note)

    def clear(self) -> None:
        """Delete the images of a lease that has ended for good."""
        if not self.kept:
            self._stores.clear()
            self._forget()

    def leave(self, *, in_force: bool) -> None:
        """Delete all images unless their holder may want them; called when the agent ends in order.

        An agent that has received no lease cannot know; then images of the noted holder stay for the next agent.
        """
        wanted = in_force or self._note.may_return
        if not wanted and (self._heard or not self._note.holder):
            self._stores.clear()
            self._forget()

    def _forget(self) -> None:
        self._note = _Note()
        with contextlib.suppress(OSError):
            self._file.unlink()

    def _write(self, note: _Note) -> None:
        self._note = note
        write_whole(self._file, msgspec.json.encode(note), durable=False)

    def _noted(self) -> _Note:
        """Return the holder of the images, as noted by an earlier agent."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode(self._file.read_bytes(), type=_Note)
        return _Note()
