"""The host's end of a guest's control channel: orders that are answered once, and the guest's frames, once each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt.terminal import Hangup, Terminal, connect
from node_agent.guests.wire import MAX_FRAME_BYTES, Frame, Reader, WireError, encode

REPEAT_AFTER_S = 1.0
CONNECT_EVERY_S = 0.05
REOPEN_AFTER_S = 4.0  # without an answer to `attach`; doubled each time, for slow guests
_AGAIN_WITHIN_S = 10.0
_OVERHEARD_LINES = 5
MOST_UNSENT_BYTES = 4 * MAX_FRAME_BYTES  # waiting for a guest to read: orders, some of them timed out
_ANSWERS = ("ok", "attached", "refused")


class UnansweredError(DriverError):
    """A guest did not answer an order in time."""


class RefusedError(DriverError):
    """A guest answered that it cannot carry out an order."""


class GuestChannel:
    """One guest's channel, over all its lives on this node; `hear` gets every numbered frame once, in order."""

    def __init__(self, guest: str, hear: Callable[[Frame], None]) -> None:
        self._guest = guest
        self._hear = hear
        self._seq = 0
        self._order = 0
        self._writer: Hangup | None = None
        self._listening = False  # the guest has answered `attach`
        self._reading: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[Frame] | None = None
        self._ordering = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self.heard_s = 0.0  # the loop's time of the last frame
        self.overheard: list[str] = []  # the last lines that were no frames

    @property
    def attached(self) -> bool:
        """Whether the host's end is open."""
        return self._writer is not None

    async def attach(self, path: Path, deadline_s: float) -> None:
        """Connect to the guest's socket or console and request the missed frames; raises `DriverError`.

        Both exist before the guest has booted; frames sent until then wait or are sent again. If the guest wrote while
        the host's end was being closed, QEMU holds its port back until the host's end is closed once more. So without
        an answer the host's end is closed and opened again.
        """
        self.detach()
        loop = asyncio.get_running_loop()
        end_s, within_s = loop.time() + deadline_s, REOPEN_AFTER_S
        while True:
            await self._open(path, end_s)
            left_s = end_s - loop.time()
            try:
                await self.order("attach", [("after", self._seq)], min(left_s, within_s))
            except UnansweredError:
                self.detach()
                if loop.time() >= end_s:
                    raise UnansweredError(
                        f"guest {self._guest} did not answer attach within {deadline_s:.1f} s"
                    ) from None
            except BaseException:
                self.detach()
                raise
            else:
                return
            within_s *= 2

    async def _open(self, path: Path, end_s: float) -> None:
        while True:
            try:
                reader, writer = await connect(path, 4 * MAX_FRAME_BYTES)
                break
            except OSError as error:
                if asyncio.get_running_loop().time() > end_s:
                    raise DriverError(f"guest {self._guest}: its control channel {path}: {error}") from error
                await asyncio.sleep(CONNECT_EVERY_S)
        self._writer, self._listening = writer, False
        self._reading = asyncio.get_running_loop().create_task(self._read(reader), name=f"channel of {self._guest}")

    def detach(self) -> None:
        """Hang up; the guest keeps its frames meanwhile."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(DriverError(f"guest {self._guest}: its control channel was closed"))

    async def order(self, kind: str, fields: Sequence[tuple[str, object]], deadline_s: float) -> Frame:
        """Send an order, repeatedly until it is answered; the guest executes it once. Raises `DriverError`."""
        async with self._ordering:
            try:
                async with asyncio.timeout(deadline_s):
                    answer = await self._ask(kind, fields)
                    if answer.kind == "refused" and "last" in answer.fields:
                        self._order = answer.count("last")
                        answer = await self._ask(kind, fields)
            except TimeoutError:
                raise UnansweredError(f"guest {self._guest} did not answer {kind} within {deadline_s:.1f} s") from None
            except WireError as error:
                raise DriverError(f"guest {self._guest}: {error}") from error
        if answer.kind == "refused":
            raise RefusedError(f"guest {self._guest} refused {kind}: {', '.join(answer.fields.get('error', ()))}")
        return answer

    async def _ask(self, kind: str, fields: Sequence[tuple[str, object]]) -> Frame:
        # ids grow over the lives of the guest on all nodes, as long as the nodes' clocks agree
        self._order = max(self._order + 1, time.time_ns() // 1_000_000)
        frame = encode(kind, [("id", self._order), *fields])
        most_bytes = MOST_UNSENT_BYTES - len(frame)  # that may wait before it
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._answer = answer
        try:
            while not answer.done():  # one future for all repetitions: the guest sends what follows an answer once
                if self._writer is None:
                    raise DriverError(f"guest {self._guest}: its control channel is not open")
                if self._writer.unsent_bytes <= most_bytes:
                    self._writer.write(frame)
                    most_bytes = 0  # a guest that reads nothing needs no repetition: the order waits for it already
                await asyncio.wait((answer,), timeout=REPEAT_AFTER_S)
            return answer.result()
        finally:
            self._answer = None
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # retrieved, as perhaps no caller awaits it any more

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = Reader(self._overhear)
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self.heard_s = asyncio.get_running_loop().time()
                for frame in frames.feed(data):
                    self._take(frame)
        if self._reading is asyncio.current_task():
            self._reading = None
            self.detach()

    def _overhear(self, line: bytes) -> None:
        """Keep a line that is no frame; on a terminal, where other programs print, too, request the frames again."""
        self.overheard = [*self.overheard[1 - _OVERHEARD_LINES :], line.decode(errors="replace").strip()]
        if isinstance(self._writer, Terminal) and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._ask_again(), name=f"ask {self._guest} again")

    async def _ask_again(self) -> None:
        with contextlib.suppress(DriverError):
            await self.order("attach", [("after", self._seq)], _AGAIN_WITHIN_S)

    def _take(self, frame: Frame) -> None:
        with contextlib.suppress(WireError):
            if frame.kind in _ANSWERS:
                if self._answer is not None and not self._answer.done() and frame.count("id") == self._order:
                    self._listening |= frame.kind == "attached"
                    self._answer.set_result(frame)
            elif not self._listening:
                pass  # addressed to an earlier listener: the guest sends its numbered frames again after the answer
            elif "seq" in frame.fields:
                seq = frame.count("seq")
                if seq > self._seq:
                    self._seq = seq
                    self._hear(frame)
            else:
                self._hear(frame)
