"""Operations on a whole job, made of commands to the guests of its tasks on all their nodes."""

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
    """The mechanics of one run's jobs; knows nodes and guests, but no policy and no ledger.

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
        """A job runs that an earlier controller has started: serve the barriers of its ranks."""
        if live.specs[0].program.ranks > 1:
            self._mpi.take_over(live)

    def let_pass(self, live: JobGuests) -> None:
        """A rank of a job has ended: see `MpiExchange.let_pass`."""
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
        """Create all guests, from `images` (by task) if there are any; on failure none is left.

        Returns `release_skew_s` if the guests were restored whole and released in parallel, and `cached_frac`, the
        share of the images that was in the page cache before, if known; `cold` images are dropped from it.
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
        """Start the ranks of an MPI job; raises `MpiError` for a node that breaks the rules of its barriers."""
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
        """Whether guests of a job divide its yield: then their caps differ from the yield's."""
        return self._sharing is not None and self._sharing.capped

    async def set_cap(self, live: JobGuests, yield_frac: float) -> dict[int, float]:
        """Set the caps of a job's guests; return the caps in force by task, in cores, as read back.

        The cap in force of a held guest may differ from the one set: see `SetCaps`. Guests that divide the yield first
        all go down to it, and only then begin anew: so their sum is never more than either yield gives.
        """
        exchange = None
        if self._sharing is not None and self.divides:
            exchange = self._sharing.order(live, live.state.running_on or ())
        if exchange is not None:
            await self._set_caps(live, yield_frac, lower=True)
        return await self._set_caps(live, yield_frac, exchange)

    async def end_dividing(self, live: JobGuests, yield_frac: float) -> None:
        """Let guests that divide a yield go down to `yield_frac`, and exchange nothing until the next `set_cap`."""
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
        """Set the caps of running guests; raises `RunError` if a cap in force differs from the one set."""
        caps = await self.set_cap(live, yield_frac)
        for node, spec in self._placed(live):
            wanted, found = cap_at(spec, yield_frac), caps[spec.task]
            if not same_cap(found, wanted, float(spec.program.workers)):
                raise RunError(
                    f"node {self._nodes.name(node)}: the cap of guest {spec.guest} is {found:g} cores after it was "
                    f"set: expected {wanted:g} cores"
                )
        return caps

    async def samples(self, live: JobGuests, nodes: Iterable[int]) -> dict[str, GuestSample]:
        """Return the last samples of those guests of a job that are on some nodes, by name."""
        asked = await in_parallel([self.there(node) for node in sorted(set(nodes))])
        names = set(live.guests)
        return {sample.guest: sample for there in asked for sample in there.guests if sample.guest in names}

    async def adopt(self, live: JobGuests, samples: Mapping[str, GuestSample], yield_frac: float) -> None:
        """Take over the guests of a job that an earlier controller has started, as far as they are in `samples`.

        Their caps are set, and held guests continue. Those that divided the yield of their job begin anew.
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
            if spec.task not in live.state.finished_tasks:  # else it has ended well meanwhile, which came before this
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
        """Coordinated checkpoint: stop all guests at one consistent point, write them in parallel, free memory.

        The images have these names, by task, and go to each node's image store of the name `store`, the default one
        without a name. Raises `NoRoomThereError` if a node has no room and no guest was saved: then all continue.

        A save that broke off is carried on by a save with the same names: guests that were saved by it count, and the
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
        """Copy the images of tasks that move to their new nodes; return the bytes sent. The sources stay.

        They are copied from `sources`, by default from where they are restored; no copy is made where a node is its own
        source. Raises `NoRoomThereError` if a node has no room for them.
        """
        if live.state.saved_on is None:
            raise RunError(f"job {live.job_id} has no images")
        moves = zip(sources or live.state.saved_on, nodes, images, strict=True)
        moving = [(source, target, image) for source, target, image in moves if source != target]
        await in_parallel([self.send_image(*each, live.memory_mib) for each in moving])
        return sum(image.bytes for _, _, image in moving)

    async def send_image(self, source: int, target: int, image: ImageRef, memory_mib: int) -> None:
        """Have `target` fetch the image of a guest; `source` serves it only to the holder of a ticket for it."""
        name, deadline_s, ticket = self._nodes.name(target), self._commands.bulk_s(memory_mib), new_token()
        offer = OfferImage(image=image, ticket_digest=token_digest(ticket), to=name, for_s=deadline_s)
        await self._nodes.call(source, offer, self._deadlines.command_s)
        there = self._nodes.facts(source)  # only now: the offer may have waited for an agent that was restarted
        check_fetch(self._nodes.name(source), there.address, name, self._nodes.facts(target).address)
        fetch = FetchImage(image=image, host=there.address, port=there.image_port, ticket=ticket, memory_mib=memory_mib)
        await self._commands.ask(target, fetch, dict[str, object], deadline_s)

    async def guests_at(self, node: int, settled: tuple[str, ...] = ()) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names of the guests and of the images that a node holds; see `ListGuests` for `settled`."""
        there = await self.there(node, settled)
        return frozenset(sample.guest for sample in there.guests), frozenset(there.images)

    async def there(self, node: int, settled: tuple[str, ...] = ()) -> Guests:
        """Return the guests with their last samples, and the images, that a node holds; see `ListGuests`."""
        there = await self._commands.ask(node, ListGuests(settled=settled), Guests, self._deadlines.command_s)
        if self._fences is not None:
            self._fences.hear(node, there.clock, there.mono_ns, asyncio.get_running_loop().time())
        return there

    async def stop_guests(self, guests: Iterable[tuple[int, str]], generations: Mapping[str, int]) -> list[Place]:
        """Destroy guests, by node and name, best effort; return those whose node has answered that they are gone."""
        orders = [(node, Stop(guest=guest, generation=generations[guest])) for node, guest in sorted(guests)]
        results = await self._commands.attempt(orders)
        return [
            (node, order.guest)
            for (node, order), result in zip(orders, results, strict=True)
            if not isinstance(result, BaseException)
        ]

    async def drop_images(self, holders: Iterable[tuple[int, str]]) -> None:
        """Delete images, by node and name; a node that is away keeps its copies until its agent cleans up."""
        await self._commands.attempt((node, DropImage(image=image)) for node, image in sorted(holders))

    async def stop(self, live: JobGuests, nodes: Sequence[int]) -> None:
        """Destroy the job's guests on these nodes, best effort: a failure does not stop the others."""
        await self.stop_guests(zip(nodes, live.guests, strict=True), dict.fromkeys(live.guests, live.generation))
