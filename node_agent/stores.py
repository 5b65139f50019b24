"""The stores of a node's saved guests, on its disk and in its memory. Images are found by name in either."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import psutil

from node_agent.drivers.protocol import DriverError, ImageLostError
from node_agent.image_notes import ImageNote, begin_note, complete_note, finish_note, read_note
from node_agent.images import ImageStore
from node_agent.page_cache import cached_frac, drop_cached
from testbed.bus.messages import ImageRef
from testbed.host.locks import try_lock

DISK = "disk"
MEMORY = "memory"
_PREFIX = "dfrs-images-"
_MARGIN_MIB = 64  # of the machine's memory that a save to memory must leave
_log = logging.getLogger(__name__)
T = TypeVar("T")


def tmpfs() -> Path | None:
    """Return a folder on a tmpfs that this user may write to: /dev/shm where it is one, or None."""
    kinds = {partition.mountpoint: partition.fstype for partition in psutil.disk_partitions(all=True)}
    for path in ("/dev/shm", os.environ.get("XDG_RUNTIME_DIR", "")):  # noqa: S108  # only private folders in it
        if kinds.get(path) == "tmpfs" and os.access(path, os.W_OK | os.X_OK):
            return Path(path)
    return None


class MemoryFolder:
    """A private folder on a tmpfs, locked while its owner lives; an unlocked one is abandoned and may be removed."""

    def __init__(self, base: Path, node: str) -> None:
        """Create the folder in `base`, and remove the folders of killed agents there; raises `OSError`."""
        sweep(base)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{node}-", dir=base))
            lock = _lock(self.path)
            if lock is not None:
                break  # else the sweep of another agent has locked the folder first, and removes it
        self._lock = lock

    def remove(self) -> None:
        """Remove the folder with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep(base: Path, node: str = "", *, dry_run: bool = False) -> list[Path]:
    """Remove the folders of dead agents, or of a node's dead agents; return them. `dry_run` only lists them."""
    found = []
    own = re.compile(rf"{_PREFIX}{re.escape(node)}-[a-z0-9_]{{8}}" if node else f"{_PREFIX}.*")
    for path in sorted(path for path in base.glob(f"{_PREFIX}*") if own.fullmatch(path.name)):
        lock = _lock(path)
        if lock is not None:
            if not dry_run:
                shutil.rmtree(path, ignore_errors=True)
                _log.warning("removed images that an earlier agent left in %s", path)
            os.close(lock)
            found.append(path)
    return found


def _lock(folder: Path) -> int | None:
    """Lock an existing folder while the descriptor is open; None if it is gone, locked or another user's."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        held = os.fstat(descriptor)
        if try_lock(descriptor) and held.st_uid == os.geteuid() and folder.stat().st_ino == held.st_ino:
            return descriptor
    os.close(descriptor)
    return None


class ImageStores:
    """The image stores of a node by name; `disk` always exists, `memory` once it is opened.

    Images and their notes are made `durable`, except for those of a dry run.
    """

    def __init__(self, disk: Path, *, durable: bool = True) -> None:
        self.disk = ImageStore(disk)
        self.disk.sweep()
        self._stores: Mapping[str, ImageStore] = {DISK: self.disk}  # replaced, never changed: threads iterate over it
        self._memory: MemoryFolder | None = None
        self._digests: dict[str, str] = {}  # of images that this agent has written or fetched itself
        self.durable = durable

    async def do(self, work: Callable[[], T]) -> T:
        """Run a function that reads or writes files in a thread, to its end even if the caller is cancelled.

        In a dry run nothing is synced, and no thread is used, as threads do not work with virtual time.
        """
        if not self.durable:
            return work()
        doing = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait((doing,))
            raise

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the existing stores."""
        return tuple(self._stores)

    def open_memory(self, node: str) -> None:
        """Add the store `memory`, if this machine has a tmpfs."""
        base = tmpfs()
        if base is None:
            return
        try:
            self._memory = MemoryFolder(base, node)
        except OSError as error:
            _log.warning("no image store in memory: %s", error)
        else:
            self._add_memory(self._memory.path)

    def rehearse_memory(self) -> None:
        """Add a store `memory` that is a folder beside the disk's, for the nodes of a dry run."""
        self._add_memory(_rehearsed_memory(self.disk.folder))

    def _add_memory(self, folder: Path) -> None:
        self._stores = {**self._stores, MEMORY: ImageStore(folder)}

    def close(self) -> None:
        """Remove the images in memory."""
        if self._memory is not None:
            self._memory.remove()
            self._memory = None
            self._stores = {DISK: self.disk}

    def place(self, image: str, store: str, memory_mib: int) -> Path:
        """Return the file for the image of a guest of that size; an empty `store` is the disk.

        Raises `DriverError` if there is no such store, or not enough memory for the image beside the guest.
        """
        if store and store not in self._stores:
            raise DriverError(f"image store {store!r}: expected one of {', '.join(self._stores)}")
        if store == MEMORY and self._memory is not None:
            free_mib = min(psutil.virtual_memory().available >> 20, self._stores[MEMORY].free_mib())
            if free_mib < memory_mib + _MARGIN_MIB:
                raise DriverError(
                    f"image store memory: {memory_mib} MiB to save beside the guest itself, {free_mib} MiB are free"
                )
        path = self._stores[store or DISK].path(image)
        self._digests.pop(image, None)
        for other in self._stores.values():  # a name belongs to one image
            if other.path(image) != path:
                other.drop(image)
        return path

    def path(self, image: str) -> Path:
        """Return the file of an image in whichever store it is; its path on the disk if it is in none."""
        paths = [store.path(image) for store in self._stores.values()]
        return next((path for path in paths if path.exists()), paths[0])

    def begin(self, image: Path, begun: ImageNote) -> None:
        """Note that a guest is about to be saved to this file; raises `DriverError`."""
        self._digests.pop(image.name, None)
        begin_note(image, begun, durable=self.durable)

    def finish(self, image: Path, note: ImageNote) -> None:
        """Note that an image which this agent has written, or fetched and checked, is complete.

        Image and note are durable when this returns. Raises `DriverError`.
        """
        finish_note(image, note, durable=self.durable)
        self._digests[image.name] = note.digest

    def compared(self, image: ImageRef) -> None:
        """Note that an image of an earlier agent was read, and has this digest."""
        self._digests[image.image] = image.digest

    def digest(self, image: str) -> str | None:
        """Return the digest of an image that this agent has written, fetched or read, None for an older one."""
        return self._digests.get(image)

    def note(self, image: str) -> ImageNote | None:
        """Return the note of a complete image, None if there is no such image."""
        return complete_note(self.path(image))

    def begun(self) -> dict[str, ImageNote]:
        """Return the notes of images whose saves have begun and not ended, by name of the image."""
        return {name: note for store in self._stores.values() for name, note in store.begun().items()}

    def complete(self, image: str) -> Path:
        """Return the file of an image that was complete once; raises `ImageLostError` if there is none.

        The reader of the file compares its digest, as the image may have been damaged since.
        """
        path = self.path(image)
        note = read_note(path)
        if note is None or not note.digest or not path.exists():
            reason = "it is not complete" if path.exists() else "No such file or directory"
            raise ImageLostError(f"image {image}: {reason}")
        return path

    def verify(self, image: ImageRef) -> None:
        """Read an image; raises `ImageLostError` if it is not the saved one."""
        ImageStore(self.path(image.image).parent).verify(image)

    def cached_frac(self, path: Path, *, cold: bool) -> float | None:
        """Return the share of an image in the page cache, if known; `cold` evicts it from there first."""
        try:
            if cold:
                drop_cached(path)
        except OSError as error:
            raise DriverError(f"image {path}: {error.strerror}") from error
        return cached_frac(path)

    def drop(self, image: str) -> None:
        """Delete an image and its partial transfers."""
        self._digests.pop(image, None)
        for store in self._stores.values():
            store.drop(image)

    def all(self) -> list[str]:
        """Return the names of the complete images."""
        return sorted({path.name for store in self._stores.values() for path in store.complete()})

    def clear(self) -> None:
        """Delete every image."""
        self._digests.clear()
        for store in self._stores.values():
            store.clear()


def rehearsed_path(disk: Path, image: str) -> Path:
    """Return the file of an image in the memory store of a dry run's node, whose disk store is `disk`."""
    found = ImageStore(_rehearsed_memory(disk)).path(image)
    return found if found.exists() else ImageStore(disk).path(image)


def _rehearsed_memory(disk: Path) -> Path:
    return disk.with_name(f"{disk.name}.memory")
