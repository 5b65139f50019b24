"""The virtual machines of one node by name, with their record for the next agent, compared with libvirt's domains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from pathlib import Path

from node_agent.drivers.protocol import DriverError, DriverEvent, NodeBudget
from node_agent.drivers.virt.domain import own_guest
from node_agent.drivers.virt.domain_states import list_owners, runs
from node_agent.drivers.virt.guest import State, VirtualGuest
from node_agent.drivers.virt.hypervisor import Hypervisor
from node_agent.drivers.virt.left_guests import LeftGuest, LeftGuests
from node_agent.drivers.virt.platform import Platform
from testbed.bus.messages import GuestSpec

_log = logging.getLogger(__name__)


class NodeGuests(Mapping[str, VirtualGuest]):
    """The guests of one agent; `record` is the file by which the next agent finds them if this one is killed."""

    def __init__(self, platform: Platform) -> None:
        self.record = LeftGuests()
        self._platform = platform
        self._timeouts = platform.timeouts
        self._guests: dict[str, VirtualGuest] = {}
        self._checks: set[asyncio.Task[None]] = set()

    def __getitem__(self, guest: str) -> VirtualGuest:
        """Return a guest; raises `KeyError`."""
        return self._guests[guest]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._guests)

    def __len__(self) -> int:
        """The number of guests."""
        return len(self._guests)

    def known(self, guest: str) -> VirtualGuest:
        """Return a guest; raises `DriverError` if it is not here."""
        if guest not in self._guests:
            raise DriverError(f"guest {guest} is not here; here are: {', '.join(self._guests) or 'none'}")
        return self._guests[guest]

    # --- from a guest's creation to its end

    def open(self, state_dir: Path, tell: Callable[[DriverEvent], None]) -> None:
        """From now on, keep the record in the folder and report the events of guests with `tell`."""
        self.record = LeftGuests(state_dir, tell)

    def new(self, spec: GuestSpec, cap_cores: float, budget: NodeBudget, hypervisor: Hypervisor) -> VirtualGuest:
        """Return the object for a guest, whose domain may exist already; it is not added yet."""
        record = self.record
        return VirtualGuest(
            spec, cap_cores, hypervisor, self._platform, record.tell, self.forget, budget.cpus, record.note_end
        )

    def add(self, guest: VirtualGuest) -> None:
        """Add a guest under its name."""
        self._guests[guest.name] = guest

    def note(self, guest: VirtualGuest) -> None:
        """Note a guest that was made; one that has ended meanwhile is noted with its end already."""
        if guest.state is not State.ENDED:
            self.record.note(guest.spec)

    def stays_or_goes(self, guest: VirtualGuest) -> None:
        """Update the record of a guest that was to leave; forget it if it has left, even if an error was raised."""
        if guest.state is State.ENDED:
            self.forget(guest)
        else:
            self.note(guest)

    async def give_up(self, guest: VirtualGuest) -> None:
        """Destroy a guest that could not be made, or is not needed any more."""
        with contextlib.suppress(DriverError):
            await guest.destroy()
        self.forget(guest)
        self.settled(guest.name)

    def forget(self, guest: VirtualGuest) -> None:
        """Forget a guest that is not here any more; its record stays."""
        if self._guests.get(guest.name) is guest:
            del self._guests[guest.name]

    def settled(self, guest: str) -> None:
        """Drop the record of a guest, unless the guest is still here."""
        if guest not in self._guests:
            self.record.drop(guest)

    def cancel_checks(self) -> None:
        """Cancel the checks that `domain_stopped` and `connection_back` have begun."""
        for check in self._checks:
            check.cancel()

    def close(self) -> None:
        """Forget all guests and delete their record."""
        self.record.remove()
        self._guests.clear()

    # --- guests and domains

    async def take_over(self, left: LeftGuest, budget: NodeBudget, hypervisor: Hypervisor) -> None:
        """Take over a guest of an earlier agent, as after a migration; report its end if it has ended."""
        name = left.spec.guest
        try:
            if await self.record.is_there(left, hypervisor, self._timeouts):
                guest = self.new(left.spec, 1.0, budget, hypervisor)
                await guest.take_over(works=await hypervisor.on_domain(name, self._timeouts.call_s, runs))
                self.add(guest)
        except DriverError as error:
            self.record.tell(DriverEvent(name, "failed", time.monotonic_ns(), {"reason": str(error)}))

    async def sweep(
        self, budget: NodeBudget, hypervisor: Hypervisor, *, dry_run: bool = False, but: Collection[str] = ()
    ) -> list[str]:
        """Destroy unknown domains of this node: an earlier agent left them, or they arrived late."""
        domains = await hypervisor.call(self._timeouts.call_s, list_owners)
        left = [
            owner
            for owner in domains
            if owner["guest"] not in {*self._guests, *but}
            and (owner["node"] == budget.node or not self._platform.shared)
        ]
        for owner in left:
            if not dry_run:
                _log.warning("destroying the left guest %s", owner["guest"])
                guest = self.new(own_guest(owner["guest"], 1, owner["run"]), 1.0, budget, hypervisor)
                with contextlib.suppress(DriverError):
                    await guest.destroy()
        return [f"guest {owner['guest']}" for owner in left]

    def domain_stopped(self, name: str, hypervisor: Hypervisor) -> None:
        """A domain ended: by itself, unless a command of this agent ended it."""
        guest = self._guests.get(name)
        if guest is not None and guest.created and not guest.leaving:
            self._beside(self._check_end(guest, hypervisor), f"has {name} ended")

    async def _check_end(self, guest: VirtualGuest, hypervisor: Hypervisor) -> None:
        """Ask the hypervisor, because the event may concern an earlier domain of that name."""
        with contextlib.suppress(DriverError):
            if await hypervisor.find(guest.name, self._timeouts.call_s) is None and not guest.leaving:
                guest.fail("its virtual machine ended by itself")

    def connection_back(self, hypervisor: Hypervisor) -> None:
        """The connection to libvirt is back: check for domains that ended meanwhile."""
        self._beside(self._reconcile(hypervisor), "reconcile with libvirt")

    async def _reconcile(self, hypervisor: Hypervisor) -> None:
        with contextlib.suppress(DriverError):
            there = {owner["guest"] for owner in await hypervisor.call(self._timeouts.call_s, list_owners)}
            for name in [name for name in self._guests if name not in there]:
                self.domain_stopped(name, hypervisor)

    def _beside(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)
