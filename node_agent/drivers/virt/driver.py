"""The driver of virtual machines: one domain per guest, caps by `vcpu_quota`, whole-memory images, live migration."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

import msgspec

from node_agent.drivers.builtin import LIBVIRT
from node_agent.drivers.protocol import (
    GUEST_NAME,
    Driver,
    DriverError,
    DriverEvent,
    DriverFacts,
    ImageKind,
    Meter,
    MigrationReport,
    NativeReport,
    NodeBudget,
    OnSaved,
    SaveReport,
    check_name,
    check_rank,
)
from node_agent.drivers.sealed import seal, written_back
from node_agent.drivers.virt.aftermath import is_image_of
from node_agent.drivers.virt.daemons import daemon_pids
from node_agent.drivers.virt.dirty_rate import DirtyRates
from node_agent.drivers.virt.domain import Place, network_of, own_guest, tap_of
from node_agent.drivers.virt.fence_watching import FenceWatching
from node_agent.drivers.virt.groups import VcpuGroups
from node_agent.drivers.virt.guest import State, VirtualGuest
from node_agent.drivers.virt.hypervisor import Hypervisor
from node_agent.drivers.virt.lacks import WITHOUT, lacks_of
from node_agent.drivers.virt.live_migrations import LiveMigrations
from node_agent.drivers.virt.migration import transport_of
from node_agent.drivers.virt.native import NativePrograms, left_programs, native_programs
from node_agent.drivers.virt.node_guests import NodeGuests
from node_agent.drivers.virt.platform import Platform
from node_agent.drivers.virt.qemu import Qemu
from node_agent.drivers.virt.saves import SavesUnderWay
from node_agent.drivers.virt.traffic import TrafficWatch, ranks_at
from node_agent.guests.image import current
from node_agent.programs.catalogue import unknown
from testbed.bus.messages import GuestSpec, ProgramSpec, RankKeys
from testbed.bus.migration import Destination, Transport
from testbed.bus.telemetry import GuestSample
from testbed.host.guest_image import GuestImage

PROGRAMS = {"eatcpu": "/bin/eatcpu", "patterns": "/bin/patterns"}


class LibvirtDriver(Driver):
    """See `Driver`. Options, all text: `uri` of libvirt; `bridge` and `partition` (control group) of its guests;
    `migration` (tls, tcp), by which other nodes' libvirt reaches this one, without which guests do not migrate live;
    `accel` (auto, kvm, tcg); `pin`, a CPU list for virtual CPUs; `image`, a folder that `testbed image build` made;
    `root`, the path of the hypervisor's file system for this process (`/proc/PID/root` of a mount namespace).

    `vcpu_quota` caps the virtual CPUs without the emulator's own threads (0.4 to 1.9 % of a core more). It is used
    instead of `global_quota`, so that a cap applies to the task only and saves run at the machine's speed.
    """  # noqa: D205  # the summary is a list of options

    name = "libvirt"
    traits = LIBVIRT.traits

    def __init__(
        self, uri: str = "qemu:///system", migration: str = "", partition: str = "", bridge: str = "",
        accel: str = "auto", root: str = "/", pin: str = "", image: str = "",
    ) -> None:  # fmt: skip
        place = Place(partition, bridge)
        self._set_up(Qemu(place, accel, pin), uri, transport_of(migration), place, root, image)

    def _set_up(
        self, platform: Platform, uri: str, transport: Transport | None, place: Place, root: str, image: str
    ) -> None:
        self._platform = platform
        self._uri = uri
        self._place = place
        self._root = Path(root)
        self._image_folder = Path(image) if image else None
        self._timeouts = platform.timeouts
        self._heavy = asyncio.Semaphore(platform.heavy_at_once)
        self._guests = NodeGuests(platform)
        self._live = LiveMigrations(self._guests, platform, transport)
        self._saves = SavesUnderWay()
        self._budget: NodeBudget | None = None
        self._hypervisor: Hypervisor | None = None
        self._image: GuestImage | None = None
        self._native: NativePrograms | None = None
        self._traffic = TrafficWatch()
        self._dirty_rates = DirtyRates(self._timeouts.call_s)
        self._watching: FenceWatching | None = None
        self.keep_s = 0.0  # libvirt keeps guests for any time
        self.on_saved: OnSaved = _ignore

    async def open(self, budget: NodeBudget, tell: Callable[[DriverEvent], None]) -> DriverFacts:
        """See `Driver.open`."""
        self._budget = budget
        self._guests.open(budget.state_dir, tell)
        budget.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        budget.image_dir.mkdir(parents=True, exist_ok=True)
        self._watching = FenceWatching(budget.state_dir, self._uri)
        self._watching.begin()
        image = await asyncio.to_thread(current, self._image_folder)
        self._hypervisor = Hypervisor(self._uri, self, self._root, self._platform.keepalive_s)
        await self._hypervisor.open(self._timeouts.call_s)
        consoles = self._hypervisor.file(self._platform.consoles)
        await asyncio.to_thread(consoles.mkdir, parents=True, exist_ok=True)  # libvirt creates it too late
        left = self._guests.record.read()
        await self._guests.sweep(budget, self._hypervisor, but=self._guests.record.not_ended())
        platform = await self._platform.open(self._hypervisor, budget, image)
        self._image = image
        for each in left.values():
            await self._guests.take_over(each, budget, self._hypervisor)
        self._native = await asyncio.to_thread(native_programs, image, budget)
        versions = await self._hypervisor.call(self._timeouts.call_s, self._platform.versions)
        bounded = self._place.partition or not self._platform.shared
        waits = self._place.bridge and image.waits
        there = {
            "mpi": self._place.bridge, "native": self._native, "live": self._live.transport, "shares": bounded,
            "waits": waits, "traffic": self._platform.taps,
        }  # fmt: skip
        lacks = lacks_of(there)
        migration = [f"migration:{self._live.transport}"] if self._live.transport else []
        found = [name for name, there in (("fences", self._watching.able), ("waits", waits)) if there]
        return DriverFacts(
            ("checksums", *platform, *migration, *found), {**versions, "guest-image": image.key, **image.versions},
            image.floor_mib, tuple(PROGRAMS), lacks, self._platform.boot_s,
        )  # fmt: skip

    def daemons(self) -> tuple[int, ...]:
        """See `Served.daemons`."""
        return () if self._hypervisor is None else daemon_pids(self._hypervisor)

    @property
    def images(self) -> ImageKind:
        """See `Saves.images`: the whole memory of a machine, which the hypervisor does not check."""
        return ImageKind(self.traits.hypervisor, whole=True, verified=False)

    async def close(self) -> None:
        """See `Driver.close`."""
        if self._hypervisor is None:
            return
        stops = [self.stop(guest) for guest in list(self._guests)]
        stopped = await asyncio.gather(*stops, return_exceptions=True)
        self._guests.cancel_checks()
        if self._native is not None:
            await self._native.close()
            self._native = None
        await self._dirty_rates.close()
        with contextlib.suppress(DriverError):
            await self._guests.sweep(*self._reached())
        await self._hypervisor.close()
        self._hypervisor = None
        if self._watching is not None:
            await asyncio.to_thread(self._watching.close, end=not any(stopped))
            self._watching = None
        self._guests.close()
        self._live.clear()
        self._saves.clear()
        await asyncio.to_thread(self._traffic.close)

    async def sweep(self, budget: NodeBudget, *, dry_run: bool = False) -> list[str]:
        """See `Driver.sweep`: domains are known by their metadata."""
        self._budget, self._hypervisor = budget, Hypervisor(self._uri, self, self._root, self._platform.keepalive_s)
        try:
            await self._hypervisor.open(self._timeouts.call_s)
            left = await self._guests.sweep(budget, self._hypervisor, dry_run=dry_run)
            watching = await asyncio.to_thread(FenceWatching(budget.state_dir, self._uri).end, dry_run=dry_run)
        finally:
            await self._hypervisor.close()
            self._budget = self._hypervisor = None
        records = left_programs(budget.state_dir)
        return [*left, *watching, *(await asyncio.to_thread(records.left if dry_run else records.kill_left)).words()]

    async def enforce_fences(self) -> None:
        """See `EnforcesFences.enforce_fences`."""
        if self._watching is not None:
            await asyncio.to_thread(self._watching.ensure)

    def taken_over(self) -> list[GuestSpec]:
        """See `Outlives.taken_over`."""
        return self._guests.record.specs()

    def settled(self, guest: str) -> None:
        """See `Outlives.settled`."""
        self._guests.settled(guest)

    # --- lives

    async def start(self, spec: GuestSpec, cap_cores: float) -> None:
        """See `Driver.start`."""
        await self._make(spec, cap_cores, self._create)

    async def restore(self, spec: GuestSpec, cap_cores: float, image: Path) -> None:
        """See `Saves.restore`."""
        await self._make(spec, cap_cores, lambda guest: self._restore(guest, image))

    async def _make(
        self, spec: GuestSpec, cap_cores: float, make: Callable[[VirtualGuest], Coroutine[None, None, None]]
    ) -> None:
        check_name(spec.guest)
        if spec.guest in self._guests:
            raise DriverError(f"guest {spec.guest} is there already")
        if spec.program.name not in PROGRAMS:
            raise DriverError(f"{unknown(spec.program.name, tuple(PROGRAMS))}; the guest image holds no others")
        guest = self._guests.new(spec, cap_cores, *self._reached())
        self._guests.add(guest)
        try:
            await self._reached()[1].find_own(spec.guest, self._timeouts.call_s)
            await make(guest)
            if spec.program.ranks == 1 or guest.state is State.HELD:
                self._guests.note(guest)
        except BaseException:
            await asyncio.shield(self._guests.give_up(guest))
            raise

    async def _create(self, guest: VirtualGuest) -> None:
        _, _, image = self._opened()
        if guest.spec.memory_mib < image.floor_mib:
            raise DriverError(
                f"guest {guest.name}: memory_mib = {guest.spec.memory_mib}: expected at least {image.floor_mib}"
            )
        await self._create_domain(guest)
        if guest.spec.program.ranks == 1:
            await guest.run([PROGRAMS[guest.spec.program.name]])
            await guest.made()

    async def _create_domain(self, guest: VirtualGuest) -> None:
        budget, hypervisor, _ = self._opened()
        xml = self._platform.domain_xml(guest.spec, budget.node)
        async with self._heavy:
            await hypervisor.call(self._timeouts.memory_s, lambda connection: connection.createXML(xml, 0))
        await guest.boot()

    async def _restore(self, guest: VirtualGuest, image: Path) -> None:
        budget, hypervisor, _ = self._opened()
        try:
            async with self._heavy:
                await hypervisor.call(
                    self._timeouts.memory_s,
                    lambda connection: self._platform.restore(connection, image, guest.spec, budget.node),
                )
        except DriverError as error:
            raise type(error)(f"image {image}: {error}") from error
        await guest.appear()
        guest.state = State.HELD
        await guest.set_cap(guest.cap_cores)

    async def mpi_join(self, guest: str, session: str) -> None:
        """See `Joins.mpi_join`: ranks of virtual machines reach each other at addresses of their own."""
        member = self._guests.known(guest)
        check_rank(member.spec)
        if not network_of(member.spec.address):
            raise DriverError(f"guest {guest}: address = {member.spec.address!r}: expected one, for its MPI job")
        await member.join(PROGRAMS[member.spec.program.name], session)
        self._guests.note(member)

    async def mpi_pass(self, guest: str, session: str, number: int, keys: Sequence[RankKeys], *, last: bool) -> None:
        """See `Joins.mpi_pass`."""
        if guest in self._guests:
            self._guests[guest].rank.pass_barrier(session, number, keys, last=last)

    async def set_cap(self, guest: str, cap_cores: float) -> float:
        """See `Driver.set_cap`."""
        return await self._guests.known(guest).set_cap(cap_cores)

    async def set_share(self, guest: str, share_cores: float) -> float:
        """See `Shares.set_share`."""
        return await self._guests.known(guest).set_share(share_cores)

    async def hold(self, guest: str) -> int | None:
        """See `Saves.hold`: any point will do, as long as no member continues."""
        await self._guests.known(guest).hold()
        return None

    async def release(self, guest: str) -> None:
        """See `Saves.release`."""
        await self._guests.known(guest).release()

    async def save(self, guest: str, at: int | None, image: Path) -> SaveReport:
        """See `Saves.save`. A save that cannot be aborted continues; a repeated `save` returns its result."""
        del at
        return await self._saves.save(
            guest, image, lambda: self._save(self._guests.known(guest), image), aborts=self._platform.aborts_saves
        )

    async def _save(self, held: VirtualGuest, image: Path) -> SaveReport:
        self._guests.record.note(held.spec, leaves=True)
        try:
            async with self._heavy, written_back(image):
                written_s = await held.save(image)
        finally:
            self._guests.stays_or_goes(held)  # if it was not written it is still held
        return await seal(image, written_s)

    async def finished_save(self, guest: str, at: int | None, image: Path) -> SaveReport | None:
        """See `FindsSaves.finished_save`. Only the header of QEMU's images, written last, shows that they are whole."""
        del at
        gone = guest not in self._guests and guest not in self._saves
        if not gone or self._hypervisor is None or not self._platform.aborts_saves:
            return None
        there = await is_image_of(self._hypervisor, self._platform, image, guest)
        return await seal(image, 0.0) if there else None

    async def migrate(self, guest: str, to: Destination, budget_s: float, no_progress_s: float) -> MigrationReport:
        """See `Migrates.migrate`."""
        return await self._live.migrate(guest, to, budget_s, no_progress_s)

    async def adopt(self, spec: GuestSpec, cap_cores: float) -> None:
        """See `Migrates.adopt`; to adopt a guest again is no error."""
        if spec.guest not in self._guests:
            budget, hypervisor, _ = self._opened()
            await self._live.adopt(spec, cap_cores, budget, hypervisor)
        await self._guests[spec.guest].set_cap(cap_cores)

    async def stop(self, guest: str) -> None:
        """See `Driver.stop`; also of a guest that has arrived and was not adopted."""
        self._saves.end(guest)
        known = self._guests.get(guest)
        if known is not None:
            self._guests.record.note_leaving(known.spec)
            await known.destroy()
            self._guests.forget(known)
        elif self._hypervisor is not None and GUEST_NAME.fullmatch(guest):
            domain = await self._hypervisor.find_own(guest, self._timeouts.call_s)
            if domain is not None:
                await self._hypervisor.on_domain(guest, self._timeouts.call_s, lambda found: found.destroy())
        self._live.forget(guest)
        self.settled(guest)

    async def calibrate(self, cpu_s: float) -> float:
        """See `Driver.calibrate`; in a guest of its own, uncapped."""
        budget, hypervisor, image = self._opened()
        spec = own_guest(f"{budget.prefix}{budget.node}-calibrate-{os.getpid()}"[:63], image.floor_mib)
        guest = self._guests.new(spec, 1.0, budget, hypervisor)
        self._guests.add(guest)
        said: list[str] = []
        try:
            await self._create_domain(guest)
            pid = await guest.run(["/bin/eatcpu", "calibrate", f"{cpu_s:g}"], said.append)
            async with asyncio.timeout(20 * cpu_s + self._timeouts.order_s):
                await guest.exit_of(pid)
        except TimeoutError:
            raise DriverError(f"calibration in a guest did not end{guest.words()}") from None
        finally:
            await asyncio.shield(self._guests.give_up(guest))
        for line in said:
            name, _, value = line.partition("=")
            if name == "units_per_core_s":
                return float(value)
        raise DriverError(f"calibration in a guest printed {said}")

    async def refresh(self) -> None:
        """See `Driver.refresh`."""
        guests = list(self._guests.values())
        await asyncio.gather(*(guest.look() for guest in guests))
        if self._hypervisor is not None and self._platform.dirty_rates:
            writing = [guest.name for guest in guests if guest.spec.writes and guest.state is State.RUNNING]
            self._dirty_rates.refresh(self._hypervisor, writing)

    def sample(self) -> list[GuestSample]:
        """See `Driver.sample`; guests that have arrived by migration and wait to be adopted are `arrived`."""
        here = [
            msgspec.structs.replace(
                guest.sample(self._traffic.waits_s(guest.name)), dirty_mib_per_s=self._dirty_rates.of(guest.name)
            )
            for guest in list(self._guests.values())
        ]
        return here + self._live.arrived()

    async def guess_waits(self, guest: str, addresses: Sequence[str]) -> None:
        """See `GuessesWaits.guess_waits`: by the frames at the guest's tap, and the times of its virtual CPUs."""
        member = self._guests.known(guest)
        check_rank(member.spec)
        ranks, vcpus = ranks_at(addresses, member.spec.program.ranks), member.vcpus
        if not isinstance(vcpus, VcpuGroups):
            raise DriverError(f"guest {guest}: {WITHOUT['traffic']}")
        tap = tap_of(await member.on_domain(lambda domain: domain.XMLDesc()))
        await asyncio.to_thread(self._traffic.add, guest, vcpus, tap, ranks, lambda: member.state is State.RUNNING)

    def meter(self, guest: str) -> Meter:
        """See `Meters.meter`."""
        return self._guests.known(guest).meter()

    async def native(self, program: ProgramSpec, seconds: float, cap_cores: float) -> NativeReport:
        """See `Natives.native`; by the binaries of the guest image."""
        if self._native is None:
            raise DriverError(WITHOUT["native"])
        if program.name not in PROGRAMS:
            raise DriverError(f"{unknown(program.name, tuple(PROGRAMS))}; the guest image holds no others")
        return await self._native.run(program, seconds, cap_cores)

    # --- events of the hypervisor

    def domain_stopped(self, name: str) -> None:
        """See `Listener.domain_stopped`."""
        self._live.forget(name)
        if self._hypervisor is not None:
            self._guests.domain_stopped(name, self._hypervisor)

    def domain_arrived(self, name: str) -> None:
        """See `Listener.domain_arrived`."""
        self._live.domain_arrived(name)

    def domain_departs(self, name: str) -> None:
        """See `Listener.domain_departs`."""
        self._live.domain_departs(name)

    def job_completed(self, name: str, statistics: Mapping[str, int]) -> None:
        """See `Listener.job_completed`."""
        self._live.job_completed(name, statistics)

    def connection_back(self) -> None:
        """See `Listener.connection_back`."""
        if self._hypervisor is not None:
            self._guests.connection_back(self._hypervisor)

    # --- parts

    def _reached(self) -> tuple[NodeBudget, Hypervisor]:
        if self._budget is None or self._hypervisor is None:
            raise DriverError("the driver is not open")
        return self._budget, self._hypervisor

    def _opened(self) -> tuple[NodeBudget, Hypervisor, GuestImage]:
        if self._image is None:
            raise DriverError("the driver is not open")
        return (*self._reached(), self._image)


def _ignore(_guest: str, _at: int | None, _image: Path, _report: SaveReport) -> None:
    """Default of `on_saved`: a save ends with its agent or before the next agent begins, and is found by its image."""
