"""Commands that write images: each reserves disk space before it begins, and releases the reservation at its end.

The commands are idempotent. For a guest that has left, and whose image of that name is complete here, a hold or a save
returns the result of the save that wrote the image, whether this agent or a killed one carried it out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from node_agent.abilities import Abilities
from node_agent.drivers.protocol import DriverError, SaveReport, SuspectError
from node_agent.image_notes import ImageNote, is_recent
from node_agent.image_space import ImageSpace, tells_full_disk
from node_agent.images import ImageCopier, ImageFetcher
from node_agent.stores import ImageStores
from testbed.bus.limits import most_image_bytes
from testbed.bus.messages import FetchImage, Hold, Save

_log = logging.getLogger(__name__)


class ImageOrders:
    """Holds and saves guests and fetches images; all raise `NoRoomError` for an image that does not fit.

    `there(guest)` says whether a guest is on this node. `memory_mib` is the guest's memory, the upper bound of its
    image's size. An image in the store `memory` needs no disk space.
    """

    def __init__(
        self, able: Abilities, stores: ImageStores, room: ImageSpace, fetcher: ImageFetcher | ImageCopier,
        there: Callable[[str], bool],
    ) -> None:  # fmt: skip
        self._able = able
        self._stores = stores
        self._room = room
        self._fetcher = fetcher
        self._there = there
        self._noting: dict[str, asyncio.Task[None]] = {}
        self.left_saved = 0  # guests that have left with a save that no order waited for
        self._fetching: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._finding: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def hold(self, action: Hold, memory_mib: int) -> dict[str, object]:
        """Hold a guest; if it is to be saved, reserve space for its image first. Returns the data of the reply.

        The data lack `wall_ns` for a guest that was held just now. A guest that was saved to that image before is
        reported as `saved`, with the iteration of that save.
        """
        if note := await self._saved(action.guest, action.image):
            return _held(note)
        if action.image:
            self._room.reserve(action.guest, action.image, memory_mib)
        try:
            at = await self._able.saving.hold(action.guest)
        except BaseException as error:
            self._room.release(action.guest)
            note = await self._saved(action.guest, action.image) if isinstance(error, DriverError) else None
            if note is None:
                raise
            return _held(note)  # an earlier order to save it has ended meanwhile
        return {"at": at}

    async def save(self, action: Save, memory_mib: int, gone: Callable[[], None]) -> SaveReport:
        """Save a held guest; without enough space nothing is written, or a partial image is deleted.

        `gone` is called once the guest has left. The report is returned when image and note are durable.
        """
        if note := await self._saved(action.guest, action.image):
            return note.report
        if not self._there(action.guest):
            raise DriverError(f"guest {action.guest}: not here")
        path = self._stores.place(action.image, action.store, memory_mib)
        with self._room_for(action, memory_mib, on_disk=path.parent == self._stores.disk.folder) as written:
            begun = ImageNote(guest=action.guest, at=action.at, generation=action.generation)
            await self._stores.do(lambda: self._stores.begin(path, begun))
            report = await self._able.saving.save(action.guest, action.at, path)
            written(report.bytes)
        try:
            await self._stores.do(lambda: self._stores.finish(path, _note(begun, report)))
        finally:
            gone()
        return report

    async def _saved(self, guest: str, image: str) -> ImageNote | None:
        """Return the note of the complete image of a guest that is not here, None if there is no such image.

        An image that a killed agent has written, but not noted, is noted now if it is whole.
        """
        if noting := self._noting.get(image):
            await asyncio.wait((noting,))
        if not image or self._there(guest):
            return None
        note = await self._find(image)
        return note if note is not None and note.guest == guest else None

    def complete(self, guest: str, at: int | None, path: Path, report: SaveReport) -> asyncio.Task[None]:
        """Begin to note the image of a save that no order waits for; see `Outlives.on_saved`.

        The guest must be known as gone by then: commands for the guest or its image wait for the note.
        """
        self.left_saved += 1
        noting = asyncio.get_running_loop().create_task(self._complete(guest, at, path, report), name=f"note {path}")
        self._noting[path.name] = noting
        noting.add_done_callback(lambda _ended: self._noting.pop(path.name, None))
        return noting

    async def _complete(self, guest: str, at: int | None, path: Path, report: SaveReport) -> None:
        async with self._finding.setdefault(path.name, asyncio.Lock()):
            if await self._stores.do(lambda: self._stores.note(path.name)) is not None:
                return  # an order has found it complete meanwhile
            begun = (await self._stores.do(self._stores.begun)).get(path.name, ImageNote(guest=guest, at=at))
            await self._stores.do(lambda: self._stores.finish(path, _note(begun, report)))

    async def find_all(self) -> None:
        """Note all images that a killed agent has written, but not noted."""
        await self.settle()
        for image, begun in (await self._stores.do(self._stores.begun)).items():
            if not self._there(begun.guest):
                await self._find(image)

    async def settle(self) -> None:
        """Wait until the images of all guests that have left are noted."""
        if self._noting:
            await asyncio.wait(self._noting.values())

    async def drop_partial(self, guest: str) -> None:
        """Delete the incomplete images of a guest that was destroyed."""
        for image, begun in (await self._stores.do(self._stores.begun)).items():
            if begun.guest == guest:
                self._stores.drop(image)

    async def _find(self, image: str) -> ImageNote | None:
        """Return the note of a complete image; if the driver finds an image whole, complete its note.

        The driver is asked only during the boot in which the image was written: unsynced data are lost in a reboot.
        Several orders may ask for the same image at the same time: one completes the note, which the others find.
        """
        async with self._finding.setdefault(image, asyncio.Lock()):
            note = await self._stores.do(lambda: self._stores.note(image))
            return await self._find_end(image) if note is None else note

    async def _find_end(self, image: str) -> ImageNote | None:
        begun, path = (await self._stores.do(self._stores.begun)).get(image), self._stores.path(image)
        finding = self._able.finding
        if begun is None or not is_recent(begun) or not path.exists() or finding is None:
            return None
        report = await finding.finished_save(begun.guest, begun.at, path)
        if report is None:
            return None
        _log.warning("image %s: completely written by an earlier agent", image)
        note = _note(begun, report)
        await self._stores.do(lambda: self._stores.finish(path, note))
        return note

    @contextlib.contextmanager
    def _room_for(self, action: Save, mib: int, *, on_disk: bool) -> Iterator[Callable[[int], None]]:
        """Reserve disk space for the image of a save."""
        if not on_disk:
            yield lambda _bytes: None
            return
        with self._reserved(action.guest, action.image, mib):
            yield lambda size: self._room.written(action.guest, action.image, size)

    @contextlib.contextmanager
    def _reserved(self, holder: str, image: str, mib: int) -> Iterator[None]:
        """Reserve disk space for an image while it is written; an image that did not fit despite that is deleted."""
        self._room.reserve(holder, image, mib)
        try:
            yield
        except DriverError as error:
            if tells_full_disk(error):
                self._stores.disk.drop(image)
                raise self._room.refusal(image, mib, str(error)) from error
            raise
        finally:
            self._room.release(holder)

    async def fetch(self, action: FetchImage) -> dict[str, object]:
        """Copy an image from another node; its announced size must not exceed the bound for its guest's memory."""
        image = action.image
        most = most_image_bytes(action.memory_mib)
        if action.memory_mib and image.bytes > most:
            raise SuspectError(f"image {image.image}: it has {image.bytes} bytes: expected at most {most}, "
                               f"as its guest has {action.memory_mib} MiB")  # fmt: skip
        holder = f"fetch of {image.image}"
        async with self._fetching.setdefault(image.image, asyncio.Lock()):  # a second fetch would write the same file
            return await self._fetch(action, holder)

    async def _fetch(self, action: FetchImage, holder: str) -> dict[str, object]:
        image = action.image
        with self._reserved(holder, image.image, -(-image.bytes >> 20)):
            fetched = await self._fetcher.fetch(image, action.host, action.port, action.ticket)
            self._room.written(holder, image.image, image.bytes)
            path = self._stores.path(image.image)
            note = await self._stores.do(lambda: self._stores.note(image.image))
            if note is None or note.digest != image.digest:  # else the image was here already, with its save's note
                note = ImageNote(
                    bytes=image.bytes, digest=image.digest, generation=image.generation, wall_ns=time.time_ns()
                )
                await self._stores.do(lambda: self._stores.finish(path, note))
            self._stores.compared(image)
        return fetched


def _held(note: ImageNote) -> dict[str, object]:
    """Return the data of the reply to a hold of a guest that is saved already."""
    return {"at": note.at, "wall_ns": note.wall_ns, "saved": True}


def _note(begun: ImageNote, report: SaveReport) -> ImageNote:
    """Return the note of a save that has begun, and is complete."""
    return msgspec.structs.replace(
        begun, bytes=report.bytes, digest=report.digest, run_on_s=report.run_on_s, write_s=report.write_s,
        sync_s=report.sync_s, wall_ns=time.time_ns(),
    )  # fmt: skip
