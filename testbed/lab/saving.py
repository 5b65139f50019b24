"""Coordinated checkpoint of a job's guests: all are held at one consistent point, and written in parallel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated

import msgspec

from testbed.bus.limits import most_image_bytes
from testbed.bus.messages import GuestSpec, Hold, ImageRef, Save
from testbed.bus.numbers import Bytes, Count, Seconds
from testbed.bus.suspicious_acts import ActKind
from testbed.errors import FailureCode, RunError, TestbedError
from testbed.lab.job_commands import JobCommands, NoRoomThereError, skew_s
from testbed.lab.job_guests import JobGuests
from testbed.lab.replies import ReplyError

DISK = "disk"  # the image store that a budget limits
AllThere = Callable[[Sequence[tuple[int, GuestSpec]]], Awaitable[bool]]
DropImages = Callable[[Sequence[tuple[int, str]]], Awaitable[None]]


class SaveError(RunError):
    """Guests could not be saved despite retries; a further retry would not help."""

    def __init__(self, text: str, cause: TestbedError) -> None:
        super().__init__(text)
        self.cause = cause
        self.failure_code = cause.failure_code


class Held(msgspec.Struct):
    """The reply to a hold."""

    at: Count | None = None
    wall_ns: Count = 0
    saved: bool = False  # the guest is gone: it was saved at iteration `at` to the image of this hold


class Saved(msgspec.Struct):
    """The reply to a save."""

    bytes: Bytes
    digest: Annotated[str, msgspec.Meta(max_length=128)]
    run_on_s: Seconds = 0.0
    write_s: Seconds = 0.0
    sync_s: Seconds = 0.0


class Saving:
    """Holds and saves the guests of jobs.

    `all_there` returns whether guests certainly still exist; `drop_images` deletes images by node and name.
    """

    def __init__(self, commands: JobCommands, all_there: AllThere, drop_images: DropImages) -> None:
        self._commands = commands
        self._nodes = commands.nodes
        self._deadlines = commands.deadlines
        self._all_there = all_there
        self._drop_images = drop_images

    async def hold(self, placed: Sequence[tuple[int, GuestSpec]], images: Sequence[str] = ()) -> list[Held]:
        """Hold guests, with disk space reserved for `images` (by task), if any; after a failure all continue.

        Guests stay held if some have already been saved to these images: a partly saved job cannot continue.
        """
        deadline_s = self._commands.bulk_s(placed[0][1].memory_mib)
        holds = [
            asyncio.ensure_future(self._hold_one(node, spec, images[spec.task] if images else "", deadline_s))
            for node, spec in placed
        ]
        try:
            await asyncio.wait(holds)
            return [hold.result() for hold in holds]
        except BaseException:
            for hold in holds:
                hold.cancel()
            held = await asyncio.gather(*holds, return_exceptions=True)
            if not any(isinstance(each, Held) and each.saved for each in held):
                await asyncio.shield(self._commands.release(placed))
            raise

    async def _hold_one(self, node: int, spec: GuestSpec, image: str, deadline_s: float) -> Held:
        order = Hold(guest=spec.guest, image=image, generation=spec.generation)
        held = await self._commands.ask(node, order, Held, deadline_s)
        most = -(-spec.program.work_units // max(1, spec.program.units_per_iteration))
        if held.at is not None and held.at > most:
            raise ReplyError(
                self._nodes.name(node), order, "at", held.at, f"expected at most {most}, all its iterations"
            )
        return held

    async def save(
        self,
        live: JobGuests,
        placed: Sequence[tuple[int, GuestSpec]],
        names: Sequence[str],
        on_phase: Callable[[str, dict[str, float]], None],
        store: str,
    ) -> tuple[ImageRef, ...]:
        """See `Operations.save`; `placed` are the guests with their nodes, by task."""
        deadline_s = self._commands.bulk_s(live.memory_mib)
        begin_s = asyncio.get_running_loop().time()
        held = await self.hold(placed, names if store in ("", DISK) else ())
        hold_s = asyncio.get_running_loop().time() - begin_s
        points = [hold.at for hold in held]
        coordinated = live.specs[0].program.ranks > 1
        together = max((point for point in points if point is not None), default=None)
        if coordinated:
            self._check_point(placed, held, together)
        saved = await self._save_all(
            {
                spec.task: (
                    node,
                    Save(
                        guest=spec.guest,
                        image=names[spec.task],
                        at=together if coordinated else own,
                        store=store,
                        generation=spec.generation,
                    ),
                )
                for (node, spec), own in zip(placed, points, strict=True)
            },
            placed,
            deadline_s,
            begun=any(hold.saved for hold in held),
        )
        on_phase(
            "saved",
            {
                "hold_s": hold_s,
                "hold_skew_s": skew_s([hold.wall_ns for hold in held]),
                **{
                    name: max(float(getattr(report, name)) for report in saved)
                    for name in ("run_on_s", "write_s", "sync_s")
                },
            },
        )
        return tuple(
            ImageRef(image=names[spec.task], bytes=report.bytes, digest=report.digest, generation=spec.generation)
            for (_, spec), report in zip(placed, saved, strict=True)
        )

    def _check_point(self, placed: Sequence[tuple[int, GuestSpec]], held: Sequence[Held], point: int | None) -> None:
        """Raise `SaveError` unless the tasks that are already saved were saved at the common point of all."""
        for (node, spec), hold in zip(placed, held, strict=True):
            if hold.saved and hold.at is not None and hold.at != point:
                why = f"task {spec.task} was saved at iteration {hold.at} on node {self._nodes.name(node)}"
                raise SaveError(f"{why}, and another task is at iteration {point}", RunError(why))

    async def _save_all(
        self, orders: dict[int, tuple[int, Save]], placed: Sequence[tuple[int, GuestSpec]], deadline_s: float, *,
        begun: bool = False,
    ) -> list[Saved]:  # fmt: skip
        """Save held guests; only failed tasks are retried, as saved guests are already gone.

        If a node lacks disk space, a retry does not help, and the saves of the other tasks are cancelled. If no guest
        is gone then, all guests continue, and `NoRoomThereError` is raised; else the save has failed. `begun` means
        that some guests were gone before.
        """
        saved: dict[int, Saved] = {}
        failures: list[TestbedError] = []
        restarted: set[int] = set()  # tasks whose agent was restarted: a guest that it took over may not be held
        for attempt in range(self._deadlines.tries):
            if attempt:
                await asyncio.sleep(0.2 * 2**attempt)
            failures = await self._save_each(orders, saved, restarted, placed, deadline_s)
            if not failures:
                return [saved[task] for task in sorted(saved)]
            if isinstance(failures[0], ReplyError) or failures[0].failure_code is FailureCode.IMAGE_LOST:
                break  # that guest is gone: the reply to another command would hide its node's first reply
            full = next((failure for failure in failures if isinstance(failure, NoRoomThereError)), None)
            if full is None:
                continue
            if not saved and not begun and await self._all_there(placed):
                await self._drop_images([(node, save.image) for node, save in orders.values()])
                await self._commands.release(placed)
                raise full
            raise SaveError(f"{len(orders) - len(saved)} of {len(orders)} tasks: {full}", full) from full
        if not saved and not begun:
            await self._commands.release(placed)
        raise SaveError(f"{len(failures)} of {len(orders)} tasks: {failures[0]}", failures[0]) from failures[0]

    async def _save_each(
        self, orders: Mapping[int, tuple[int, Save]], saved: dict[int, Saved], restarted: set[int],
        placed: Sequence[tuple[int, GuestSpec]], deadline_s: float,
    ) -> list[TestbedError]:  # fmt: skip
        """Save the tasks that are not in `saved` in parallel, and add them to it; return failures.

        If a node lacks disk space, the saves of the other tasks are cancelled. Tasks whose agents turn out to have been
        restarted are added to `restarted`; tasks that are in it before are held again first.
        """
        tasks = {spec.task: spec for _, spec in placed if spec.task not in saved}
        calls = {
            asyncio.ensure_future(self._save_one(*orders[task], spec, deadline_s, again=task in restarted)): task
            for task, spec in tasks.items()
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
                        if failure.failure_code is FailureCode.AGENT_RESTARTED:
                            restarted.add(calls[call])
                        gone = isinstance(failure, ReplyError) or failure.failure_code is FailureCode.IMAGE_LOST
                        failures.insert(0 if gone else len(failures), failure)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        return failures

    async def _save_one(self, node: int, order: Save, spec: GuestSpec, deadline_s: float, *, again: bool) -> Saved:
        """Save a guest, which is held first if `again`; raises `ReplyError` for a size impossible for its memory."""
        if again:
            held = await self._hold_one(node, spec, order.image, deadline_s)
            if spec.program.ranks > 1:
                self._check_point([(node, spec)], [held], order.at)
            elif held.at is not None:
                order = msgspec.structs.replace(order, at=held.at)
        memory_mib = spec.memory_mib
        report, most = await self._commands.ask(node, order, Saved, deadline_s), most_image_bytes(memory_mib)
        if report.bytes <= most:
            return report
        name, expected = self._nodes.name(node), f"expected at most {most}, as the guest has {memory_mib} MiB"
        error = ReplyError(name, order, "bytes", report.bytes, expected)
        self._nodes.suspect(node, ActKind.FALSE_REPORT, error)
        raise error
