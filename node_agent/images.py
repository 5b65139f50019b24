"""The image store of a node, and transfers to it from other nodes (`image_server` has the other end).

A fetch continues where an earlier one broke off. The receiver checks the digest of the whole file, including its
existing part, before the image gets its name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec
import xxhash

from node_agent.drivers.protocol import DriverError, ImageLostError, SuspectError
from node_agent.image_notes import SUFFIX, ImageNote, complete_note, drop_note, read_note
from node_agent.image_wire import LONGEST_LINE, PATIENCE_S, Answer, Request, line_of, shown_line
from node_agent.programs.image import new_digest
from testbed.bus.messages import ImageRef
from testbed.errors import FailureCode

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,127}\.img")
_DRAFT = re.compile(r"\.[a-z0-9][a-z0-9.-]{0,127}\.img\.json\.[0-9]+\.part")  # see `write_whole`
_CHUNK = 1 << 20
_log = logging.getLogger(__name__)


class ImageStore:
    """A folder of saved guests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, image: str) -> Path:
        """Return the file of an image; a name that could lead out of the folder is refused."""
        if not _NAME.fullmatch(image) or ".." in image:
            raise SuspectError(
                f"image name {image!r}: expected lower-case letters, digits, '-' and '.', ending in .img"
            )
        return self.folder / image

    def verify(self, image: ImageRef) -> None:
        """Read an image; raises `ImageLostError` if it is not the saved one, `DriverError` if it is unreadable."""
        try:
            with self.path(image.image).open("rb") as file:
                found = _digest_so_far(file).hexdigest()
        except FileNotFoundError as error:
            raise ImageLostError(f"image {image.image}: {error.strerror}") from error
        except OSError as error:
            raise DriverError(f"image {image.image}: {error.strerror}") from error
        if found != image.digest:
            raise ImageLostError(f"image {image.image}: digest {found[:12]}…, expected {image.digest[:12]}…")

    def drop(self, image: str) -> None:
        """Delete an image and its partial transfers, the note first: no part of the image counts as complete then."""
        path = self.path(image)
        drop_note(path)
        path.unlink(missing_ok=True)
        path.with_name(path.name + ".part").unlink(missing_ok=True)

    def all(self) -> list[Path]:
        """Return every image, complete or not, and every partial transfer: all files that take disk space."""
        return sorted(
            path
            for path in self.folder.iterdir()
            if _NAME.fullmatch(path.name.removesuffix(".part")) and path.is_file()
        )

    def complete(self) -> list[Path]:
        """Return the images that are complete and durable: those with a note."""
        return [path for path in self.all() if complete_note(path) is not None]

    def begun(self) -> dict[str, ImageNote]:
        """Return the notes of images whose saves have begun and not ended, by name of the image."""
        notes = {
            path.name.removesuffix(SUFFIX): read_note(path.with_name(path.name.removesuffix(SUFFIX)))
            for path in self._notes()
        }
        return {name: note for name, note in notes.items() if note is not None and not note.digest}

    def clear(self) -> None:
        """Delete every image, its note first."""
        self.sweep()
        for path in (*self._notes(), *self.all()):
            path.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete the drafts of notes that killed agents have left."""
        for path in self.folder.iterdir():
            if _DRAFT.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _notes(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name.removesuffix(SUFFIX))
                and path.name.endswith(SUFFIX)]  # fmt: skip

    def free_mib(self) -> int:
        """Return the free space for images in MiB."""
        stat = os.statvfs(self.folder)
        return stat.f_bavail * stat.f_frsize >> 20


class ImageFetcher:
    """Pulls images from other nodes into the store."""

    def __init__(self, store: ImageStore, tls: ssl.SSLContext | None = None) -> None:
        self._store = store
        self._tls = tls

    async def fetch(self, image: ImageRef, host: str, port: int, ticket: str) -> dict[str, object]:
        """Copy an image here, resuming a partial transfer; raises `DriverError`.

        An existing image with the same digest is not copied again.
        """
        path = self._store.path(image.image)
        if await self._is_there(image, path):
            return {"bytes": 0}
        part = path.with_name(path.name + ".part")
        offset = part.stat().st_size if part.exists() else 0
        if offset > image.bytes:
            part.unlink()
            offset = 0
        request = Request(ticket=ticket, image=image.image, bytes=image.bytes, digest=image.digest, offset=offset)
        place = f"{shown_line(host)}:{port}"
        try:
            digest = await self._pull(request, part, host, port)
        except DriverError as error:
            raise type(error)(f"image {image.image} from {place}: {error}") from error
        except (OSError, ValueError, OverflowError, asyncio.IncompleteReadError) as error:
            raise DriverError(f"image {image.image} from {place}: {error or type(error).__name__}") from error
        if digest != image.digest:
            part.unlink()
            raise ImageLostError(f"image {image.image}: digest {digest[:12]}…, expected {image.digest[:12]}…")
        part.replace(path)
        return {"bytes": image.bytes - offset}

    async def _is_there(self, image: ImageRef, path: Path) -> bool:
        """Whether the image is there; a different one of that name is deleted."""
        if not await asyncio.to_thread(path.exists):
            return False
        try:
            await asyncio.to_thread(self._store.verify, image)
        except ImageLostError as error:
            _log.warning("%s: fetching it", error)
            self._store.drop(image.image)
            return False
        return True

    async def _pull(self, request: Request, part: Path, host: str, port: int) -> str:
        """Append the missing bytes to `part`, make it durable, and return the digest of all of it."""
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(host, port, limit=4 * _CHUNK, ssl=self._tls)
        try:
            writer.write(line_of(request))
            left = request.bytes - request.offset
            async with asyncio.timeout(PATIENCE_S):
                _check(await reader.readline(), left)
            with part.open("a+b") as file:
                digest = await asyncio.to_thread(_digest_so_far, file)
                while left:
                    async with asyncio.timeout(PATIENCE_S):
                        chunk = await reader.read(min(left, _CHUNK))
                    if not chunk:
                        raise DriverError(f"broken off, {left} bytes missing")
                    await asyncio.to_thread(_take, file, digest, chunk)
                    left -= len(chunk)
                await asyncio.to_thread(_sync, file)
            return digest.hexdigest()
        finally:
            writer.close()


def _check(line: bytes, expected: int) -> None:
    """Raise `DriverError` unless the source has answered with the expected number of bytes."""
    if len(line) > LONGEST_LINE:
        raise DriverError(f"its answer has {len(line)} bytes: expected {LONGEST_LINE} at most")
    try:
        answer = msgspec.json.decode(line, type=Answer)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:  # the peer hung up, or is no image server
        raise DriverError(f"no answer of an agent: {error}") from error
    if answer.error is not None:
        lost = answer.code == FailureCode.IMAGE_LOST
        raise (ImageLostError if lost else DriverError)(shown_line(answer.error))
    if answer.bytes != expected:
        raise ImageLostError(f"it sends {answer.bytes} bytes: expected {expected}")


class ImageCopier:
    """Copies images from another node's folders, which this one can read; `find(folder, image)` returns the file."""

    def __init__(self, store: ImageStore, find: Callable[[Path, str], Path]) -> None:
        self._store = store
        self._find = find

    async def fetch(self, image: ImageRef, host: str, port: int, ticket: str) -> dict[str, object]:
        """Copy an image here; `host` is the other node's image folder."""
        del port, ticket
        path = self._store.path(image.image)
        if complete_note(path) is not None:
            with contextlib.suppress(ImageLostError):
                self._store.verify(image)
                return {"bytes": 0}
        self._store.drop(image.image)
        source = self._find(Path(host), image.image)
        try:
            shutil.copyfile(source, path)
        except FileNotFoundError as error:
            raise ImageLostError(f"{source}: cannot copy: {error.strerror}") from error
        except OSError as error:
            raise DriverError(f"{source}: cannot copy: {error.strerror}") from error
        try:
            self._store.verify(image)
        except ImageLostError:
            self._store.drop(image.image)
            raise
        return {"bytes": image.bytes}


def _digest_so_far(file: BinaryIO) -> xxhash.xxh3_128:
    digest = new_digest()
    file.seek(0)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest


def _take(file: BinaryIO, digest: xxhash.xxh3_128, chunk: bytes) -> None:
    file.write(chunk)
    digest.update(chunk)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
