"""The agent: passes commands from the bus to the driver, and guest events from the driver to the bus."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from node_agent.abilities import Abilities
from node_agent.backlog import Backlog
from node_agent.bounds import Bounds
from node_agent.config import AgentConfig
from node_agent.drivers.protocol import (
    Driver,
    DriverError,
    DriverEvent,
    DriverFacts,
    MigrationReport,
    SaveReport,
    Served,
)
from node_agent.facts import node_facts
from node_agent.fencing import Fencing
from node_agent.guest_events import GuestEvents
from node_agent.guest_limits import GuestLimits
from node_agent.image_orders import ImageOrders
from node_agent.image_server import ImageServer
from node_agent.image_space import ImageSpace
from node_agent.image_starts import ImageStarts
from node_agent.image_tickets import Tickets
from node_agent.images import ImageCopier, ImageFetcher
from node_agent.kept_images import KeptImages
from node_agent.lease_watch import LeaseWatch
from node_agent.measuring import measure
from node_agent.need_watch import NeedWatch
from node_agent.presence import presence_of
from node_agent.residents import Residents
from node_agent.share_exchange import ShareExchange
from node_agent.speed import SpeedProbe
from node_agent.stores import ImageStores, rehearsed_path
from node_agent.survivors import Survivors
from node_agent.telemetry import GuestSampler, NodeSampler
from node_agent.telemetry_sender import Listener, TelemetrySender
from node_agent.verifier import Verifier
from testbed.bus import topics
from testbed.bus.answers import AnswerJournal
from testbed.bus.lease import LeaseGuard
from testbed.bus.messages import (
    Adopt,
    AnyAction,
    Calibrate,
    Cancel,
    Command,
    DropImage,
    ExpectGuest,
    FetchImage,
    GuestSpec,
    Hold,
    ListGuests,
    Migrate,
    MpiJoin,
    MpiPass,
    Native,
    NodeFacts,
    OfferImage,
    Ping,
    Quit,
    Release,
    RenewFences,
    Save,
    SetCaps,
    Start,
    Stop,
    Watch,
)
from testbed.bus.protocol import Bus, Presence
from testbed.bus.responder import Responder
from testbed.bus.suspicious_acts import FILE, Act, ActFile, ActLog, warn
from testbed.bus.telemetry import GuestSample
from testbed.bus.tls import client_context, server_context
from testbed.errors import FailureCode
from testbed.host.agents import SERVING

__all__ = ["Agent", "AgentConfig"]

_PAUSE_WITHIN_S = 20.0
_OF_ITS_CONTROLLER = (Start, MpiJoin, Hold, Watch, Native, Calibrate)  # commands that end with their controller
_log = logging.getLogger(__name__)


class Agent:
    """One node's agent. `run` returns after `stop`, a `Quit`, or cancellation, with every guest destroyed."""

    def __init__(self, config: AgentConfig, driver: Driver, connect: Callable[[Presence], Bus]) -> None:
        self._config = config
        self._driver = driver
        self._able = Abilities(driver)
        self._connect = connect
        self._boot = uuid.uuid4().hex
        self._stopping = asyncio.Event()
        self._doing: dict[asyncio.Task[Any], AnyAction] = {}
        self._residents = Residents(config.memory_mib)
        self._needs = NeedWatch()
        self._limits = GuestLimits(driver, self._able, self._residents)
        self._orphans: set[str] = set()  # guests of a dead controller, held until a command stops them
        self._verifier = Verifier()
        self._verifies = False
        self._lease = LeaseGuard(asyncio.get_running_loop().time)
        self._survivors = Survivors(driver, config.state_dir, self._lease)
        self._events = GuestEvents(config.lab, config.node, self._verifier, self._gone, self._survivors.settled)
        self._acts = ActLog(self._report_acts, now_s=asyncio.get_running_loop().time)
        self._guest_sampler = GuestSampler(driver.sample)
        self._backlog = Backlog(config.state_dir)
        self._bounds = Bounds(config.agent_memory_mib, self._events.put)
        self._simulated = driver.traits.simulated
        now_s = asyncio.get_running_loop().time
        self._fencing = Fencing(config.state_dir, now_s, self._destroy, self, driver, durable=not self._simulated)
        self._shares = ShareExchange(
            config.lab,
            config.node,
            config.cpus,
            config.state_dir,
            now_s,
            self._usage,
            self._limits.set_share,
            self._limits.move_cap,
        )
        self._stores = ImageStores(config.image_dir, durable=not self._simulated)
        self._kept_images = KeptImages(self._stores, self._holds)
        self._room = ImageSpace(self._stores.disk, config.image_budget_mib)
        tls_dir = config.tls_dir
        self._tickets = Tickets(asyncio.get_running_loop().time)
        tls = server_context(tls_dir) if tls_dir else None
        self._server = ImageServer(self._stores.complete, self._tickets, tls, self._acts)
        fetcher: ImageFetcher | ImageCopier = (
            ImageFetcher(self._stores.disk, client_context(tls_dir, "peers.pem") if tls_dir else None)
            if config.serve_images
            else ImageCopier(self._stores.disk, rehearsed_path)
        )
        self._images = ImageOrders(self._able, self._stores, self._room, fetcher, self._residents.__contains__)
        self._starts = ImageStarts(driver, self._able, self._stores)

    def stop(self) -> None:
        """Make `run` return."""
        self._stopping.set()

    async def run(self) -> None:
        """Open the driver, announce the node, serve until stopped; leave nothing behind."""
        config = self._config
        config.state_dir.mkdir(parents=True, exist_ok=True)
        try:
            self._survivors.prepare(config.keep_guests_s, self._saved)
            self._fencing.begin()
            found = await self._driver.open(config.budget, self._put)
            capabilities = self._able.found(found)
            self._shares.guess = None if self._able.counts_waits else self._limits.guess_waits
            self._room.stands_for_more = self._simulated
            self._verifies = "checksums" in capabilities
            survivors = self._survivors.found()
            caps_cores = {sample.guest: sample.wanted_cores or 0.0 for sample in self._guest_sampler.look()}
            self._shares.take_over(survivors, caps_cores)
            for spec in survivors:
                self._residents.found(spec)
                self._needs.begin(spec)
                self._verify(spec)
            if self._survivors.orphaned:
                await self._abandon("no lease is known")
            if config.serve_images:
                await self._server.open(config.address)
                await asyncio.to_thread(self._stores.open_memory, config.node)
            else:
                self._stores.rehearse_memory()
            self._kept_images.begin()
            facts = self._facts(found, capabilities)
            presence = presence_of(config.lab, config.node, self._boot, self._fencing.clock, facts)
            async with self._connect(presence) as bus:
                await self._serve(bus)
                await self._driver.close()  # before the bus: the farewell message is then true
        finally:
            await asyncio.shield(self._leave())

    def _put(self, driver_event: DriverEvent) -> None:
        self._events.put(self._fencing.judged(driver_event))

    async def _serve(self, bus: Bus) -> None:
        config = self._config
        listener = Listener(bus)
        self._events.open(bus, listener)
        lease = LeaseWatch(self._lease, self._kept_images.keep, self._abandon, self)

        async def on_lease(topic: str, payload: bytes) -> None:
            listener.heard()
            earlier = self._lease.name
            lease.hear(topic, payload)
            if self._lease.name not in ("", earlier):
                self._change_controller()
            self._survivors.keep_lease()

        await bus.subscribe(topics.release_topic(config.lab, topics.ANY), on_lease)
        await bus.subscribe(topics.lease_topic(config.lab), on_lease)
        with AnswerJournal(config.state_dir / "replies.jsonl") as journal:
            await self._obey(bus, listener, lease, journal)

    def _change_controller(self) -> None:
        """Another controller has the lease: it may have missed ends of guests, and awaits no reply to earlier commands.

        Saves, transfers and migrations continue, because they must not be interrupted.
        """
        self._events.ends.lost()
        for task, action in self._doing.items():
            if isinstance(action, _OF_ITS_CONTROLLER):
                task.cancel()

    async def _obey(self, bus: Bus, listener: Listener, lease: LeaseWatch, journal: AnswerJournal) -> None:
        config = self._config
        responder = Responder(
            bus, config.lab, config.node, self.perform, self._refuse, journal=journal, acts=self._acts
        )  # fmt: skip
        # the end of an earlier agent's lease is acted on before the first command of the next controller
        async with self._background(bus, listener, lease, responder), responder:
            _log.info(SERVING, config.node, config.lab)
            await self._stopping.wait()

    def _refuse(self, command: Command) -> str | None:
        """Return why a command is refused, or None."""
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
        await self._images.settle()
        leave_images = partial(self._kept_images.leave, in_force=self._lease.live)
        if self._config.serve_images:
            await asyncio.to_thread(leave_images)
            await asyncio.to_thread(self._stores.close)
        else:
            leave_images()

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
            asyncio.create_task(self._fencing.run(), name="fences"),
            asyncio.create_task(self._shares.run(bus), name="shares"),
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
        names = self._config.node, self._boot, self._fencing.clock
        daemons = self._driver.daemons() if isinstance(self._driver, Served) else ()
        sampler = NodeSampler(*names, loop.time, speed, self._room.free_mib, daemons)
        next_s = loop.time()
        while True:
            next_s = max(next_s + self._config.telemetry_s, loop.time())
            await asyncio.sleep(next_s - loop.time())
            await self._driver.refresh()
            self._bounds.look(loop.time())
            refused = responder.lost_replies + self._events.refused
            guests = self._guest_sampler.take()
            self._shares.notice(guests)
            guests = self._needs.estimated(self._shares.told(guests), loop.time())
            sender.put(sampler.sample(guests, self._backlog.dropped, refused, self._shares.counts))

    def held(self) -> set[str]:
        """See `Guests.held`."""
        return self._residents.names

    def _holds(self, run: str) -> bool:
        """Whether there are guests of a run."""
        return bool(self._residents.of_run(run))

    def lost(self, guest: str, why: str, code: FailureCode = FailureCode.LEASE_LOST) -> None:
        """See `Guests.lost`."""
        self._events.put_failed(guest, why, code)

    async def _abandon(self, why: str, *, pause: bool = False) -> None:
        """Destroy all guests, as there is no controller; with `pause`, hold and keep them for inspection.

        Commands in progress are cancelled first: a command that continued could create a guest after that.
        """
        self._events.ends.forget()
        if doing := set(self._doing):
            _log.warning("%s: cancelling %d commands", why, len(doing))
            for task in doing:
                task.cancel()
            await asyncio.wait(doing)
        self._tickets.clear()
        if not pause:  # before anything slow: the next controller may save soon
            self._kept_images.clear()
        there = {sample.guest for sample in self._guest_sampler.look()} | self._residents.names
        kept = self._residents.of_run(self._kept_images.kept)
        guests = sorted(there - self._orphans - kept)
        if guests:
            _log.warning("%s: %s %s", why, "pausing" if pause else "destroying", ", ".join(guests))
        await asyncio.gather(*(self._pause(guest) if pause else self._destroy(guest) for guest in guests))
        if not pause and not kept:
            self._fencing.clear()

    async def _pause(self, guest: str) -> None:
        """Hold a guest for good; destroy it if that fails, as it must not continue without a controller."""
        try:
            async with asyncio.timeout(_PAUSE_WITHIN_S), self._residents.lock(guest):
                await self._able.saving.hold(guest)
            self._orphans.add(guest)
        except (DriverError, TimeoutError) as error:
            _log.warning("guest %s cannot be paused: %s", guest, error)
            await self._destroy(guest)

    async def _destroy(self, guest: str) -> None:
        async with self._residents.lock(guest):
            certain = False
            try:
                await self._driver.stop(guest)
                certain = True
            except DriverError as error:
                _log.warning("guest %s: %s", guest, error)
            self._gone(guest, certain=certain)

    async def perform(self, action: AnyAction) -> dict[str, object]:
        """Carry out one command; returns plain data for the reply, raises `TestbedError`."""
        task = asyncio.current_task()
        if task is None or isinstance(action, Quit):
            return await self._perform(action)
        self._doing[task] = action
        try:
            await self._events.ends.again()  # an end must precede a reply that the guest is not here
            return await self._perform(action)
        finally:
            del self._doing[task]

    async def _perform(self, action: AnyAction) -> dict[str, object]:
        guest = action.spec.guest if isinstance(action, Start | Adopt) else getattr(action, "guest", None)
        if guest is None or isinstance(action, MpiPass):  # a join or a save of that guest waits for these actions
            await self._fencing.admit(action)
            return {} if isinstance(action, RenewFences) else await self._on_node(action)
        with self._fencing.doing(guest):
            async with self._residents.lock(guest):
                await self._fencing.admit(action)
                return {} if isinstance(action, ExpectGuest) else await self._on_guest(action)

    async def _on_node(self, action: AnyAction) -> dict[str, object]:
        match action:
            case Watch() | Native() | Calibrate():
                return await measure(action, self._driver, self._able, self._limits.set_cap)
            case SetCaps():
                caps = await self._shares.rebase(action.caps, action.exchange, lower=action.lower)
                return {"caps": {guest: await self._limits.set_cap(guest, cores) for guest, cores in caps.items()}}
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
            async with self._residents.lock(guest):
                pass
        left_saved = -1
        while left_saved != self._images.left_saved:  # else a guest that leaves meanwhile is in neither list
            left_saved = self._images.left_saved
            await self._images.find_all()
            images = await self._stores.do(self._stores.all)
            guests = [msgspec.to_builtins(sample) for sample in self._guest_sampler.look()]
        await self._events.settle()  # the end of a guest that is not listed is published before this reply
        return {"guests": guests, "images": images, **self._fencing.reading()}

    async def _usage(self) -> list[GuestSample]:
        """Return the usage of all guests as it is now."""
        await self._driver.refresh()
        return self._guest_sampler.look()

    async def _on_guest(self, action: AnyAction) -> dict[str, object]:
        match action:
            case Start():
                return await self._start(action)
            case MpiJoin():
                await self._able.joining.mpi_join(action.guest, action.session)
            case Hold():
                held = await self._images.hold(action, self._residents.memory_mib(action.guest))
                return {"wall_ns": time.time_ns(), **held}
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
                await self._images.drop_partial(action.guest)
            case Cancel() | _:
                raise DriverError(f"{type(action).__name__} is not a command for a guest")
        return {}

    async def _leaves(self, action: Save | Migrate) -> dict[str, object]:
        report: SaveReport | MigrationReport
        if isinstance(action, Migrate):
            report = await self._able.migrating.migrate(action.guest, action.to, action.budget_s, action.no_progress_s)
            self._gone(action.guest)
        else:
            gone = partial(self._gone, action.guest)
            report = await self._images.save(action, self._residents.memory_mib(action.guest), gone)
        self._survivors.settled(action.guest)
        return asdict(report)

    def _saved(self, guest: str, at: int | None, image: Path, report: SaveReport) -> None:
        """See `Outlives.on_saved`."""
        self._gone(guest)
        self._images.complete(guest, at, image, report).add_done_callback(partial(self._noted, guest))

    def _noted(self, guest: str, noting: asyncio.Task[None]) -> None:
        error = None if noting.cancelled() else noting.exception()
        if error is not None:
            self.lost(guest, f"it was saved, but {error}", FailureCode.SAVE_FAILED)
        elif not noting.cancelled():
            self._survivors.settled(guest)

    async def _start(self, action: Start) -> dict[str, object]:
        spec = msgspec.structs.replace(action.spec, lease=self._lease.name)
        if spec.guest in self._residents:
            raise DriverError(f"guest {spec.guest} is there already")
        self._able.check_start(spec, action.exchange)
        self._residents.add(spec)
        try:
            self._shares.begin(spec, action.exchange, action.cap_cores)
            found = await self._starts.start(spec, action.cap_cores, action.image, cold=action.cold)
        except BaseException:
            self._gone(spec.guest, certain=False)
            with contextlib.suppress(DriverError):
                await self._driver.stop(spec.guest)
                self._fencing.gone(spec.guest)
            raise
        self._needs.begin(spec)
        if action.verify:
            self._verify(spec)
        return {} if found is None else {"cached_frac": found}

    async def _adopt(self, action: Adopt) -> None:
        spec = msgspec.structs.replace(action.spec, lease=self._lease.name)
        if spec.guest in self._residents:  # the reply was lost and the request repeated
            await self._shares.rebase({spec.guest: action.cap_cores}, None, lower=False)
            await self._driver.set_cap(spec.guest, action.cap_cores)
            return
        self._residents.add(spec)
        try:
            self._shares.begin(spec, None, action.cap_cores)
            await self._able.migrating.adopt(spec, action.cap_cores)
        except BaseException:
            self._gone(spec.guest, certain=False)  # it is not destroyed: it may be the only copy
            raise
        self._needs.begin(spec)
        if action.verify:
            self._verify(spec)

    def _verify(self, spec: GuestSpec) -> None:
        if self._verifies and spec.guest in self._residents:  # else it has ended already
            self._verifier.begin(spec)

    def _gone(self, guest: str, *, certain: bool = True) -> None:
        if certain:
            self._fencing.gone(guest)
        self._shares.gone(guest)
        self._needs.gone(guest)
        self._residents.remove(guest)
        self._events.ends.gone(guest)
        self._room.release(guest)
        self._orphans.discard(guest)
        self._verifier.forget(guest)
