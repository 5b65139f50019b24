"""Operations on a whole job (start, cap, hold, save, transfer, stop), as commands to the guests on all its nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from testbed.bus.caps import same_cap
from testbed.bus.lease import new_token, token_digest
from testbed.bus.messages import (
    Adopt,
    DropImage,
    Exchange,
    Fence,
    FetchImage,
    GuestSpec,
    ImageRef,
    ListGuests,
    MpiJoin,
    OfferImage,
    Release,
    SetCaps,
    Start,
    Stop,
)
from testbed.bus.numbers import Cores, Count, Fraction
from testbed.bus.requests import CommandError, DeadlineError
from testbed.bus.telemetry import GuestSample
from testbed.errors import RunError, TestbedError
from testbed.lab.fences import FenceBook, Place
from testbed.lab.guest_specs import cap_at
from testbed.lab.job_commands import JobCommands, in_parallel, release_of, skew_s
from testbed.lab.job_guests import JobGuests
from testbed.lab.mpi_exchange import MpiExchange
from testbed.lab.node_facts import check_fetch
from testbed.lab.replies import Guests, Nodes, ReplyError
from testbed.lab.saving import Saving
from testbed.lab.sharing import Sharing
from testbed.scenario.schema import DeadlinesTable

_HELD = "held"  # the state of a guest in samples of all drivers


class _Started(msgspec.Struct):
    cached_frac: Fraction | None = None


class _Released(msgspec.Struct):
    wall_ns: Count = 0


class _Caps(msgspec.Struct):
    caps: dict[str, Cores]


class Operations:
    """Operations on the jobs of one run, in terms of nodes and guests, without a policy or a ledger.

    With `fences` guests have fences, which must be renewed. With `sharing` they exchange shares.
    """

    def __init__(
        self, nodes: Nodes, deadlines: DeadlinesTable, fences: FenceBook | None = None, sharing: Sharing | None = None
    ) -> None:
        self._sharing = sharing
        self._commands = JobCommands(nodes, deadlines)
        self._saving = Saving(self._commands, self._all_there, self.drop_images)
        self._nodes = nodes
        self._fences = fences
        self._deadlines = deadlines
        self._mpi = MpiExchange(nodes, deadlines.command_s)
        nodes.on_mpi_barrier = self._mpi.hear

    def take_over(self, live: JobGuests) -> None:
        """Serve the MPI barriers of a running job that an earlier controller has started."""
        if live.specs[0].program.ranks > 1:
            self._mpi.take_over(live)

    def let_pass(self, live: JobGuests) -> None:
        """Call this after the end of a rank of a job; see `MpiExchange.let_pass`."""
        self._mpi.let_pass(live)

    def fence(self, node: int, guest: str) -> Fence | None:
        """Return the first fence of a guest on a node, None if guests have no fences. Raises `RunError`."""
        if self._fences is None:
            return None
        fence = self._fences.grant(node, [guest])
        if fence is None:
            raise RunError(f"node {self._nodes.name(node)}: no reading of its clock is known, which a fence needs")
        return fence

    async def start(
        self,
        live: JobGuests,
        nodes: Sequence[int],
        yield_frac: float,
        images: Sequence[ImageRef],
        *,
        cold: bool = False,
    ) -> dict[str, float]:
        """Create all guests, from `images` (by task) if there are any; after a failure no guest is left.

        Returns `release_skew_s` if whole guests were restored and released in parallel, and `cached_frac`, the fraction
        of the images that was in the page cache before, if it is known. `cold` images are dropped from the page cache.
        """
        try:
            return await self._start(live, nodes, yield_frac, images, cold=cold)
        except BaseException:
            await asyncio.shield(self.stop(live, nodes))
            raise

    async def _start(
        self, live: JobGuests, nodes: Sequence[int], yield_frac: float, images: Sequence[ImageRef], *, cold: bool
    ) -> dict[str, float]:
        deadline_s = self._commands.bulk_s(live.memory_mib)
        exchange = None if self._sharing is None else self._sharing.order(live, nodes)
        replies = await in_parallel(
            [
                self._commands.ask(
                    node,
                    Start(
                        spec=spec,
                        cap_cores=cap_at(spec, yield_frac),
                        image=images[spec.task] if images else None,
                        cold=cold,
                        verify=live.verified,
                        fence=self.fence(node, spec.guest),
                        exchange=exchange,
                    ),
                    _Started,
                    deadline_s,
                )
                for node, spec in zip(nodes, live.present_specs, strict=True)
            ]
        )
        cached = [reply.cached_frac for reply in replies if reply.cached_frac is not None]
        told = {"cached_frac": min(cached)} if cached else {}
        lead = live.specs[0]
        if images and all("whole" in self._nodes.facts(node).capabilities for node in nodes):
            released = await in_parallel(
                [
                    self._commands.ask(
                        node, Release(guest=guest, generation=live.generation), _Released, self._deadlines.command_s
                    )
                    for node, guest in zip(nodes, live.guests, strict=True)
                ]
            )
            return {"release_skew_s": skew_s([reply.wall_ns for reply in released]), **told}
        if lead.program.ranks > 1:
            await self._join(live, nodes, deadline_s)
        return told

    async def _join(self, live: JobGuests, nodes: Sequence[int], deadline_s: float) -> None:
        """Start the ranks of an MPI job; raises `MpiError` for a node that violates the protocol of barriers."""
        with self._mpi.start(live) as session:
            joins = asyncio.ensure_future(
                in_parallel(
                    [
                        self._nodes.call(
                            node, MpiJoin(guest=guest, session=session.name, generation=live.generation), deadline_s
                        )
                        for node, guest in zip(nodes, live.guests, strict=True)
                    ]
                )
            )
            try:
                await asyncio.wait((joins, session.failure), return_when=asyncio.FIRST_COMPLETED)
                if session.failure.done():
                    session.failure.result()
                await joins
            except CommandError as error:
                late = isinstance(error, DeadlineError) or (error.reply is not None and error.reply.status == "expired")
                waits_for = session.missing()
                if not late or len(waits_for) == len(live.specs):
                    raise
                number = session.barriers.released + 1
                raise RunError(f"{error}; in MPI barrier {number} all wait for {', '.join(waits_for)}") from error
            finally:
                joins.cancel()
                await asyncio.gather(joins, return_exceptions=True)

    @property
    def divides(self) -> bool:
        """Whether guests of a job divide its yield among themselves, so that caps differ from those of the yield."""
        return self._sharing is not None and self._sharing.capped

    async def set_cap(self, live: JobGuests, yield_frac: float) -> dict[int, float]:
        """Set the caps of a job's guests; return the caps in force by task, in cores, as read back.

        The cap in force of a held guest may differ from the requested one: see `SetCaps`. Guests that divide the yield
        are first all lowered to the new yield, and only then start a new exchange. So the sum of their caps is never
        more than that of either yield.
        """
        exchange = None
        if self._sharing is not None and self.divides:
            exchange = self._sharing.order(live, live.state.running_on or ())
        if exchange is not None:
            await self._set_caps(live, yield_frac, lower=True)
        return await self._set_caps(live, yield_frac, exchange)

    async def end_dividing(self, live: JobGuests, yield_frac: float) -> None:
        """Lower guests that divide a yield to `yield_frac`, and stop their exchange until the next `set_cap`."""
        if self.divides and len(live.specs) > 1:
            await self._set_caps(live, yield_frac, lower=True)

    async def _set_caps(
        self, live: JobGuests, yield_frac: float, exchange: Exchange | None = None, *, lower: bool = False
    ) -> dict[int, float]:  # fmt: skip
        by_node: dict[int, dict[str, float]] = {}
        for node, spec in self._placed(live):
            by_node.setdefault(node, {})[spec.guest] = cap_at(spec, yield_frac)
        orders = {
            node: SetCaps(caps=caps, generations=dict.fromkeys(caps, live.generation), exchange=exchange, lower=lower)
            for node, caps in by_node.items()
        }
        replies = await in_parallel(
            [self._commands.ask(node, order, _Caps, self._deadlines.command_s) for node, order in orders.items()]
        )
        read_back: dict[str, float] = {}  # of each guest, by its own node
        for (node, order), reply in zip(orders.items(), replies, strict=True):
            for guest in order.caps:
                if guest not in reply.caps:
                    expected = f"expected the cap of guest {guest} that is in force"
                    raise ReplyError(self._nodes.name(node), order, "caps", reply.caps, expected)
                read_back[guest] = reply.caps[guest]
        return {spec.task: read_back[spec.guest] for spec in live.specs}

    async def set_running_cap(self, live: JobGuests, yield_frac: float) -> dict[int, float]:
        """Set the caps of running guests; raises `RunError` if a cap in force differs from the requested one.

        The caps are those of the present needs; a need that changes meanwhile is of the next decision.
        """
        placed = self._placed(live)
        caps = await self.set_cap(live, yield_frac)
        for node, spec in placed:
            wanted, found = cap_at(spec, yield_frac), caps[spec.task]
            if not same_cap(found, wanted, float(spec.program.workers)):
                raise RunError(
                    f"node {self._nodes.name(node)}: the cap of guest {spec.guest} is {found:g} cores after it was "
                    f"set: expected {wanted:g} cores"
                )
        return caps

    async def samples(self, live: JobGuests, nodes: Iterable[int]) -> dict[str, GuestSample]:
        """Return the last samples of a job's guests on the given nodes, by guest name."""
        asked = await in_parallel([self.there(node) for node in sorted(set(nodes))])
        names = set(live.guests)
        return {sample.guest: sample for there in asked for sample in there.guests if sample.guest in names}

    async def adopt(self, live: JobGuests, samples: Mapping[str, GuestSample], yield_frac: float) -> None:
        """Take over the guests of a job that an earlier controller has started, as far as they are in `samples`.

        Their caps are set, and held guests continue. Guests that divide the yield of their job start a new exchange.
        """
        placed = [(node, spec) for node, spec in self._placed(live) if spec.guest in samples]
        await in_parallel([self._adopt(live, node, spec, yield_frac) for node, spec in placed])
        held = [(node, spec) for node, spec in placed if samples[spec.guest].state == _HELD]
        await in_parallel([self._nodes.call(node, release_of(spec), self._deadlines.command_s) for node, spec in held])
        if self.divides and len(placed) == len(live.specs):
            await self.set_cap(live, yield_frac)

    async def _adopt(self, live: JobGuests, node: int, spec: GuestSpec, yield_frac: float) -> None:
        order = Adopt(
            spec=spec, cap_cores=cap_at(spec, yield_frac), verify=live.verified, fence=self.fence(node, spec.guest)
        )
        try:
            await self._nodes.call(node, order, self._deadlines.command_s)
        except CommandError:
            if spec.task not in live.state.finished_tasks:  # else the guest has ended successfully before this command
                raise

    async def hold(self, live: JobGuests) -> float:
        """Hold all guests of a running job; return the time between the first and the last stop, in seconds."""
        return skew_s([held.wall_ns for held in await self._saving.hold(self._placed(live))])

    async def release(self, live: JobGuests) -> None:
        """Release all held guests."""
        orders = [(node, release_of(spec)) for node, spec in self._placed(live)]
        await in_parallel([self._nodes.call(*order, self._deadlines.command_s) for order in orders])

    def _placed(self, live: JobGuests) -> list[tuple[int, GuestSpec]]:
        if live.state.running_on is None:
            raise RunError(f"job {live.job_id} does not run")
        return list(zip(live.state.running_on, live.present_specs, strict=True))

    async def save(
        self,
        live: JobGuests,
        names: Sequence[str],
        on_phase: Callable[[str, dict[str, float]], None],
        store: str = "",
    ) -> tuple[ImageRef, ...]:
        """Make a coordinated checkpoint: stop all guests at one consistent point, write them in parallel, free memory.

        `names` are the names of the images, by task. `store` is the name of the image store on each node; the empty
        name is the default store. Raises `NoRoomThereError` if a node has no disk space and no guest was saved: then
        all guests continue.

        An interrupted save is continued by a save with the same names: guests that it has saved stay saved, and the
        others are saved at the same point.
        """
        return await self._saving.save(live, self._placed(live), names, on_phase, store)

    async def _all_there(self, placed: Sequence[tuple[int, GuestSpec]]) -> bool:
        """Return whether all guests certainly still exist, after cancelled saves have ended."""
        by_node: dict[int, list[str]] = {}
        for node, spec in placed:
            by_node.setdefault(node, []).append(spec.guest)
        try:
            held = await in_parallel([self.guests_at(node, tuple(guests)) for node, guests in by_node.items()])
        except TestbedError:
            return False
        there = {guest for guests, _ in held for guest in guests}
        return there.issuperset(spec.guest for _, spec in placed)

    async def transfer(
        self, live: JobGuests, images: Sequence[ImageRef], nodes: Sequence[int], sources: Sequence[int] = ()
    ) -> int:  # fmt: skip
        """Copy the images of tasks that move to their new nodes; return the bytes sent. The source images stay.

        The images are copied from `sources`, by default from the nodes from which the job would be restored. A node
        that is its own source needs no copy. Raises `NoRoomThereError` if a node has no disk space for them.
        """
        if live.state.saved_on is None:
            raise RunError(f"job {live.job_id} has no images")
        moves = zip(sources or live.state.saved_on, nodes, images, strict=True)
        moving = [(source, target, image) for source, target, image in moves if source != target]
        await in_parallel([self.send_image(*each, live.memory_mib) for each in moving])
        return sum(image.bytes for _, _, image in moving)

    async def send_image(self, source: int, target: int, image: ImageRef, memory_mib: int) -> None:
        """Let `target` fetch the image of a guest; `source` serves the image only to the holder of a ticket for it."""
        name, deadline_s, ticket = self._nodes.name(target), self._commands.bulk_s(memory_mib), new_token()
        offer = OfferImage(image=image, ticket_digest=token_digest(ticket), to=name, for_s=deadline_s)
        await self._nodes.call(source, offer, self._deadlines.command_s)
        there = self._nodes.facts(source)  # read after the offer, which may have waited for a restarted agent
        check_fetch(self._nodes.name(source), there.address, name, self._nodes.facts(target).address)
        fetch = FetchImage(image=image, host=there.address, port=there.image_port, ticket=ticket, memory_mib=memory_mib)
        await self._commands.ask(target, fetch, dict[str, object], deadline_s)

    async def guests_at(self, node: int, settled: tuple[str, ...] = ()) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names of the guests and of the images on a node; see `ListGuests` for `settled`."""
        there = await self.there(node, settled)
        return frozenset(sample.guest for sample in there.guests), frozenset(there.images)

    async def there(self, node: int, settled: tuple[str, ...] = ()) -> Guests:
        """Return the guests on a node with their last samples, and the images there; see `ListGuests`."""
        there = await self._commands.ask(node, ListGuests(settled=settled), Guests, self._deadlines.command_s)
        if self._fences is not None:
            self._fences.hear(node, there.clock, there.mono_ns, asyncio.get_running_loop().time())
        return there

    async def stop_guests(self, guests: Iterable[tuple[int, str]], generations: Mapping[str, int]) -> list[Place]:
        """Destroy guests, by node and name, best effort; return those whose end the node has confirmed."""
        orders = [(node, Stop(guest=guest, generation=generations[guest])) for node, guest in sorted(guests)]
        results = await self._commands.attempt(orders)
        return [
            (node, order.guest)
            for (node, order), result in zip(orders, results, strict=True)
            if not isinstance(result, BaseException)
        ]

    async def drop_images(self, holders: Iterable[tuple[int, str]]) -> None:
        """Delete images, by node and name; a node that is offline keeps its copies until its agent cleans up."""
        await self._commands.attempt((node, DropImage(image=image)) for node, image in sorted(holders))

    async def stop(self, live: JobGuests, nodes: Sequence[int]) -> None:
        """Destroy the job's guests on these nodes, best effort; a failure does not stop the others."""
        await self.stop_guests(zip(nodes, live.guests, strict=True), dict.fromkeys(live.guests, live.generation))
