"""The agent's end of its keeper (`node_agent.drivers.procs.keeper`): programs and channels that outlive an agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node_agent.drivers.procs import keeper
from node_agent.drivers.procs.messages import Messages, peer_user
from node_agent.drivers.protocol import DriverError

KEEP_S = 60.0
_ANSWER_WITHIN_S = 10.0


class _EndedError(DriverError):
    """A keeper has ended."""


@dataclass(frozen=True, slots=True)
class Left:
    """A guest of an earlier agent: its program, which has ended if there is a `code`, and its kept state.

    `heard` are messages that no agent has processed. `request` are unanswered requests of its rank to the process
    manager. The descriptors of `channels` belong to the receiver.
    """

    key: str
    pid: int
    code: int | None
    tail: str
    record: str
    heard: bytes
    request: bytes
    channels: Mapping[str, int]

    def close(self) -> None:
        """Close its descriptors."""
        for fd in self.channels.values():
            os.close(fd)


class Keeping:
    """A connection to the keeper of a state folder. `pid` is the keeper's; `left` are guests of an earlier agent.

    If the keeper dies, so do its programs: their guests fail, and `lost` is set.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._messages = Messages(connection)
        self._loop = asyncio.get_running_loop()
        self._guests: dict[str, Kept] = {}
        self._ready: asyncio.Future[int] = self._loop.create_future()
        self.pid = 0
        self.left: list[Left] = []
        self.lost = False
        self._loop.add_reader(connection, self._read)

    @classmethod
    async def open(cls, folder: Path, keep_s: float = KEEP_S) -> Keeping:
        """Connect to the keeper of a folder, or start one; raises `DriverError` if another agent has it.

        `keep_s` are the seconds for which guests are kept without an agent.
        """
        while True:
            found = _connect(folder)
            if found is None:
                started, pid = await asyncio.to_thread(_start, folder)
                keeping = cls(started)
                keeping.pid = pid
                keeping.send({"op": "hello", "keep_s": keep_s})
                return keeping
            keeping = cls(found)
            keeping.send({"op": "hello", "keep_s": keep_s})
            try:
                async with asyncio.timeout(_ANSWER_WITHIN_S):
                    keeping.pid = await keeping._ready
            except _EndedError:  # it ended just now: it had nothing to keep, or has waited for too long
                continue
            except (DriverError, TimeoutError) as error:
                keeping.disconnect()
                raise DriverError(f"{folder}: {str(error) or 'the keeper of its guests does not answer'}") from error
            return keeping

    def new(self, guest: str) -> Kept:
        """Return a new life of a guest."""
        key = f"{guest}.{uuid.uuid4().hex}"
        return self._adopted(key)

    def adopt(self, left: Left) -> Kept:
        """Return the life of a guest that was left, with all that the keeper has reported since."""
        return self._guests[left.key]

    def _adopted(self, key: str) -> Kept:
        kept = self._guests[key] = Kept(self, key)
        return kept

    async def close(self) -> None:
        """Have the keeper end with all its programs."""
        self.send({"op": "end"})
        self.disconnect(wait_sent=True)
        with contextlib.suppress(OSError):  # it has ended already
            pidfd = os.pidfd_open(self.pid)
            await asyncio.to_thread(select.select, [pidfd], [], [], _ANSWER_WITHIN_S)
            os.close(pidfd)
        for guest in list(self._guests.values()):
            guest.give_up()
        with contextlib.suppress(ChildProcessError):  # it may be an earlier agent's child
            os.waitpid(self.pid, os.WNOHANG)  # noqa: ASYNC222  # does not wait

    def disconnect(self, *, wait_sent: bool = False) -> None:
        """Close the connection; the keeper keeps the guests, unless it was ordered to end."""
        if self.lost:
            return
        self.lost = True
        self._loop.remove_reader(self._messages.connection)
        self._loop.remove_writer(self._messages.connection)
        if wait_sent:
            self._messages.flush(wait=True)
        self._messages.close()

    # --- messages

    def send(self, fields: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send one message; descriptors stay the caller's."""
        if not self.lost:
            self._messages.send(fields, fds)
            self._watch_writable()

    def _write(self) -> None:
        self._messages.flush()
        self._watch_writable()

    def _watch_writable(self) -> None:
        if self._messages.waiting:
            self._loop.add_writer(self._messages.connection, self._write)
        else:
            self._loop.remove_writer(self._messages.connection)

    def _read(self) -> None:
        messages = self._messages.receive()
        if messages is None:
            self._lose(_EndedError("the keeper of its guests has ended"))
        for fields, fds in messages or ():
            self._take(fields, fds)

    def _take(self, fields: dict[str, Any], fds: list[int]) -> None:
        guest = self._guests.get(fields.get("key", ""))
        match fields["op"]:
            case "left":
                self._leave(_left(fields, fds))
            case "ready":
                if not self._ready.done():
                    self._ready.set_result(fields["pid"])
            case "busy":
                self._lose(DriverError("another agent has this folder: expected one agent per state folder"))
            case "spawned" | "unable" if guest is not None:
                guest.spawned(fields.get("pid", 0), fields.get("error", ""))
            case "exited" if guest is not None:
                guest.end(fields["code"], fields["tail"])
            case "request" if guest is not None:
                guest.on_request(fields["text"].encode("latin-1"))

    def _leave(self, left: Left) -> None:
        """Take a guest that was left: its program may end, and its rank may ask, before the guest is adopted."""
        self.left.append(left)
        kept = self._adopted(left.key)
        kept.pid = left.pid
        if left.code is not None:
            kept.end(left.code, left.tail)

    def _lose(self, why: DriverError) -> None:
        self.disconnect()
        if not self._ready.done():
            self._ready.set_exception(why)
            self._ready.exception()  # retrieved, as no caller awaits the one of a new keeper
        for guest in list(self._guests.values()):
            guest.give_up()

    def forget(self, key: str) -> None:
        """Remove a life of a guest that has ended."""
        self._guests.pop(key, None)


class Kept:
    """One life of a guest at the keeper, as a running part of the guest (`Running`)."""

    def __init__(self, keeping: Keeping, key: str) -> None:
        self._keeping = keeping
        self.key = key
        self.pid = 0
        self.tail = ""  # of its output, at its end
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._early = b""  # requests of its rank, before they are served
        self.on_request: Callable[[bytes], None] = self._wait
        self.on_drop: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None  # the keeper has ended, a program that it spawned with it
        self._spawning: asyncio.Future[int] | None = None

    def _wait(self, data: bytes) -> None:
        self._early += data

    def serve(self, on_request: Callable[[bytes], None]) -> bytes:
        """Pass requests to `on_request` from now on; return those that came since the keeper reported the guest."""
        early, self._early, self.on_request = self._early, b"", on_request
        return early

    def check(self) -> None:
        """Raise `DriverError` if its keeper has ended."""
        if self._keeping.lost:
            raise DriverError("the keeper of this agent's guests has ended: expected that it outlives the agent")

    async def spawn(self, argv: Sequence[str], env: Mapping[str, str], folder: Path, log: Path) -> None:
        """Start its program; raises `DriverError`."""
        self.check()
        self._spawning = asyncio.get_running_loop().create_future()
        order = {"op": "spawn", "key": self.key, "argv": [*argv], "env": {**env}, "cwd": str(folder), "log": str(log)}
        self._keeping.send(order)
        self.pid = await asyncio.shield(self._spawning)

    def spawned(self, pid: int, error: str) -> None:
        """Take the answer to `spawn`."""
        if self._spawning is None or self._spawning.done():
            return
        self.pid = pid
        if error:
            self._spawning.set_exception(DriverError(error))
        else:
            self._spawning.set_result(pid)

    def store(self, channel: str, fd: int) -> None:
        """Give the keeper a copy of a descriptor."""
        self._keeping.send({"op": "store", "key": self.key, "channel": channel}, [fd])

    def heard(self) -> None:
        """Report that the messages which the keeper received without an agent are processed."""
        self._keeping.send({"op": "heard", "key": self.key})

    def note(self, record: str, took: int, answer: str | None, *, freeze: bool, files: Iterable[str]) -> None:
        """Store the record for the next agent. `freeze`: stop the program while no agent is connected.

        `files` are removed if the keeper kills the program. With an `answer`, which may be empty, the keeper also
        answers the first `took` bytes of PMI requests: both or neither.
        """
        order: dict[str, object] = (
            {"op": "record"} if answer is None else {"op": "answer", "took": took, "text": answer}
        )
        self._keeping.send({**order, "key": self.key, "record": record, "freeze": freeze, "files": [*files]})

    def drop(self) -> None:
        """Release a guest that is gone, and whose end no agent needs any more."""
        self._keeping.send({"op": "drop", "key": self.key})
        self._keeping.forget(self.key)
        self.on_drop()

    def kill(self) -> None:
        """Kill its program and the processes in its session; the keeper keeps the process id until `drop`."""
        if self.pid and not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self, code: int, tail: str) -> None:
        """Its program has ended."""
        if not self.exited.done():
            self.tail = tail
            self.exited.set_result(code)

    def give_up(self) -> None:
        """Its keeper has ended, and so has the program that the keeper spawned."""
        if self._spawning is not None and not self._spawning.done():
            self._spawning.set_exception(DriverError("the keeper of this agent's guests has ended"))
        if self.pid:
            self.end(-signal.SIGKILL, "")
        self.on_lost()


def _left(fields: Mapping[str, Any], fds: Sequence[int]) -> Left:
    return Left(
        fields["key"], fields["pid"], fields["code"], fields["tail"], fields["record"] or "",
        fields["heard"].encode("latin-1"), fields["request"].encode("latin-1"),
        dict(zip(fields["channels"], fds, strict=True)),
    )  # fmt: skip


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """Yield a short path of the keeper's socket in a folder: addresses of sockets are bounded, paths of folders not."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{keeper.SOCKET}"
    finally:
        os.close(descriptor)


def _connect(folder: Path) -> socket.socket | None:
    """Return a connection to the keeper of a folder, None if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(folder) as address:
            connection.connect(address)
        if peer_user(connection) == os.geteuid():
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _start(folder: Path) -> tuple[socket.socket, int]:
    """Start a keeper; return a connection to it and its process id."""
    path = folder / keeper.SOCKET
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, _address(folder) as address:
        listener.bind(address)
        path.chmod(0o600)
        listener.listen()
        argv = [sys.executable, "-I", "-S", keeper.__file__, str(folder.absolute()), str(listener.fileno())]
        process = subprocess.Popen(  # noqa: S603  # argument lists of our own making, no shell
            argv, env={"LANG": "C.UTF-8"}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True, pass_fds=(listener.fileno(),), cwd=folder,
        )  # fmt: skip
        process.returncode = 0  # it outlives this object, whose end must not warn of that
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(address)
    return connection, process.pid
