"""Commands that write images: each reserves room before it begins, and releases the reservation at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from node_agent.abilities import Abilities
from node_agent.drivers.protocol import DriverError, SaveReport, SuspectError
from node_agent.image_space import ImageSpace, tells_full_disk
from node_agent.images import ImageCopier, ImageFetcher
from node_agent.stores import ImageStores
from testbed.bus.limits import most_image_bytes
from testbed.bus.messages import FetchImage, Hold, Save


class ImageOrders:
    """Holds and saves guests and fetches images; all raise `NoRoomError` for an image that does not fit.

    `memory_mib` is the guest's memory, which its image needs at most. An image in the store `memory` needs no room on
    the disk.
    """

    def __init__(
        self, able: Abilities, stores: ImageStores, room: ImageSpace, fetcher: ImageFetcher | ImageCopier
    ) -> None:
        self._able = able
        self._stores = stores
        self._room = room
        self._fetcher = fetcher

    async def hold(self, action: Hold, memory_mib: int) -> int | None:
        """Hold a guest; if it is to be saved, reserve room for its image first.

        Returns what `Saves.hold` does.
        """
        if action.image:
            self._room.reserve(action.guest, action.image, memory_mib)
        try:
            return await self._able.saving.hold(action.guest)
        except BaseException:
            self._room.release(action.guest)
            raise

    async def save(self, action: Save, memory_mib: int) -> SaveReport:
        """Save a held guest; without room nothing is written, or a partial image is deleted."""
        report = await self._save(action, memory_mib)
        self._stores.note(action.image, report.digest)
        return report

    async def _save(self, action: Save, memory_mib: int) -> SaveReport:
        path = self._stores.place(action.image, action.store, memory_mib)
        if path.parent != self._stores.disk.folder:
            return await self._able.saving.save(action.guest, action.at, path)
        with self._room_for(action.guest, action.image, memory_mib):
            report = await self._able.saving.save(action.guest, action.at, path)
            self._room.written(action.guest, action.image, report.bytes)
        return report

    @contextlib.contextmanager
    def _room_for(self, holder: str, image: str, mib: int) -> Iterator[None]:
        """Reserve room for an image while it is written; an image that did not fit despite that is deleted."""
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
        """Copy an image from another node, of the announced size, which must be possible for its guest."""
        image = action.image
        most = most_image_bytes(action.memory_mib)
        if action.memory_mib and image.bytes > most:
            raise SuspectError(f"image {image.image}: it has {image.bytes} bytes: expected at most {most}, "
                               f"as its guest has {action.memory_mib} MiB")  # fmt: skip
        holder = f"fetch of {image.image}"
        with self._room_for(holder, image.image, -(-image.bytes >> 20)):
            fetched = await self._fetcher.fetch(image, action.host, action.port, action.ticket)
            self._room.written(holder, image.image, image.bytes)
            self._stores.note(image.image, image.digest)
        return fetched
