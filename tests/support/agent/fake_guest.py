"""A guest's end of the control channel, played by a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from node_agent.guests.wire import Frame, Reader, encode

Answer = Callable[["FakeGuest", Frame], None]


class FakeGuest:
    """Listens on a socket and answers as the test says; records every order."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self.path = path
        self.orders: list[Frame] = []
        self.hosts = 0  # number of connections so far
        self._answer = answer
        self._writer: asyncio.StreamWriter | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[FakeGuest]:
        server = await asyncio.start_unix_server(self._serve, self.path)
        async with server:
            yield self
            self.hang_up()
            await asyncio.gather(*self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.hosts += 1
        self._serving.add(asyncio.current_task())
        frames = Reader()
        while data := await reader.read(4096):
            for frame in frames.feed(data):
                self.orders.append(frame)
                self._answer(self, frame)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    def say(self, kind: str, *fields: tuple[str, object]) -> None:
        self.raw(encode(kind, fields))

    def raw(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    def hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()


def obey(guest: FakeGuest, frame: Frame) -> None:
    guest.say("attached" if frame.kind == "attach" else "ok", ("id", frame.text("id")), ("pid", 4))
