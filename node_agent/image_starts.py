"""Starts of guests, anew or from images: none from an image but the one that the controller names, by its digest.

What this agent has written or fetched itself was digested then; only images of an earlier agent are read beforehand.
Damage since then is found by whoever reads the image.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from node_agent.abilities import Abilities
from node_agent.drivers.protocol import Driver, DriverError, ImageLostError
from node_agent.stores import ImageStores
from testbed.bus.messages import GuestSpec, ImageRef


class ImageStarts:
    """Starts guests of a driver.

    With a driver whose guests are simulated nothing is done in threads, as they and virtual time do not go together.
    """

    def __init__(self, driver: Driver, able: Abilities, stores: ImageStores) -> None:
        self._driver = driver
        self._able = able
        self._stores = stores
        self._simulated = driver.traits.simulated

    async def start(self, spec: GuestSpec, cap_cores: float, image: ImageRef | None, *, cold: bool) -> float | None:
        """Start a guest; return how much of its image was in the page cache before, if there is one and if known.

        Raises `ImageLostError` for a wrong image, else `DriverError`.
        """
        if image is None:
            await self._driver.start(spec, cap_cores)
            return None
        saving = self._able.saving
        await self._compare(image)
        path = self._stores.path(image.image)
        found = await self._cached(path, cold=cold)
        restoring = saving.restore(spec, cap_cores, path)
        if saving.images.verified:
            await self._restore_or_blame(restoring, image)
        else:
            await self._restore_and_verify(restoring, image)
        return found

    async def _compare(self, image: ImageRef) -> None:
        """Raise `ImageLostError` if the image of that name is another one."""
        noted = self._stores.noted(image.image)
        if noted is None:
            await self._verify(image)
            self._stores.note(image.image, image.digest)
        elif noted != image.digest:
            raise ImageLostError(f"image {image.image}: digest {noted[:12]}…, expected {image.digest[:12]}…")

    async def _restore_and_verify(self, restoring: Awaitable[None], image: ImageRef) -> None:
        """Read the image beside the hypervisor, which leaves the guest held: a wrong one never gets to work."""
        outcomes = await asyncio.gather(
            restoring, asyncio.to_thread(self._stores.verify, image), return_exceptions=True
        )
        for outcome in reversed(outcomes):  # that the image is a wrong one says more than what came of it
            if outcome is not None:
                raise outcome

    async def _restore_or_blame(self, restoring: Awaitable[None], image: ImageRef) -> None:
        """Restore a guest whose driver checks the image; if it fails, find out whether the image is a wrong one."""
        try:
            await restoring
        except DriverError:
            await self._verify(image)
            raise

    async def _verify(self, image: ImageRef) -> None:
        if self._simulated:
            self._stores.verify(image)
        else:
            await asyncio.to_thread(self._stores.verify, image)

    async def _cached(self, path: Path, *, cold: bool) -> float | None:
        """Return how much of an image is in the page cache, after it was thrown out of there if it is to be cold."""
        if self._simulated:
            return 0.0 if cold and path.parent == self._stores.disk.folder else 1.0
        return await asyncio.to_thread(self._stores.cached_frac, path, cold=cold)
