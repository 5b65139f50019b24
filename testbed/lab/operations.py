"""Operations on a whole job, made of commands to the guests of its tasks on all their nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec

from testbed.bus.caps import same_cap
from testbed.bus.lease import new_token, token_digest
from testbed.bus.limits import most_image_bytes
from testbed.bus.messages import (
    AnyAction,
    DropImage,
    FetchImage,
    GuestSpec,
    Hold,
    ImageRef,
    ListGuests,
    MpiJoin,
    OfferImage,
    Release,
    Save,
    SetCaps,
    Start,
    Stop,
)
from testbed.bus.no_room import NoRoom, no_room_in
from testbed.bus.numbers import Bytes, Cores, Count, Fraction, Seconds
from testbed.bus.requests import CommandError, CommandFailedError, DeadlineError
from testbed.bus.suspicious_acts import ActKind
from testbed.errors import RunError, TestbedError
from testbed.lab.guest_specs import cap_at
from testbed.lab.job_guests import JobGuests
from testbed.lab.mpi_exchange import MpiExchange
from testbed.lab.node_facts import check_fetch
from testbed.lab.replies import Guests, Nodes, ReplyError, ask
from testbed.scenario.schema import DeadlinesTable

DISK = "disk"  # the image store that a budget limits
T = TypeVar("T")


class SaveError(RunError):
    """Guests could not be saved despite retries; a further retry would not help."""

    def __init__(self, text: str, cause: TestbedError) -> None:
        super().__init__(text)
        self.cause = cause
        self.failure_code = cause.failure_code


class NoRoomThereError(RunError):
    """A node has no room for an image. Nothing was saved or moved; a running job continues."""

    def __init__(self, node: int, room: NoRoom, reason: str) -> None:
        self.node = node
        self.room = room
        super().__init__(reason)


class _Started(msgspec.Struct):
    cached_frac: Fraction | None = None


class _Held(msgspec.Struct):
    at: Count | None = None
    wall_ns: Count = 0


class _Released(msgspec.Struct):
    wall_ns: Count = 0


class _Saved(msgspec.Struct):
    bytes: Bytes
    digest: Annotated[str, msgspec.Meta(max_length=128)]
    run_on_s: Seconds = 0.0
    write_s: Seconds = 0.0
    sync_s: Seconds = 0.0


class _Caps(msgspec.Struct):
    caps: dict[str, Cores]


async def _all(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Run commands in parallel; the first failure cancels the others, waits for them, and is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _skew_s(wall_ns: Sequence[int]) -> float:
    """Return the time between the first and the last member's action, by the clocks of their nodes."""
    return (max(wall_ns) - min(wall_ns)) / 1e9


class Operations:
    """The mechanics of one run's jobs; knows nodes and guests, but no policy and no ledger."""

    def __init__(self, nodes: Nodes, deadlines: DeadlinesTable) -> None:
        self._nodes = nodes
        self._deadlines = deadlines
        self._mpi = MpiExchange(nodes, deadlines.command_s)
        nodes.on_mpi_barrier = self._mpi.hear

    async def _ask(self, node: int, action: AnyAction, kind: type[T], deadline_s: float) -> T:
        """Command a node; raises `NoRoomThereError` if it has no room for an image."""
        try:
            return await ask(self._nodes, node, action, kind, deadline_s)
        except CommandFailedError as error:
            room = None if error.reply is None else no_room_in(error.reply.result)
            if room is None:
                raise
            raise NoRoomThereError(node, room, str(error)) from error

    def _bulk_s(self, memory_mib: int) -> float:
        """Deadline of a command that reads or writes a guest's memory."""
        return self._deadlines.command_s + memory_mib / self._deadlines.slowest_mib_per_s

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
        deadline_s = self._bulk_s(live.memory_mib)
        replies = await _all(
            [
                self._ask(
                    node,
                    Start(
                        spec=spec,
                        cap_cores=cap_at(spec, yield_frac),
                        image=images[spec.task] if images else None,
                        cold=cold,
                        verify=live.verified,
                    ),
                    _Started,
                    deadline_s,
                )
                for node, spec in zip(nodes, live.specs, strict=True)
            ]
        )
        cached = [reply.cached_frac for reply in replies if reply.cached_frac is not None]
        told = {"cached_frac": min(cached)} if cached else {}
        lead = live.specs[0]
        if images and all("whole" in self._nodes.facts(node).capabilities for node in nodes):
            released = await _all(
                [
                    self._ask(node, Release(guest=guest), _Released, self._deadlines.command_s)
                    for node, guest in zip(nodes, live.guests, strict=True)
                ]
            )
            skew_s = _skew_s([reply.wall_ns for reply in released])
            return {"release_skew_s": skew_s, **told}
        if lead.program.ranks > 1:
            await self._join(live, nodes, deadline_s)
        return told

    async def _join(self, live: JobGuests, nodes: Sequence[int], deadline_s: float) -> None:
        """Start the ranks of an MPI job; raises `MpiError` for a node that breaks the rules of its barriers."""
        with self._mpi.start(live) as session:
            joins = asyncio.ensure_future(
                _all(
                    [
                        self._nodes.call(node, MpiJoin(guest=guest, session=session.name), deadline_s)
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

    async def set_cap(self, live: JobGuests, yield_frac: float) -> dict[int, float]:
        """Set the caps of a job's guests; return the caps in force by task, in cores, as read back.

        The cap in force of a held guest may differ from the one set: see `SetCaps`.
        """
        by_node: dict[int, dict[str, float]] = {}
        for node, spec in self._placed(live):
            by_node.setdefault(node, {})[spec.guest] = cap_at(spec, yield_frac)
        orders = {node: SetCaps(caps=caps) for node, caps in by_node.items()}
        replies = await _all(
            [self._ask(node, order, _Caps, self._deadlines.command_s) for node, order in orders.items()]
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

    async def hold(self, live: JobGuests) -> float:
        """Hold all guests of a running job; return the time between the first and the last stop, in seconds."""
        return _skew_s([held.wall_ns for held in await self._hold(self._placed(live))])

    async def release(self, live: JobGuests) -> None:
        """Release all held guests."""
        placed = self._placed(live)
        await _all(
            [self._nodes.call(node, Release(guest=spec.guest), self._deadlines.command_s) for node, spec in placed]
        )

    def _placed(self, live: JobGuests) -> list[tuple[int, GuestSpec]]:
        if live.state.running_on is None:
            raise RunError(f"job {live.job_id} does not run")
        return list(zip(live.state.running_on, live.specs, strict=True))

    async def _hold(self, placed: Sequence[tuple[int, GuestSpec]], images: Sequence[str] = ()) -> list[_Held]:
        """Hold guests, with room for these images by task, if any; after a failure all continue."""
        deadline_s = self._bulk_s(placed[0][1].memory_mib)
        try:
            return await _all(
                [self._hold_one(node, spec, images[spec.task] if images else "", deadline_s) for node, spec in placed]
            )
        except BaseException:
            await asyncio.shield(self._release(placed))
            raise

    async def _hold_one(self, node: int, spec: GuestSpec, image: str, deadline_s: float) -> _Held:
        order = Hold(guest=spec.guest, image=image)
        held = await self._ask(node, order, _Held, deadline_s)
        most = -(-spec.program.work_units // max(1, spec.program.units_per_iteration))
        if held.at is not None and held.at > most:
            raise ReplyError(
                self._nodes.name(node), order, "at", held.at, f"expected at most {most}, all its iterations"
            )
        return held

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
        """
        placed = self._placed(live)
        deadline_s = self._bulk_s(live.memory_mib)
        begin_s = asyncio.get_running_loop().time()
        held = await self._hold(placed, names if store in ("", DISK) else ())
        hold_s = asyncio.get_running_loop().time() - begin_s
        points = [hold.at for hold in held]
        coordinated = live.specs[0].program.ranks > 1
        together = max((point for point in points if point is not None), default=None)
        saved = await self._save_all(
            {
                spec.task: (
                    node,
                    Save(guest=spec.guest, image=names[spec.task], at=together if coordinated else own, store=store),
                )
                for (node, spec), own in zip(placed, points, strict=True)
            },
            placed,
            deadline_s,
        )
        on_phase(
            "saved",
            {
                "hold_s": hold_s,
                "hold_skew_s": _skew_s([hold.wall_ns for hold in held]),
                **{
                    name: max(float(getattr(report, name)) for report in saved)
                    for name in ("run_on_s", "write_s", "sync_s")
                },
            },
        )
        return tuple(
            ImageRef(image=names[spec.task], bytes=report.bytes, digest=report.digest)
            for (_, spec), report in zip(placed, saved, strict=True)
        )

    async def _save_all(
        self, orders: dict[int, tuple[int, Save]], placed: Sequence[tuple[int, GuestSpec]], deadline_s: float
    ) -> list[_Saved]:
        """Save held guests; a failed member is retried alone, as saved ones are gone already.

        Without room a retry does not help: then no member waits for the others. If none is gone all continue, with
        `NoRoomThereError`; else the save has failed.
        """
        saved: dict[int, _Saved] = {}
        failures: list[TestbedError] = []
        for attempt in range(self._deadlines.tries):
            if attempt:
                await asyncio.sleep(0.2 * 2**attempt)
            failures = await self._save_each(orders, saved, placed[0][1].memory_mib, deadline_s)
            if not failures:
                return [saved[task] for task in sorted(saved)]
            if isinstance(failures[0], ReplyError):
                break  # that guest is gone by now: another order would only hide what its node replied
            full = next((failure for failure in failures if isinstance(failure, NoRoomThereError)), None)
            if full is None:
                continue
            if not saved and await self._all_there(placed):
                await self.drop_images((node, save.image) for node, save in orders.values())
                await self._release(placed)
                raise full
            raise SaveError(f"{len(orders) - len(saved)} of {len(orders)} tasks: {full}", full) from full
        if not saved:
            await self._release(placed)
        raise SaveError(f"{len(failures)} of {len(orders)} tasks: {failures[0]}", failures[0]) from failures[0]

    async def _save_each(
        self, orders: Mapping[int, tuple[int, Save]], saved: dict[int, _Saved], memory_mib: int, deadline_s: float
    ) -> list[TestbedError]:
        """Save the members that are not in `saved` in parallel, and add them; return failures.

        A node without room ends it: the saves of the other members are cancelled.
        """
        calls = {
            asyncio.ensure_future(self._save_one(*orders[task], memory_mib, deadline_s)): task
            for task in orders
            if task not in saved
        }
        waiting = set(calls)
        failures: list[TestbedError] = []
        try:
            while waiting and not any(isinstance(failure, NoRoomThereError) for failure in failures):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for call in done:
                    try:
                        saved[calls[call]] = call.result()
                    except TestbedError as failure:
                        failures.insert(0 if isinstance(failure, ReplyError) else len(failures), failure)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        return failures

    async def _save_one(self, node: int, order: Save, memory_mib: int, deadline_s: float) -> _Saved:
        """Save a guest; raises `ReplyError` for a size that is impossible for its memory."""
        report, most = await self._ask(node, order, _Saved, deadline_s), most_image_bytes(memory_mib)
        if report.bytes <= most:
            return report
        name, expected = self._nodes.name(node), f"expected at most {most}, as the guest has {memory_mib} MiB"
        error = ReplyError(name, order, "bytes", report.bytes, expected)
        self._nodes.suspect(node, ActKind.FALSE_REPORT, error)
        raise error

    async def _all_there(self, placed: Sequence[tuple[int, GuestSpec]]) -> bool:
        """Return whether all guests certainly still exist, after cancelled saves have ended."""
        by_node: dict[int, list[str]] = {}
        for node, spec in placed:
            by_node.setdefault(node, []).append(spec.guest)
        try:
            held = await _all([self.guests_at(node, tuple(guests)) for node, guests in by_node.items()])
        except TestbedError:
            return False
        there = {guest for guests, _ in held for guest in guests}
        return there.issuperset(spec.guest for _, spec in placed)

    async def _release(self, placed: Sequence[tuple[int, GuestSpec]]) -> None:
        """Release guests, best effort: a guest that does not answer does not stop the others from being released."""
        await self._try((node, Release(guest=spec.guest)) for node, spec in placed)

    async def transfer(self, live: JobGuests, images: Sequence[ImageRef], nodes: Sequence[int]) -> int:
        """Copy the images of tasks that move to their new nodes; return the bytes sent. The sources stay.

        Raises `NoRoomThereError` if a node has no room for them.
        """
        if live.state.saved_on is None:
            raise RunError(f"job {live.job_id} has no images")
        moves = zip(live.state.saved_on, nodes, images, strict=True)
        moving = [(source, target, image) for source, target, image in moves if source != target]
        await _all([self._send_image(*each, live.memory_mib) for each in moving])
        return sum(image.bytes for _, _, image in moving)

    async def _send_image(self, source: int, target: int, image: ImageRef, memory_mib: int) -> None:
        """Have `target` fetch the image of a guest; `source` serves it only to the holder of a ticket for it."""
        there, name, deadline_s = self._nodes.facts(source), self._nodes.name(target), self._bulk_s(memory_mib)
        check_fetch(self._nodes.name(source), there.address, name, self._nodes.facts(target).address)
        ticket = new_token()
        offer = OfferImage(image=image, ticket_digest=token_digest(ticket), to=name, for_s=deadline_s)
        await self._nodes.call(source, offer, self._deadlines.command_s)
        fetch = FetchImage(image=image, host=there.address, port=there.image_port, ticket=ticket, memory_mib=memory_mib)
        await self._ask(target, fetch, dict[str, object], deadline_s)

    async def guests_at(self, node: int, settled: tuple[str, ...] = ()) -> tuple[frozenset[str], frozenset[str]]:
        """Return the names of the guests and of the images that a node holds; see `ListGuests` for `settled`."""
        there = await self._ask(node, ListGuests(settled=settled), Guests, self._deadlines.command_s)
        return frozenset(sample.guest for sample in there.guests), frozenset(there.images)

    async def stop_guests(self, node: int, guests: Iterable[str]) -> None:
        """Destroy guests of a node, best effort: a failure does not stop the others."""
        await self._try((node, Stop(guest=guest)) for guest in sorted(guests))

    async def drop_images(self, holders: Iterable[tuple[int, str]]) -> None:
        """Delete images, by node and name; a node that is away keeps its copies until its agent cleans up."""
        await self._try((node, DropImage(image=image)) for node, image in sorted(holders))

    async def stop(self, live: JobGuests, nodes: Sequence[int]) -> None:
        """Destroy the job's guests on these nodes, best effort: a failure does not stop the others."""
        await self._try((node, Stop(guest=guest)) for node, guest in zip(nodes, live.guests, strict=True))

    async def _try(self, orders: Iterable[tuple[int, AnyAction]]) -> None:
        calls = (self._nodes.call(node, order, self._deadlines.command_s) for node, order in orders)
        await asyncio.gather(*calls, return_exceptions=True)
