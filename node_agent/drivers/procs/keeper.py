"""Run as a script, `keeper.py FOLDER LISTENER`: the parent of an agent's programs, which outlives a killed agent.

An agent gives each channel of its programs to its keeper as well (`store`), so that none closes if the agent is killed.
While an agent is connected the keeper does not read the control channels. Without an agent it reads them into memory,
so that no program blocks on a full socket, until the next agent takes everything over. If no agent has connected after
`keep_s` seconds, all programs are killed. The keeper always serves the PMI channels, as each request of a rank must be
answered exactly once: a request stays here until the agent has answered, together with the record of what changed.

Programs whose fence has fallen are killed at any time, as a connected agent may be stopped or stuck. An agent writes
the fence of a guest before it starts its program.

Both sides send JSON objects, one per line, with descriptors attached (`fds` is their number). Requests of an agent::

    hello   keep_s                              first of all; the answer is `left` per guest, then `ready`
    spawn   key, argv, env, cwd, log            start a program; the answer is `spawned` or `unable`
    store   key, channel                        keep a descriptor: `control`, `pmi`, or `program` (its pidfd)
    record  key, record, freeze, files          text for the next agent; whether the program is stopped until then;
                                                files to remove when all is killed
    heard   key                                 the agent has processed the messages `heard` without one
    answer  key, took, text, record, freeze, files      answer bytes of a PMI request, with a record as above
    drop    key                                 the guest is gone
    end                                         kill all programs and end

Messages to an agent::

    left    key, pid, code, tail, record, heard, request, channels    a guest of an earlier agent
    ready   pid                                 of the keeper
    spawned key, pid        unable  key, error
    exited  key, code, tail                     the exit code, negative for a signal, and its last output
    request key, text                           bytes of a rank to its process manager
    busy                                        another agent is connected

Imports only the standard library, and modules of this package that do the same: it is started without site packages, to
be small and quick.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[3]))  # for this package, as there are no site packages

from node_agent.drivers.procs.log import Log
from node_agent.drivers.procs.messages import Messages, peer_user

if TYPE_CHECKING:
    from node_agent.fences import FenceFile

SOCKET = "keeper"
MOST_HEARD_BYTES = 1 << 18  # of a program's messages without an agent; beyond it the program waits
MOST_REQUEST_BYTES = 1 << 16
_CHUNK = 65536
_PROGRESS = b'{"kind":"progress"'
_FENCES, _LOOK_EVERY_S = "fences.json", 0.5  # as in `node_agent.fences`, which is loaded only if the file exists
_FIRST_WITHIN_S = 60.0  # the agent that started this keeper connects within a second


def without_old_progress(data: bytes) -> bytes:
    """Return lines of the control protocol with only the newest report of progress, because there are many."""
    lines = data.split(b"\n")
    reports = [number for number, line in enumerate(lines[:-1]) if line.startswith(_PROGRESS)]
    if len(reports) < 2:
        return data
    try:
        found = [json.loads(lines[number]) for number in reports]
        found[-1]["longest_s"] = max(report.get("longest_s", 0.0) for report in found)
        lines[reports[-1]] = json.dumps(found[-1], separators=(",", ":")).encode()
    except (ValueError, TypeError):  # the agent will report the malformed line
        return data
    return b"\n".join(line for number, line in enumerate(lines) if number not in reports[:-1])


class _Guest:
    """One program with its channels and the agent's record of it."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.pid = 0
        self.pidfd = -1
        self.output = -1
        self.code: int | None = None  # once it has ended
        self.log = Log(Path())  # the file is known when it is spawned
        self.channels: dict[str, int] = {}
        self.heard = b""  # by its control channel, without an agent; no agent has processed it yet
        self.closed = False  # its control channel, by the program
        self.request = b""  # of its rank, not answered yet
        self.unsent = b""  # answers that the rank has not read
        self.record: Any = None
        self.freeze = False
        self.files: list[str] = []

    def note(self, fields: dict[str, Any]) -> None:
        """Take a record."""
        if "record" in fields:
            self.record, self.freeze, self.files = fields["record"], fields["freeze"], fields["files"]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program that has the control channel."""
        if "program" in self.channels:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.channels["program"], number)

    def kill(self) -> None:
        """Kill the program with all processes that it started."""
        self.signal(signal.SIGKILL)
        with contextlib.suppress(OSError):
            if self.pid and self.code is None:
                os.killpg(self.pid, signal.SIGKILL)


class Keeper:
    """Serves one agent at a time, on a socket that listens already."""

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        self._folder = folder
        self._listener = listener
        self._agent: Messages | None = None  # its messages are queued if it does not read
        self._guests: dict[str, _Guest] = {}
        self._keep_s = 0.0
        self._until_s: float | None = time.monotonic() + _FIRST_WITHIN_S  # without an agent: when programs are killed
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, int] = {}
        self._ended = False
        self._fences: FenceFile | None = None
        self._look_s = 0.0  # time of the next check of the fences

    def run(self) -> None:
        """Serve until an agent orders the end, or no agent has connected in time."""
        signal.signal(signal.SIGTERM, self._terminate)
        self._watch(self._listener.fileno(), selectors.EVENT_READ, self._accept)
        while not self._ended:
            until_s = [] if self._until_s is None else [self._until_s]
            until_s += [self._look_s] if self._fences is not None and self._guests else []
            timeout_s = max(0.0, min(until_s) - time.monotonic()) if until_s else None
            for key, events in self._selector.select(timeout_s):
                if key.fd in self._watched:  # not closed by an earlier event
                    key.data(events)
            if self._fences is not None and time.monotonic() >= self._look_s:
                self._enforce(self._fences)
            if self._until_s is not None and time.monotonic() >= self._until_s:
                self._end()

    def _enforce(self, fences: FenceFile) -> None:
        """Kill the programs of guests that must not run any more."""
        due = fences.look() if self._guests else ()
        for guest in self._guests.values():
            if guest.key.rpartition(".")[0] in due:
                guest.kill()
        self._look_s = time.monotonic() + _LOOK_EVERY_S

    def _terminate(self, *_signal: object) -> None:
        if not self._ended:
            self._end()
            raise SystemExit  # else the wait for events would continue

    def _watch(self, fd: int, events: int, act: Callable[[int], object]) -> None:
        if not events:
            self._unwatch(fd)
        elif fd not in self._watched:
            self._selector.register(fd, events, act)
            self._watched[fd] = events
        elif self._watched[fd] != events:
            self._selector.modify(fd, events, act)
            self._watched[fd] = events

    def _unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None:
            self._selector.unregister(fd)

    # --- agents

    def _accept(self, _events: int) -> None:
        connection, _ = self._listener.accept()
        if peer_user(connection) != os.geteuid():
            connection.close()
            return
        while self._agent is not None and select.select([self._agent.connection], [], [], 0)[0]:
            self._hear_agent()  # it may have been killed just now, and be followed by this one
        agent = Messages(connection)
        if self._agent is not None:
            agent.send({"op": "busy"})
            agent.close()
            return
        self._agent, self._until_s = agent, None
        self._watch_agent(agent)

    def _serve_agent(self, events: int) -> None:
        if events & selectors.EVENT_WRITE and self._agent is not None:
            self._agent.flush()
            self._watch_agent(self._agent)
        if events & selectors.EVENT_READ:
            self._hear_agent()

    def _watch_agent(self, agent: Messages) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if agent.waiting else 0)
        self._watch(agent.connection.fileno(), events, self._serve_agent)

    def _hear_agent(self) -> None:
        messages = None if self._agent is None else self._agent.receive()
        if messages is None:
            self._lose_agent()
        for fields, fds in messages or ():
            getattr(self, f"_on_{fields['op']}")(fields, fds)
        if self._fences is None and (self._folder / _FENCES).exists():
            self._fences = _fence_file(self._folder)

    def _lose_agent(self) -> None:
        """Continue without an agent if there is anything to keep, else end."""
        if self._agent is None:
            return
        self._unwatch(self._agent.connection.fileno())
        self._agent.close()
        self._agent = None
        if not self._guests:
            self._end()
            return
        self._until_s = time.monotonic() + self._keep_s
        for guest in self._guests.values():
            if guest.freeze and guest.code is None:
                guest.signal(signal.SIGSTOP)  # no agent enforces its cap by signals
            self._watch_control(guest)

    def _tell(self, fields: dict[str, Any], fds: Sequence[int] = ()) -> None:
        if self._agent is not None:
            self._agent.send(fields, fds)
            self._watch_agent(self._agent)

    # --- requests of the agent

    def _on_hello(self, fields: dict[str, Any], _fds: list[int]) -> None:
        self._keep_s = fields["keep_s"]
        for guest in self._guests.values():
            self._watch_control(guest)  # ends the watch: from here on the agent reads the channel
            names = sorted(guest.channels)
            about = {
                "op": "left", "key": guest.key, "pid": guest.pid, "code": guest.code, "record": guest.record,
                "tail": _text(guest.log.last), "heard": _text(guest.heard), "request": _text(guest.request),
                "channels": names,
            }  # fmt: skip
            self._tell(about, [guest.channels[name] for name in names])
        self._tell({"op": "ready", "pid": os.getpid()})

    def _on_spawn(self, fields: dict[str, Any], _fds: list[int]) -> None:
        guest = self._guest(fields["key"])
        guest.log = Log(Path(fields["log"]))
        try:
            guest.pid, guest.output = _spawn(fields["argv"], fields["env"], fields["cwd"])
        except OSError as error:
            self._tell({"op": "unable", "key": guest.key, "error": error.strerror or str(error)})
            return
        guest.pidfd = os.pidfd_open(guest.pid)
        self._watch(guest.pidfd, selectors.EVENT_READ, lambda _events: self._exited(guest))
        self._watch(guest.output, selectors.EVENT_READ, lambda _events: self._read_output(guest))
        self._tell({"op": "spawned", "key": guest.key, "pid": guest.pid})

    def _guest(self, key: str) -> _Guest:
        return self._guests.setdefault(key, _Guest(key))

    def _on_store(self, fields: dict[str, Any], fds: list[int]) -> None:
        guest, (fd,) = self._guest(fields["key"]), fds
        self._release(guest, fields["channel"])
        guest.channels[fields["channel"]] = fd
        if fields["channel"] == "pmi":
            os.set_blocking(fd, False)
            self._watch_pmi(guest)

    def _on_record(self, fields: dict[str, Any], _fds: list[int]) -> None:
        self._guest(fields["key"]).note(fields)

    def _on_heard(self, fields: dict[str, Any], _fds: list[int]) -> None:
        self._guest(fields["key"]).heard = b""

    def _on_answer(self, fields: dict[str, Any], _fds: list[int]) -> None:
        guest = self._guest(fields["key"])
        guest.note(fields)
        guest.request = guest.request[fields["took"] :]
        guest.unsent += fields["text"].encode("latin-1")
        self._send_answers(guest)

    def _on_drop(self, fields: dict[str, Any], _fds: list[int]) -> None:
        guest = self._guests.pop(fields["key"], None)
        if guest is not None:
            self._forget(guest)

    def _on_end(self, _fields: dict[str, Any], _fds: list[int]) -> None:
        self._end()

    # --- programs

    def _exited(self, guest: _Guest) -> None:
        """Note how a program ended. It is reaped at `drop`, so that its process id is not reused before."""
        self._unwatch(guest.pidfd)
        while self._read_output(guest):
            pass
        found = os.waitid(os.P_PIDFD, guest.pidfd, os.WEXITED | os.WNOWAIT)
        if found is None:
            return
        guest.code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        self._tell({"op": "exited", "key": guest.key, "code": guest.code, "tail": _text(guest.log.last)})

    def _read_output(self, guest: _Guest) -> bool:
        """Read printed output; return whether there may be more."""
        if guest.output < 0:
            return False
        try:
            data = os.read(guest.output, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            guest.log.write(data)
        else:
            self._unwatch(guest.output)
            os.close(guest.output)
            guest.output = -1
        return bool(data)

    def _watch_control(self, guest: _Guest) -> None:
        """Read the messages of a program while there is no agent."""
        fd = guest.channels.get("control")
        if fd is None:
            return
        wanted = self._agent is None and not guest.closed and len(guest.heard) < MOST_HEARD_BYTES
        self._watch(fd, selectors.EVENT_READ if wanted else 0, lambda _events: self._hear(guest, fd))

    def _hear(self, guest: _Guest, fd: int) -> None:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        guest.closed = not data
        guest.heard = without_old_progress(guest.heard + data)
        self._watch_control(guest)

    def _watch_pmi(self, guest: _Guest) -> None:
        fd = guest.channels.get("pmi")
        if fd is None:
            return
        reads = not guest.unsent and len(guest.request) < MOST_REQUEST_BYTES
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if guest.unsent else 0)
        self._watch(fd, events, lambda found: self._serve_pmi(guest, fd, found))

    def _serve_pmi(self, guest: _Guest, fd: int, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._send_answers(guest)
        if not events & selectors.EVENT_READ:
            return
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._release(guest, "pmi")
            return
        guest.request += data
        self._watch_pmi(guest)
        self._tell({"op": "request", "key": guest.key, "text": _text(data)})

    def _send_answers(self, guest: _Guest) -> None:
        fd = guest.channels.get("pmi")
        if fd is None:
            guest.unsent = b""
            return
        try:
            if guest.unsent:
                guest.unsent = guest.unsent[os.write(fd, guest.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            guest.unsent = b""
        self._watch_pmi(guest)

    # --- ends

    def _release(self, guest: _Guest, channel: str) -> None:
        fd = guest.channels.pop(channel, None)
        if fd is not None:
            self._unwatch(fd)
            os.close(fd)

    def _forget(self, guest: _Guest) -> None:
        """Release all that belongs to a guest; a program that still runs is killed."""
        guest.kill()
        for channel in list(guest.channels):
            self._release(guest, channel)
        if guest.pid:
            self._unwatch(guest.pidfd)
            os.waitpid(guest.pid, 0)
            os.close(guest.pidfd)
        if guest.output >= 0:
            self._unwatch(guest.output)
            os.close(guest.output)

    def _end(self) -> None:
        """Kill all programs, remove the files that they would leave, and end."""
        if self._ended:
            return
        self._ended = True
        for guest in self._guests.values():
            guest.kill()
        for guest in self._guests.values():
            self._forget(guest)
            for file in guest.files:
                with contextlib.suppress(OSError):
                    os.unlink(file)  # noqa: PTH108  # of MPI's shared memory
        with contextlib.suppress(OSError):
            (self._folder / SOCKET).unlink()
        self._listener.close()  # last: a client that finds no listener must find no program either


def _fence_file(folder: Path) -> FenceFile:
    from node_agent.fences import FenceFile  # noqa: PLC0415  # most keepers have no fences

    return FenceFile(folder)


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def _spawn(argv: list[str], env: dict[str, str], folder: str) -> tuple[int, int]:
    """Start a program in a session of its own; return its process id and its output. Raises `OSError`."""
    output, theirs = os.pipe2(os.O_CLOEXEC)
    problem, told = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(output, False)
    try:
        pid = os.fork()
        if pid == 0:
            _become(argv, env, folder, theirs, told)
        os.close(told)
        told = -1
        if error := os.read(problem, _CHUNK):  # empty after a successful execve
            os.waitpid(pid, 0)
            raise OSError(0, error.decode())
    except OSError:
        os.close(output)
        raise
    finally:
        for fd in (theirs, problem, *(() if told < 0 else (told,))):
            os.close(fd)
    return pid, output


def _become(argv: list[str], env: dict[str, str], folder: str, output: int, told: int) -> NoReturn:
    """Replace this new process by the program, or write the error to `told`."""
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(folder)
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.execve(argv[0], argv, env)  # noqa: S606  # no shell is wanted
    except OSError as error:
        os.write(told, f"{argv[0]}: {error.strerror}".encode())
    finally:
        os._exit(127)


def main() -> None:
    """Serve the folder, by the listening socket with the given number."""
    folder = Path(sys.argv[1])
    os.set_inheritable(int(sys.argv[2]), False)
    keeper = Keeper(folder, socket.socket(fileno=int(sys.argv[2])))
    try:
        keeper.run()
    except Exception:  # raised again: its standard error goes nowhere, so a file beside the socket has the traceback
        (folder / f"{SOCKET}.log").write_text(traceback.format_exc(), encoding="utf-8")
        raise


if __name__ == "__main__":
    main()
