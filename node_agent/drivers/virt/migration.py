"""Migration of one guest, run by its source: peer to peer, monitored, and aborted when it does not converge.

A guest under KVM works while it is copied. An emulated one is paused, as QEMU would lose some of its writes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import libvirt

from node_agent.drivers.protocol import DriverError, MigrationReport, SuspectError
from node_agent.drivers.virt.domain import Place, is_emulated, moved_xml
from node_agent.drivers.virt.guest import VirtualGuest
from testbed.bus.migration import TRANSPORTS, Destination, MigrationUriError, Transport, check_migration_uri, in_uri
from testbed.errors import UserError

LOOK_EVERY_S = 0.2
ABORTED_WITHIN_S = 30.0
TOLD_WITHIN_S = 2.0  # the statistics arrive separately from the answer, before or after it


def transport_of(option: str) -> Transport | None:
    """Return the transport that an agent's option names, None for none; raises `UserError`."""
    for transport in TRANSPORTS:
        if option == transport:
            return transport
    if option:
        raise UserError(f"option migration = {option!r}: expected {' or '.join(TRANSPORTS)}, or none of it")
    return None


def data_uri(host: str) -> str:
    """Return the URI to which QEMU sends a guest's memory, at a port that the target's libvirt chooses."""
    return f"tcp://{in_uri(host)}"


def flags_of(transport: Transport, *, live: bool) -> int:
    """Return libvirt's flags of a migration; without `live` the guest is paused while it is copied.

    With `tls` QEMU itself encrypts the transfer, and each end checks the certificate of the other. A tunnel through the
    two daemons would need no further ports, but costs CPU time and a copy of all memory in each of them.
    """
    flags = libvirt.VIR_MIGRATE_PEER2PEER | (libvirt.VIR_MIGRATE_LIVE if live else 0)
    return int(flags | (libvirt.VIR_MIGRATE_TLS if transport == "tls" else 0))


class Migration:
    """One attempt, by libvirt's driver `hypervisor` (qemu or xen); raises `SuspectError` for a URI of another form."""

    def __init__(
        self, guest: VirtualGuest, to: Destination, hypervisor: str, transport: Transport, budget_s: float,
        no_progress_s: float,
    ) -> None:  # fmt: skip
        try:
            check_migration_uri(to.uri, hypervisor, transport, to.host)
        except MigrationUriError as error:
            raise SuspectError(f"guest {guest.name}: {error}") from None
        self._guest = guest
        self._to = to
        self._transport = transport
        self._budget_s = budget_s
        self._no_progress_s = no_progress_s
        self._loop = asyncio.get_running_loop()
        self._reason = ""
        self._statistics: dict[str, int] = {}
        self._told = asyncio.Event()
        self._live = True
        self._still_from_s: float | None = None

    def stands_still(self) -> None:
        """Record the time at which the guest stopped working here."""
        self._still_from_s = self._loop.time()

    def completed(self, statistics: Mapping[str, int]) -> None:
        """Take the hypervisor's statistics once the job is over."""
        self._statistics = dict(statistics)
        self._told.set()

    async def run(self) -> MigrationReport:
        """Migrate; after a failure the guest runs here as before, or its state is ENDED if it is not here any more."""
        guest, begin_s = self._guest, self._loop.time()
        guest.depart()
        moving = asyncio.ensure_future(guest.on_domain(self._migrate, self._budget_s + 30.0))
        try:
            await self._watch(moving, begin_s)
            await moving
        except BaseException as error:
            await asyncio.shield(self._end(moving))
            still_here = await asyncio.shield(guest.return_from_departure())
            if isinstance(error, DriverError):
                where = "it still runs here" if still_here else "it is not here any more"
                raise DriverError(f"guest {guest.name}: {self._reason or error}; {where}") from error
            raise
        end_s = self._loop.time()
        await guest.departed()
        with contextlib.suppress(TimeoutError):  # without them, the last ones sampled while it ran
            async with asyncio.timeout(TOLD_WITHIN_S):
                await self._told.wait()
        found = self._statistics
        # for a guest that is paused for the whole migration, QEMU counts only the last round
        still_from_s = begin_s if self._still_from_s is None else self._still_from_s
        downtime_s = found.get("downtime", 0) / 1e3 if self._live else end_s - still_from_s
        return MigrationReport(
            bytes=found.get("memory_processed", found.get("data_processed", 0)),
            elapsed_s=end_s - begin_s, downtime_s=downtime_s, rounds=found.get("memory_iteration", 0),
        )  # fmt: skip

    def _migrate(self, domain: libvirt.virDomain) -> None:
        place = Place(self._to.partition, self._to.bridge)
        xml = moved_xml(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE), self._to.node, place)
        parameters = {
            libvirt.VIR_MIGRATE_PARAM_URI: data_uri(self._to.host),
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: xml,
        }
        # QEMU does not notice every write of an emulated guest while it copies the guest's memory, so that the copy can
        # hold old data. QEMU 9.0 fixed one such race (commit 03bfc2188f). Without LIVE the guest is paused meanwhile.
        self._live = not is_emulated(xml)
        domain.migrateToURI3(self._to.uri, parameters, flags_of(self._transport, live=self._live))

    async def _watch(self, moving: asyncio.Future[None], begin_s: float) -> None:
        """Wait for the end; abort when the budget is used up or the transfer makes no progress."""
        least, least_at_s = float("inf"), begin_s
        while not moving.done():
            await asyncio.wait((moving,), timeout=LOOK_EVERY_S)
            if moving.done():
                return
            now_s = self._loop.time()
            remaining = await self._remaining()
            if remaining is not None and remaining < least:
                least, least_at_s = remaining, now_s
            if now_s - begin_s > self._budget_s:
                self._reason = f"its migration took longer than {self._budget_s:g} s"
            elif now_s - least_at_s > self._no_progress_s:
                self._reason = f"its migration made no progress for {self._no_progress_s:g} s"
            else:
                continue
            if not await self._guest.abort(moving, ABORTED_WITHIN_S):
                raise DriverError(f"{self._reason} and could not be aborted")
            return

    async def _remaining(self) -> float | None:
        with contextlib.suppress(DriverError):
            statistics = await self._guest.on_domain(lambda domain: dict(domain.jobStats()), 5.0)
            if "data_remaining" in statistics:
                if not self._told.is_set():
                    self._statistics = {name: value for name, value in statistics.items() if isinstance(value, int)}
                return float(statistics["data_remaining"])
        return None

    async def _end(self, moving: asyncio.Future[None]) -> None:
        """Leave no migration running that no task awaits."""
        await self._guest.abort(moving, ABORTED_WITHIN_S)
        if moving.done() and not moving.cancelled():
            moving.exception()
