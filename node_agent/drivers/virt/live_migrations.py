"""Live migration of virtual machines between nodes: the guests that leave this node, and those that arrive here."""

from __future__ import annotations

import time
from collections.abc import Mapping

from node_agent.drivers.protocol import DriverError, MigrationReport, NodeBudget, SuspectError
from node_agent.drivers.virt.domain_states import runs
from node_agent.drivers.virt.guest import State
from node_agent.drivers.virt.hypervisor import Hypervisor
from node_agent.drivers.virt.migration import Migration
from node_agent.drivers.virt.node_guests import NodeGuests
from node_agent.drivers.virt.platform import Platform
from testbed.bus.messages import GuestSpec
from testbed.bus.migration import Destination, Transport
from testbed.bus.telemetry import GuestSample


class LiveMigrations:
    """The migrations of one node; without a `transport` no guest migrates to another node."""

    def __init__(self, guests: NodeGuests, platform: Platform, transport: Transport | None) -> None:
        self.transport = transport
        self._guests = guests
        self._platform = platform
        self._leaving: dict[str, Migration] = {}
        self._arrived: set[str] = set()

    # --- guests that leave

    async def migrate(self, guest: str, to: Destination, budget_s: float, no_progress_s: float) -> MigrationReport:
        """See `Migrates.migrate`."""
        going = self._guests.known(guest)
        if self.transport is None:
            raise SuspectError(f"guest {guest}: guests of this node do not migrate live")
        migration = self._leaving[guest] = Migration(
            going, to, self._platform.hypervisor, self.transport, budget_s, no_progress_s
        )
        self._guests.record.note(going.spec, leaves=True)
        try:
            return await migration.run()
        finally:
            del self._leaving[guest]
            self._guests.stays_or_goes(going)

    def domain_departs(self, name: str) -> None:
        """A domain that migrates stopped working here."""
        if name in self._leaving:
            self._leaving[name].stands_still()

    def job_completed(self, name: str, statistics: Mapping[str, int]) -> None:
        """A migration of a domain is over."""
        if name in self._leaving:
            self._leaving[name].completed(statistics)

    # --- guests that arrive

    def domain_arrived(self, name: str) -> None:
        """A domain arrived by migration and runs."""
        if name not in self._guests:
            self._arrived.add(name)

    def arrived(self) -> list[GuestSample]:
        """Return the samples of the guests that have arrived and wait to be adopted."""
        return [
            GuestSample(
                guest=name, state="arrived", cap_cores=None, cpu_s=0.0, rss_mib=0.0, read_mib=0.0, written_mib=0.0,
                units_done=0, units_mono_ns=time.monotonic_ns(),
            )
            for name in sorted(self._arrived)
        ]  # fmt: skip

    async def adopt(self, spec: GuestSpec, cap_cores: float, budget: NodeBudget, hypervisor: Hypervisor) -> None:
        """Take over a guest that has arrived, without its cap; raises `DriverError` if it does not run here."""
        call_s = self._platform.timeouts.call_s
        if await hypervisor.find_own(spec.guest, call_s) is None:
            raise DriverError(f"guest {spec.guest} is not here")
        if not await hypervisor.on_domain(spec.guest, call_s, runs):
            raise DriverError(f"guest {spec.guest} has not arrived: its virtual machine does not run here")
        guest = self._guests.new(spec, cap_cores, budget, hypervisor)
        await guest.appear()
        guest.state = State.RUNNING
        self._guests.add(guest)
        self._arrived.discard(spec.guest)
        guest.attach_beside()
        self._guests.record.note(spec)

    def forget(self, guest: str) -> None:
        """Forget a guest that has arrived: its domain has ended."""
        self._arrived.discard(guest)

    def clear(self) -> None:
        """Forget all guests that have arrived."""
        self._arrived.clear()
