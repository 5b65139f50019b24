"""Migration of one guest, seen from its source: peer to peer, watched, and given up when it does not converge.

A guest under KVM works while it is copied. An emulated one stands still: QEMU would lose some of what it writes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from urllib.parse import parse_qs, urlencode, urlsplit

import libvirt

from node_agent.drivers.protocol import DriverError, MigrationReport
from node_agent.drivers.virt.domain import Place, is_emulated, moved_xml
from node_agent.drivers.virt.guest import VirtualGuest

LOOK_EVERY_S = 0.2
ABORTED_WITHIN_S = 30.0
TOLD_WITHIN_S = 2.0  # the statistics come beside the answer, before or after it


def migration_target(uri: str, place: Place, node: str) -> str:
    """Return what other nodes need to send guests here: libvirt's URI, and what differs here in its fragment."""
    return f"{uri}#{urlencode({'partition': place.partition, 'bridge': place.bridge, 'node': node})}"


def read_target(target: str) -> tuple[str, str, Place, str]:
    """Return libvirt's URI, its host, the place and the node of a migration target; raises `DriverError`."""
    parts = urlsplit(target)
    if not parts.hostname or not parts.scheme.startswith("qemu+"):
        raise DriverError(f"migration target {target!r}: expected a URI like qemu+tcp://HOST/system")
    fields = {name: values[0] for name, values in parse_qs(parts.fragment).items()}
    place = Place(fields.get("partition", ""), fields.get("bridge", ""))
    return parts._replace(fragment="").geturl(), parts.hostname, place, fields.get("node", "")


class Migration:
    """One attempt."""

    def __init__(self, guest: VirtualGuest, target: str, budget_s: float, no_progress_s: float) -> None:
        self._guest = guest
        try:
            self._uri, self._host, self._place, self._node = read_target(target)
        except DriverError as error:
            raise DriverError(f"guest {guest.name}: {error}") from None
        self._budget_s = budget_s
        self._no_progress_s = no_progress_s
        self._loop = asyncio.get_running_loop()
        self._reason = ""
        self._statistics: dict[str, int] = {}
        self._told = asyncio.Event()
        self._live = True
        self._still_from_s: float | None = None

    def stands_still(self) -> None:
        """Take down when the guest stopped working here."""
        self._still_from_s = self._loop.time()

    def completed(self, statistics: Mapping[str, int]) -> None:
        """Take what the hypervisor tells once the job is over."""
        self._statistics = dict(statistics)
        self._told.set()

    async def run(self) -> MigrationReport:
        """Migrate; on failure the guest runs here as before, or its state is ENDED because it is not here any more."""
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
        with contextlib.suppress(TimeoutError):  # without it, what was seen last while it ran
            async with asyncio.timeout(TOLD_WITHIN_S):
                await self._told.wait()
        found = self._statistics
        # of a guest that stands still all the time, QEMU counts the last round alone
        still_from_s = begin_s if self._still_from_s is None else self._still_from_s
        downtime_s = found.get("downtime", 0) / 1e3 if self._live else end_s - still_from_s
        return MigrationReport(
            bytes=found.get("memory_processed", found.get("data_processed", 0)),
            elapsed_s=end_s - begin_s, downtime_s=downtime_s, rounds=found.get("memory_iteration", 0),
        )  # fmt: skip

    def _migrate(self, domain: libvirt.virDomain) -> None:
        xml = moved_xml(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE), self._node, self._place)
        parameters = {
            libvirt.VIR_MIGRATE_PARAM_URI: f"tcp://{self._host}",
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: xml,
        }
        # QEMU does not notice every write of an emulated guest while it copies the guest's memory, so that the copy can
        # hold old data. QEMU 9.0 fixed one such race (commit 03bfc2188f). Without LIVE the guest is paused meanwhile.
        self._live = not is_emulated(xml)
        live = libvirt.VIR_MIGRATE_LIVE if self._live else 0
        domain.migrateToURI3(self._uri, parameters, live | libvirt.VIR_MIGRATE_PEER2PEER)

    async def _watch(self, moving: asyncio.Future[None], begin_s: float) -> None:
        """Wait for the end; abort when the budget is used up or nothing more gets through."""
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
        """Do not leave a migration behind that nobody waits for."""
        await self._guest.abort(moving, ABORTED_WITHIN_S)
        if moving.done() and not moving.cancelled():
            moving.exception()
