"""Starts of guests, new or from images: only from the image that the controller names, by its digest.

The digests of images that this agent wrote or fetched are known; only images of an earlier agent are read beforehand.
Later damage is detected when the image is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from node_agent.abilities import Abilities
from node_agent.drivers.protocol import Driver, DriverError, ImageLostError
from node_agent.generations import check_image
from node_agent.stores import ImageStores
from testbed.bus.messages import GuestSpec, ImageRef


class ImageStarts:
    """Starts guests of a driver.

    With a driver of simulated guests no threads are used, as threads do not work with virtual time.
    """

    def __init__(self, driver: Driver, able: Abilities, stores: ImageStores) -> None:
        self._driver = driver
        self._able = able
        self._stores = stores
        self._simulated = driver.traits.simulated

    async def start(self, spec: GuestSpec, cap_cores: float, image: ImageRef | None, *, cold: bool) -> float | None:
        """Start a guest; return the share of its image that was in the page cache before, if there is one and if known.

        Raises `ImageLostError` for a wrong image, else `DriverError`.
        """
        if image is None:
            await self._driver.start(spec, cap_cores)
            return None
        saving = self._able.saving
        path = await self._compare(image)
        found = await self._cached(path, cold=cold)
        restoring = saving.restore(spec, cap_cores, path)
        if saving.images.verified:
            await self._restore_or_blame(restoring, image)
        else:
            await self._restore_and_verify(restoring, image)
        return found

    async def _compare(self, image: ImageRef) -> Path:
        """Return the file of a complete image; raises `ImageLostError` if its digest or its generation is another."""
        path, note = await self._stores.do(lambda: (self._stores.complete(image.image), self._stores.note(image.image)))
        check_image(image, 0 if note is None else note.generation)
        known = self._stores.digest(image.image)
        if known is None:
            await self._verify(image)
            self._stores.compared(image)
        elif known != image.digest:
            raise ImageLostError(f"image {image.image}: digest {known[:12]}…, expected {image.digest[:12]}…")
        return path

    async def _restore_and_verify(self, restoring: Awaitable[None], image: ImageRef) -> None:
        """Verify the image while the hypervisor restores it, held: a guest from a wrong image never runs."""
        outcomes = await asyncio.gather(
            restoring, asyncio.to_thread(self._stores.verify, image), return_exceptions=True
        )
        for outcome in reversed(outcomes):  # a wrong image is the cause, so its error is preferred to the consequences
            if outcome is not None:
                raise outcome

    async def _restore_or_blame(self, restoring: Awaitable[None], image: ImageRef) -> None:
        """Restore a guest whose driver checks the image; if it fails, check whether the image is wrong."""
        try:
            await restoring
        except DriverError:
            await self._verify(image)
            raise

    async def _verify(self, image: ImageRef) -> None:
        await self._stores.do(lambda: self._stores.verify(image))

    async def _cached(self, path: Path, *, cold: bool) -> float | None:
        """Return the share of an image in the page cache, after it was evicted if it is to be `cold`."""
        if self._simulated:
            return 0.0 if cold and path.parent == self._stores.disk.folder else 1.0
        return await asyncio.to_thread(self._stores.cached_frac, path, cold=cold)
