"""The image store of a node, and how images travel from one node to another.

A node serves its images on a TCP port, by TLS where agents have certificates, to whoever knows the token of the live
lease; the answer to a request is the bytes from an offset on, so that a broken transfer is resumed. The receiver checks
the digest of the whole file before the image gets its name.

Request: one JSON line {"token", "image", "offset"}. Answer: one JSON line {"bytes"} or {"error"}, then the bytes. With
an error comes a `code` if the image is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec
import xxhash

from node_agent.drivers.protocol import DriverError, ImageLostError
from node_agent.programs.image import new_digest
from testbed.bus.messages import ImageRef
from testbed.failure_codes import FailureCode

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,127}\.img")
_CHUNK = 1 << 20
_PATIENCE_S = 10.0


class _Request(msgspec.Struct):
    token: str
    image: str
    offset: int = 0


class _Answer(msgspec.Struct):
    bytes: int = 0
    error: str | None = None
    code: str = ""


class ImageStore:
    """A folder of saved guests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, image: str) -> Path:
        """Return the file of an image; a name that could lead out of the folder is refused."""
        if not _NAME.fullmatch(image) or ".." in image:
            raise DriverError(f"image name {image!r}: expected lower-case letters, digits, '-' and '.', ending in .img")
        return self.folder / image

    def verify(self, image: ImageRef) -> None:
        """Read an image; raises `ImageLostError` for another than was saved, `DriverError` if it is unreadable."""
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
        """Delete an image and what a broken transfer left of it."""
        path = self.path(image)
        path.unlink(missing_ok=True)
        path.with_name(path.name + ".part").unlink(missing_ok=True)

    def all(self) -> list[Path]:
        """Return every image, and what broken transfers left."""
        return sorted(
            path
            for path in self.folder.iterdir()
            if _NAME.fullmatch(path.name.removesuffix(".part")) and path.is_file()
        )

    def clear(self) -> None:
        """Delete every image."""
        for path in self.all():
            path.unlink(missing_ok=True)

    def free_mib(self) -> int:
        """Free space for images."""
        stat = os.statvfs(self.folder)
        return stat.f_bavail * stat.f_frsize >> 20


class ImageServer:
    """Serves a node's images to the agents of other nodes."""

    def __init__(
        self, find: Callable[[str], Path], allows: Callable[[str], bool], tls: ssl.SSLContext | None = None
    ) -> None:
        """Serve the file `find(image)` to who knows a token that `allows` lets in; with `tls` to other agents only."""
        self._find = find
        self._allows = allows
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self, host: str) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, host, 0, ssl=self._tls)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and break off what is being sent."""
        if self._server is not None:
            self._server.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.create_task(self._talk(reader, writer), name="send image")
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            line = await reader.readline()
        try:
            request = msgspec.json.decode(line, type=_Request)
            if not self._allows(request.token):
                raise DriverError("the token is not the live lease's")
            path = self._find(request.image)
            size = path.stat().st_size
            if not 0 <= request.offset <= size:
                raise DriverError(f"offset {request.offset}: expected 0..{size}")
        except (msgspec.MsgspecError, ValueError, DriverError, OSError) as error:
            code = FailureCode.IMAGE_LOST.value if isinstance(error, FileNotFoundError) else ""
            writer.write(msgspec.json.encode(_Answer(error=str(error), code=code)) + b"\n")
            await writer.drain()
            return
        writer.write(msgspec.json.encode(_Answer(bytes=size - request.offset)) + b"\n")
        await writer.drain()
        with path.open("rb") as file:
            await asyncio.get_running_loop().sendfile(writer.transport, file, request.offset)


class ImageFetcher:
    """Pulls images from other nodes into the store."""

    def __init__(self, store: ImageStore, token: Callable[[], str], tls: ssl.SSLContext | None = None) -> None:
        self._store = store
        self._token = token
        self._tls = tls

    async def fetch(self, image: ImageRef, host: str, port: int) -> dict[str, object]:
        """Copy an image here, resuming what an earlier try left; raises `DriverError`. Done already is done."""
        path = self._store.path(image.image)
        if path.exists() and path.stat().st_size == image.bytes:
            return {"bytes": 0}
        part = path.with_name(path.name + ".part")
        offset = part.stat().st_size if part.exists() else 0
        if offset > image.bytes:
            part.unlink()
            offset = 0
        try:
            digest = await self._pull(image, part, offset, host, port)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            raise DriverError(f"image {image.image} from {host}:{port}: {error or type(error).__name__}") from error
        if digest != image.digest:
            part.unlink()
            raise ImageLostError(f"image {image.image}: digest {digest[:12]}…, expected {image.digest[:12]}…")
        part.replace(path)
        return {"bytes": image.bytes - offset}

    async def _pull(self, image: ImageRef, part: Path, offset: int, host: str, port: int) -> str:
        """Append what is missing to `part`, make it durable, and return the digest of all of it."""
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_connection(host, port, limit=4 * _CHUNK, ssl=self._tls)
        try:
            writer.write(msgspec.json.encode(_Request(self._token(), image.image, offset)) + b"\n")
            async with asyncio.timeout(_PATIENCE_S):
                line = await reader.readline()
            try:
                answer = msgspec.json.decode(line, type=_Answer)
            except msgspec.MsgspecError as error:  # it hung up, or is something else
                raise DriverError(f"image {image.image} from {host}:{port}: no answer of an agent: {error}") from error
            if answer.error is not None or answer.bytes != image.bytes - offset:
                lost = answer.error is None or answer.code == FailureCode.IMAGE_LOST
                why = f"image {image.image} from {host}:{port}: {answer.error or 'another size'}"
                raise ImageLostError(why) if lost else DriverError(why)
            left = answer.bytes
            with part.open("a+b") as file:
                digest = await asyncio.to_thread(_digest_so_far, file)
                while left:
                    async with asyncio.timeout(_PATIENCE_S):
                        chunk = await reader.read(min(left, _CHUNK))
                    if not chunk:
                        raise DriverError(f"image {image.image} from {host}:{port}: broken off, {left} bytes missing")
                    await asyncio.to_thread(_take, file, digest, chunk)
                    left -= len(chunk)
                await asyncio.to_thread(_sync, file)
            return digest.hexdigest()
        finally:
            writer.close()


class ImageCopier:
    """Takes images from the folders of a node whose files this one can read; `find(folder, image)` says from which."""

    def __init__(self, store: ImageStore, find: Callable[[Path, str], Path]) -> None:
        self._store = store
        self._find = find

    async def fetch(self, image: ImageRef, host: str, port: int) -> dict[str, object]:
        """Copy an image here; `host` is the other node's image folder."""
        del port
        source = self._find(Path(host), image.image)
        try:
            shutil.copyfile(source, self._store.path(image.image))
        except FileNotFoundError as error:
            raise ImageLostError(f"{source}: cannot copy: {error.strerror}") from error
        except OSError as error:
            raise DriverError(f"{source}: cannot copy: {error.strerror}") from error
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
