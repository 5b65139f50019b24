"""Starts of guests, anew or from images: none from an image but the one that the controller names, by its digest.

What this agent has written or fetched itself was digested then; only images of an earlier agent are read beforehand.
Damage since then is found by whoever reads the image.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from node_agent.drivers.protocol import Driver, DriverError, ImageLostError
from node_agent.stores import ImageStores
from testbed.bus.messages import GuestSpec, ImageRef


class ImageStarts:
    """Starts guests of a driver."""

    def __init__(self, driver: Driver, stores: ImageStores) -> None:
        self._driver = driver
        self._stores = stores
        self.reads_images = False  # images are to be checked here: the driver's guests do not do it themselves
        self.virtual = False  # no threads in virtual time, and an image has some bytes

    async def start(self, spec: GuestSpec, cap_cores: float, image: ImageRef | None, *, cold: bool) -> float | None:
        """Start a guest; return how much of its image was in the page cache before, if there is one and if known.

        Raises `ImageLostError` for a wrong image, else `DriverError`.
        """
        if image is not None:
            await self._compare(image)
        path = None if image is None else self._stores.path(image.image)
        found = None if path is None else await self._cached(path, cold=cold)
        starting = self._driver.start(spec, cap_cores, path)
        if image is None:
            await starting
        elif self.reads_images:
            await self._start_and_verify(starting, image)
        else:
            await self._start_or_blame(starting, image)
        return found

    async def _compare(self, image: ImageRef) -> None:
        """Raise `ImageLostError` if the image of that name is another one."""
        noted = self._stores.noted(image.image)
        if noted is None:
            if self.virtual:
                self._stores.verify(image)
            else:
                await asyncio.to_thread(self._stores.verify, image)
            self._stores.note(image.image, image.digest)
        elif noted != image.digest:
            raise ImageLostError(f"image {image.image}: digest {noted[:12]}…, expected {image.digest[:12]}…")

    async def _start_and_verify(self, starting: Awaitable[None], image: ImageRef) -> None:
        """Read the image beside the hypervisor, which leaves the guest held: a wrong one never gets to work."""
        outcomes = await asyncio.gather(starting, asyncio.to_thread(self._stores.verify, image), return_exceptions=True)
        for outcome in reversed(outcomes):  # that the image is a wrong one says more than what came of it
            if outcome is not None:
                raise outcome

    async def _start_or_blame(self, starting: Awaitable[None], image: ImageRef) -> None:
        """Start a guest whose driver reads the image; if it fails, find out whether the image is a wrong one."""
        try:
            await starting
        except DriverError:
            if self.virtual:
                self._stores.verify(image)
            else:
                await asyncio.to_thread(self._stores.verify, image)
            raise

    async def _cached(self, path: Path, *, cold: bool) -> float | None:
        """Return how much of an image is in the page cache, after it was thrown out of there if it is to be cold."""
        if self.virtual:
            return 0.0 if cold and path.parent == self._stores.disk.folder else 1.0
        return await asyncio.to_thread(self._stores.cached_frac, path, cold=cold)
