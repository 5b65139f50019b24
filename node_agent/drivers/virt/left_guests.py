"""Record of the virtual machines that outlive an agent, in the state folder.

libvirt keeps the domains and their caps, a guest keeps its frames and the state of its MPI rank. So the record has only
the guest's specification, and its end until that is reported.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from node_agent.drivers.protocol import DriverError, DriverEvent
from node_agent.drivers.virt.hypervisor import Hypervisor
from node_agent.drivers.virt.platform import Timeouts
from testbed.bus.messages import GuestSpec
from testbed.host.whole_files import write_whole

FILE = "guests.json"
ENDS = ("done", "failed")
_log = logging.getLogger(__name__)


class LeftGuest(msgspec.Struct, frozen=True):
    """A guest, or its `end`, which is not settled yet. A guest that `leaves` is being saved, migrated or destroyed."""

    spec: GuestSpec
    leaves: bool = False
    end: tuple[str, int, dict[str, Any]] | None = None


class LeftGuests:
    """The file. It is written when a guest has been made, when it begins to leave, and when it ends."""

    def __init__(
        self, state_dir: Path | None = None, tell: Callable[[DriverEvent], None] = lambda _driver_event: None
    ) -> None:  # fmt: skip
        """Without a folder nothing is noted."""
        self._path = None if state_dir is None else state_dir / FILE
        self._tell = tell
        self._guests: dict[str, LeftGuest] = {}

    def read(self) -> dict[str, LeftGuest]:
        """Return the guests that an earlier agent has noted; their notes stay."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            if self._path is not None:
                self._guests = msgspec.json.decode(self._path.read_bytes(), type=dict[str, LeftGuest])
        return dict(self._guests)

    def note(self, spec: GuestSpec, *, leaves: bool = False) -> None:
        """Note a guest."""
        self._guests[spec.guest] = LeftGuest(spec, leaves)
        self._write()

    def note_end(self, spec: GuestSpec, driver_event: DriverEvent) -> None:
        """Note the end of a guest, before its domain is destroyed: the next agent could not find out how it ended.

        The guest may have ended before it was noted: its program works before its start has returned.
        """
        known = self._guests.get(spec.guest)
        if driver_event.event in ENDS and (known is None or known.end is None):
            end = driver_event.event, driver_event.mono_ns, driver_event.detail
            self._guests[spec.guest] = LeftGuest(spec, end=end)
            self._write()

    def tell(self, driver_event: DriverEvent) -> None:
        """Report an event of a guest, and note its end before."""
        known = self._guests.get(driver_event.guest)
        if known is not None:
            self.note_end(known.spec, driver_event)
        self._tell(driver_event)

    def note_leaving(self, spec: GuestSpec) -> None:
        """Note that a guest is being destroyed: the next agent does not report that it failed if its domain is gone."""
        known = self._guests.get(spec.guest)
        if known is not None and known.end is None:
            self.note(spec, leaves=True)

    def not_ended(self) -> list[str]:
        """Return the noted guests whose ends are not known; the domain of any other may be destroyed."""
        return [name for name, left in self._guests.items() if left.end is None]

    def specs(self) -> list[GuestSpec]:
        """Return the noted guests."""
        return [each.spec for each in self._guests.values()]

    async def is_there(self, left: LeftGuest, hypervisor: Hypervisor, timeouts: Timeouts) -> bool:
        """Whether the domain of a guest is still there, once libvirt runs no job on it any more.

        The noted end of a guest is reported. Raises `DriverError` if the guest has ended for an unknown reason.
        """
        name = left.spec.guest
        if left.end is not None:
            event, mono_ns, detail = left.end
            self._tell(DriverEvent(name, event, mono_ns, detail))
            return False
        await hypervisor.settled(name, timeouts.memory_s)
        if await hypervisor.find_own(name, timeouts.call_s) is not None:
            self.note(left.spec)
            return True
        if not left.leaves:
            raise DriverError("its virtual machine ended while no agent was there")
        self.drop(name)  # it was saved, has migrated, or neither: the controller that ordered this finds out
        return False

    def drop(self, guest: str) -> None:
        """Forget a guest: it was destroyed, or its end is settled."""
        if self._guests.pop(guest, None) is not None:
            self._write()

    def remove(self) -> None:
        """Delete the file: no guest is left."""
        self._guests.clear()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            write_whole(self._path, msgspec.json.encode(self._guests), durable=False)
        except OSError as error:
            _log.warning("%s: %s: the next agent will not know all guests", self._path, error.strerror)
