"""The agent: passes commands from the bus to the driver, and guest events from the driver to the bus."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from node_agent.abilities import Abilities, meter_of
from node_agent.backlog import Backlog
from node_agent.bounds import Bounds, bound_own_group
from node_agent.drivers.protocol import (
    PREFIX,
    Driver,
    DriverError,
    DriverFacts,
    Meters,
    MigrationReport,
    NodeBudget,
    SaveReport,
)
from node_agent.facts import node_facts
from node_agent.guest_events import GuestEvents
from node_agent.image_orders import ImageOrders
from node_agent.image_server import ImageServer
from node_agent.image_space import ImageSpace
from node_agent.image_starts import ImageStarts
from node_agent.image_tickets import Tickets
from node_agent.images import ImageCopier, ImageFetcher
from node_agent.kept_images import KeptImages
from node_agent.lease_watch import LeaseWatch
from node_agent.speed import SpeedProbe
from node_agent.stores import ImageStores, rehearsed_path
from node_agent.telemetry import GuestSampler, NodeSampler
from node_agent.telemetry_sender import Listener, TelemetrySender
from node_agent.verifier import Verifier
from node_agent.watch import check, watch
from testbed import __version__
from testbed.bus import topics
from testbed.bus.answers import AnswerJournal
from testbed.bus.lease import LeaseGuard
from testbed.bus.messages import (
    MOST_NATIVE_RANKS,
    Adopt,
    AnyAction,
    Calibrate,
    Cancel,
    Command,
    DropImage,
    FetchImage,
    GuestSpec,
    Hold,
    ListGuests,
    Migrate,
    MpiJoin,
    MpiPass,
    Native,
    NodeFacts,
    NodeStatus,
    OfferImage,
    Ping,
    Quit,
    Release,
    Save,
    SetCaps,
    Start,
    Stop,
    Watch,
    encode,
)
from testbed.bus.protocol import Bus, Presence
from testbed.bus.responder import Responder
from testbed.bus.suspicious_acts import FILE, Act, ActFile, ActLog, warn
from testbed.bus.tls import client_context, server_context
from testbed.errors import FailureCode
from testbed.host.agents import SERVING

_PAUSE_WITHIN_S = 20.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Settings of a node, given when its agent starts."""

    lab: str
    node: str
    cpus: float
    memory_mib: int
    state_dir: Path
    image_dir: Path
    address: str = "127.0.0.1"
    telemetry_s: float = 1.0
    tls_dir: Path | None = None  # of this agent's certificate: images travel by TLS then
    serve_images: bool = True  # over TCP; else `address` is the image folder, which the other nodes can read
    image_budget_mib: int = 0  # of all images on its disk together; 0: no budget
    agent_memory_mib: int = 0  # most memory of the agent itself; 0: no bound

    @property
    def budget(self) -> NodeBudget:
        """The budget of its driver."""
        return NodeBudget(
            self.node, self.cpus, self.memory_mib, self.state_dir, self.image_dir, self.address, PREFIX
        )  # fmt: skip


class Agent:
    """One node's agent. `run` returns after `stop`, a `Quit`, or cancellation, with every guest destroyed."""

    def __init__(self, config: AgentConfig, driver: Driver, connect: Callable[[Presence], Bus]) -> None:
        self._config = config
        self._driver = driver
        self._able = Abilities(driver)
        self._connect = connect
        self._boot = uuid.uuid4().hex
        self._stopping = asyncio.Event()
        self._locks: dict[str, asyncio.Lock] = {}
        self._doing: set[asyncio.Task[Any]] = set()
        self._memory_mib: dict[str, int] = {}
        self._orphans: set[str] = set()  # guests of a dead controller, held until a command stops them
        self._verifier = Verifier()
        self._verifies = False
        self._events = GuestEvents(config.lab, config.node, self._verifier, self._gone)
        self._lease = LeaseGuard(asyncio.get_running_loop().time)
        self._acts = ActLog(self._report_acts, now_s=asyncio.get_running_loop().time)
        self._guest_sampler = GuestSampler(driver.sample)
        self._backlog = Backlog(config.state_dir)
        self._bounds = Bounds(config.agent_memory_mib, self._events.put)
        self._simulated = driver.traits.simulated
        self._stores = ImageStores(config.image_dir)
        self._kept_images = KeptImages(self._stores, config.state_dir)
        self._room = ImageSpace(self._stores.disk, config.image_budget_mib)
        tls_dir = config.tls_dir
        self._tickets = Tickets(asyncio.get_running_loop().time)
        tls = server_context(tls_dir) if tls_dir else None
        self._server = ImageServer(self._stores.path, self._tickets, tls, self._acts)
        fetcher: ImageFetcher | ImageCopier = (
            ImageFetcher(self._stores.disk, client_context(tls_dir, "peers.pem") if tls_dir else None)
            if config.serve_images
            else ImageCopier(self._stores.disk, rehearsed_path)
        )
        self._images = ImageOrders(self._able, self._stores, self._room, fetcher)
        self._starts = ImageStarts(driver, self._able, self._stores)

    def stop(self) -> None:
        """Make `run` return."""
        self._stopping.set()

    async def run(self) -> None:
        """Open the driver, announce the node, serve until stopped; leave nothing behind."""
        config = self._config
        config.state_dir.mkdir(parents=True, exist_ok=True)
        try:
            found = await self._driver.open(config.budget, self._events.put)
            capabilities = self._able.found(found)
            self._room.stands_for_more = self._simulated
            self._verifies = "checksums" in capabilities
            if config.serve_images:
                await self._server.open(config.address)
                await asyncio.to_thread(self._stores.open_memory, config.node)
                await asyncio.to_thread(bound_own_group, config.agent_memory_mib, config.memory_mib)
            else:
                self._stores.rehearse_memory()
            self._kept_images.begin()
            facts = self._facts(found, capabilities)
            async with self._connect(self._presence(facts)) as bus:
                await self._serve(bus)
                await self._driver.close()  # before the bus: the farewell message is then true
        finally:
            await asyncio.shield(self._leave())

    async def _serve(self, bus: Bus) -> None:
        config = self._config
        listener = Listener(bus)
        self._events.open(bus, listener)
        lease = LeaseWatch(self._lease, self._kept_images.keep, self._abandon, self)

        async def on_lease(topic: str, payload: bytes) -> None:
            listener.heard()
            lease.hear(topic, payload)

        await bus.subscribe(topics.release_topic(config.lab, topics.ANY), on_lease)
        await bus.subscribe(topics.lease_topic(config.lab), on_lease)
        with AnswerJournal(config.state_dir / "replies.jsonl") as journal:
            await self._obey(bus, listener, lease, journal)

    async def _obey(self, bus: Bus, listener: Listener, lease: LeaseWatch, journal: AnswerJournal) -> None:
        config = self._config
        responder = Responder(
            bus, config.lab, config.node, self.perform, self._refuse, journal=journal, acts=self._acts
        )  # fmt: skip
        async with responder, self._background(bus, listener, lease, responder):
            _log.info(SERVING, config.node, config.lab)
            await self._stopping.wait()

    def _refuse(self, command: Command) -> str | None:
        """Say why a command is not to be obeyed, or None."""
        if not self._lease.allows(command.lease):
            return "its lease is not the one in force here"
        return self._bounds.refusal(command.action)

    def _report_acts(self, acts: Sequence[Act]) -> None:
        warn(acts)
        ActFile(self._config.state_dir / FILE).append(acts)

    async def _leave(self) -> None:
        self._acts.flush()
        self._verifier.close()
        await self._server.close()
        await self._driver.close()
        leave_images = partial(self._kept_images.leave, in_force=self._lease.live)
        if self._config.serve_images:
            await asyncio.to_thread(leave_images)
            await asyncio.to_thread(self._stores.close)
        else:
            leave_images()

    def _presence(self, facts: NodeFacts) -> Presence:
        node = self._config.node

        def status(*, online: bool, reason: str = "", left: bool = False) -> bytes:
            told = facts if online else None
            return encode(
                NodeStatus(
                    node=node, online=online, boot=self._boot, facts=told, reason=reason, left=left, release=__version__
                )
            )  # fmt: skip

        return Presence(
            topic=topics.node_topic(self._config.lab, node, "status"),
            online=lambda: status(online=True),
            offline=status(online=False, reason="its agent ended", left=True),
            lost=status(online=False, reason="its agent vanished"),
        )

    @contextlib.asynccontextmanager
    async def _background(
        self, bus: Bus, listener: Listener, lease: LeaseWatch, responder: Responder
    ) -> AsyncIterator[None]:
        topic = topics.node_topic(self._config.lab, self._config.node, "telemetry")
        sender = TelemetrySender(bus, topic, self._backlog, listener)
        self._backlog.open()
        self._bounds.relieve = sender.set_aside
        tasks = [
            asyncio.create_task(self._report(sender, responder), name="telemetry"),
            asyncio.create_task(sender.run(), name="sender"),
            asyncio.create_task(self._events.run(bus, listener), name="guest events"),
            asyncio.create_task(self._events.ends.run(listener.ready), name="ends of guests"),
            asyncio.create_task(lease.run(), name="lease"),
        ]
        for task in tasks:
            task.add_done_callback(self._background_ended)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._backlog.close()

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s failed", task.get_name(), exc_info=task.exception())
            self.stop()

    def _facts(self, found: DriverFacts, capabilities: tuple[str, ...]) -> NodeFacts:
        free_mib = self._room.free_mib()
        return node_facts(
            self._config.budget, self._driver, found, capabilities, self._stores, self._server.port, free_mib
        )  # fmt: skip

    async def _report(self, sender: TelemetrySender, responder: Responder) -> None:
        loop = asyncio.get_running_loop()
        speed = None if self._simulated else SpeedProbe()
        sampler = NodeSampler(self._config.node, self._boot, loop.time, speed, self._room.free_mib)
        next_s = loop.time()
        while True:
            next_s = max(next_s + self._config.telemetry_s, loop.time())
            await asyncio.sleep(next_s - loop.time())
            await self._driver.refresh()
            self._bounds.look(loop.time())
            refused = responder.lost_replies + self._events.refused
            sender.put(sampler.sample(self._guest_sampler.take(), self._backlog.dropped, refused))

    def held(self) -> set[str]:
        """See `Guests.held`."""
        return set(self._memory_mib)

    def lost(self, guest: str, why: str) -> None:
        """See `Guests.lost`."""
        self._events.put_failed(guest, why, FailureCode.LEASE_LOST)

    async def _abandon(self, why: str, *, pause: bool = False) -> None:
        """Without a controller, destroy all guests; with `pause`, hold and keep them for inspection.

        Commands under way are given up first: one that went on could leave a guest behind after all were destroyed.
        """
        self._events.ends.forget()
        if doing := set(self._doing):
            _log.warning("%s: giving up %d commands", why, len(doing))
            for task in doing:
                task.cancel()
            await asyncio.wait(doing)
        self._tickets.clear()
        if not pause:  # before anything slow: the next controller may save soon
            self._stores.clear()
        there = {sample.guest for sample in self._guest_sampler.look()} | set(self._memory_mib)
        guests = sorted(there - self._orphans)
        if guests:
            _log.warning("%s: %s %s", why, "pausing" if pause else "destroying", ", ".join(guests))
        await asyncio.gather(*(self._pause(guest) if pause else self._destroy(guest) for guest in guests))

    async def _pause(self, guest: str) -> None:
        """Hold a guest for good; one that cannot be held is destroyed, as it must not go on by itself."""
        try:
            async with asyncio.timeout(_PAUSE_WITHIN_S), self._locks.setdefault(guest, asyncio.Lock()):
                await self._able.saving.hold(guest)
            self._orphans.add(guest)
        except (DriverError, TimeoutError) as error:
            _log.warning("guest %s cannot be paused: %s", guest, error)
            await self._destroy(guest)

    async def _destroy(self, guest: str) -> None:
        async with self._locks.setdefault(guest, asyncio.Lock()):
            try:
                await self._driver.stop(guest)
            except DriverError as error:
                _log.warning("guest %s: %s", guest, error)
            self._gone(guest)

    async def perform(self, action: AnyAction) -> dict[str, object]:
        """Do one command; returns plain data for the reply, raises `TestbedError`."""
        task = asyncio.current_task()
        if task is None or isinstance(action, Quit):
            return await self._perform(action)
        self._doing.add(task)
        try:
            await self._events.ends.again()  # before a reply that a guest is not here
            return await self._perform(action)
        finally:
            self._doing.discard(task)

    async def _perform(self, action: AnyAction) -> dict[str, object]:
        guest = action.spec.guest if isinstance(action, Start | Adopt) else getattr(action, "guest", None)
        if guest is None or isinstance(action, MpiPass):  # a join or a save of that guest waits for these actions
            return await self._on_node(action)
        lock = self._locks.setdefault(guest, asyncio.Lock())
        async with lock:
            return await self._on_guest(action)

    async def _on_node(self, action: AnyAction) -> dict[str, object]:
        match action:
            case Watch() | Native() | Calibrate():
                return await self._measure(action)
            case SetCaps():
                return {"caps": {guest: await self._set_cap(guest, cores) for guest, cores in action.caps.items()}}
            case OfferImage():
                self._tickets.offer(action)
            case FetchImage():
                return await self._images.fetch(action)
            case DropImage():
                self._stores.drop(action.image)
            case MpiPass():
                await self._pass(action)
            case ListGuests():
                return await self._list(action)
            case Ping():
                return {"mono_ns": time.monotonic_ns()}
            case Quit():
                self.stop()
            case _:
                raise DriverError(f"{type(action).__name__} is not a command for a node")
        return {}

    async def _pass(self, action: MpiPass) -> None:
        await self._able.joining.mpi_pass(action.guest, action.session, action.number, action.keys, last=action.last)
        if action.last:
            self._events.ends.passed(action.guest, action.session, action.number)

    async def _list(self, action: ListGuests) -> dict[str, object]:
        for guest in action.settled:
            async with self._locks.setdefault(guest, asyncio.Lock()):
                pass
        guests = [msgspec.to_builtins(sample) for sample in self._guest_sampler.look()]
        return {"guests": guests, "images": self._stores.all()}

    async def _measure(self, action: Watch | Native | Calibrate) -> dict[str, object]:
        if isinstance(action, Native):
            if action.program.ranks > MOST_NATIVE_RANKS:
                raise DriverError(f"native: {action.program.ranks} ranks: expected at most {MOST_NATIVE_RANKS}")
            return asdict(await self._able.running_native.native(action.program, action.seconds, action.cap_cores))
        if isinstance(action, Calibrate):
            return {"units_per_core_s": await self._driver.calibrate(action.cpu_s)}
        check(action)
        meters = {guest: meter_of(self._driver, guest) for guest in action.guests}
        in_loop = self._simulated or not isinstance(self._driver, Meters)
        return await watch(action, meters, self._set_cap, in_loop=in_loop)

    async def _set_cap(self, guest: str, cores: float) -> float:
        async with self._locks.setdefault(guest, asyncio.Lock()):
            return await self._driver.set_cap(guest, cores)

    async def _on_guest(self, action: AnyAction) -> dict[str, object]:
        match action:
            case Start():
                return await self._start(action)
            case MpiJoin():
                await self._able.joining.mpi_join(action.guest, action.session)
            case Hold():
                at = await self._images.hold(action, self._memory_mib.get(action.guest, 0))
                return {"at": at, "wall_ns": time.time_ns()}
            case Release():
                self._room.release(action.guest)
                await self._able.saving.release(action.guest)
                return {"wall_ns": time.time_ns()}
            case Save() | Migrate():
                return await self._leaves(action)
            case Adopt():
                await self._adopt(action)
            case Stop():
                await self._driver.stop(action.guest)
                self._gone(action.guest)
            case Cancel() | _:
                raise DriverError(f"{type(action).__name__} is not a command for a guest")
        return {}

    async def _leaves(self, action: Save | Migrate) -> dict[str, object]:
        report: SaveReport | MigrationReport
        if isinstance(action, Migrate):
            report = await self._able.migrating.migrate(action.guest, action.to, action.budget_s, action.no_progress_s)
        else:
            report = await self._images.save(action, self._memory_mib.get(action.guest, 0))
        self._gone(action.guest)
        return asdict(report)

    async def _start(self, action: Start) -> dict[str, object]:
        spec = msgspec.structs.replace(action.spec, lease=self._lease.name)
        if spec.guest in self._memory_mib:
            raise DriverError(f"guest {spec.guest} is there already")
        self._able.check_start(spec.program.ranks)
        self._reserve(spec)
        try:
            found = await self._starts.start(spec, action.cap_cores, action.image, cold=action.cold)
        except BaseException:
            self._gone(spec.guest)
            with contextlib.suppress(DriverError):
                await self._driver.stop(spec.guest)
            raise
        if action.verify:
            self._verify(spec)
        return {} if found is None else {"cached_frac": found}

    async def _adopt(self, action: Adopt) -> None:
        spec = msgspec.structs.replace(action.spec, lease=self._lease.name)
        if spec.guest in self._memory_mib:  # the reply was lost and the request repeated
            await self._driver.set_cap(spec.guest, action.cap_cores)
            return
        self._reserve(spec)
        try:
            await self._able.migrating.adopt(spec, action.cap_cores)
        except BaseException:
            self._gone(spec.guest)  # it is not destroyed: it may be the only copy
            raise
        if action.verify:
            self._verify(spec)

    def _verify(self, spec: GuestSpec) -> None:
        if self._verifies and spec.guest in self._memory_mib:  # else it has ended already
            self._verifier.begin(spec)

    def _gone(self, guest: str) -> None:
        self._memory_mib.pop(guest, None)
        self._events.ends.gone(guest)
        self._room.release(guest)
        self._orphans.discard(guest)
        self._verifier.forget(guest)

    def _reserve(self, spec: GuestSpec) -> None:
        used_mib = sum(self._memory_mib.values())
        if used_mib + spec.memory_mib > self._config.memory_mib:
            raise DriverError(
                f"guest {spec.guest} needs {spec.memory_mib} MiB; {self._config.memory_mib - used_mib} of "
                f"{self._config.memory_mib} MiB are free"
            )
        self._memory_mib[spec.guest] = spec.memory_mib
