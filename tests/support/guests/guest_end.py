"""The host's end of a guest agent's channel, and guests for it: a machine under QEMU, or the agent alone."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from node_agent.drivers.pmi.server import Barrier, PmiServer
from node_agent.guests import wire
from node_agent.guests.image import command_line
from support.live import HANG_S
from testbed.bus.mpi_barriers import Barriers, Entered
from testbed.host.guest_image import GuestImage

QEMU = "qemu-system-x86_64"
NEEDS_QEMU = f"{QEMU} is not installed"
NEEDS_GCC = "gcc is not installed"


def missing(*tools: str) -> bool:
    return any(shutil.which(tool) is None for tool in tools)


class Host:
    """Orders to a guest, and all frames that came from it."""

    def __init__(self, end: socket.socket, last_words: Callable[[], str] = lambda: "") -> None:
        self.end = end
        self._last_words = last_words
        self.reader = wire.Reader()
        self.frames: list[wire.Frame] = []
        self.last_id = 0

    def send(self, kind: str, *fields: tuple[str, object], order: int | None = None) -> int:
        if order is None:
            self.last_id += 1
            order = self.last_id
        self.end.sendall(wire.encode(kind, [("id", order), *fields]))
        return order

    def receive(self, timeout_s: float) -> bool:
        """Receive the frames that arrive within a time; return whether there were any."""
        if not select.select([self.end], [], [], timeout_s)[0]:
            return False
        try:
            data = self.end.recv(65536)
        except ConnectionResetError:
            data = b""
        assert data, f"the guest's end was closed; {self._last_words()}"
        self.frames += self.reader.feed(data)
        return True

    def until(self, wanted: Callable[[wire.Frame], bool], since: int = 0) -> wire.Frame:
        end_s = time.monotonic() + HANG_S
        while True:
            for frame in self.frames[since:]:
                if wanted(frame):
                    return frame
            left_s = end_s - time.monotonic()
            assert left_s > 0, f"did not come; there were {self.frames[-20:]}"
            self.receive(left_s)

    def kind(self, kind: str, since: int = 0) -> wire.Frame:
        return self.until(lambda frame: frame.kind == kind, since)

    def order(self, kind: str, *fields: tuple[str, object], number: int | None = None) -> wire.Frame:
        since = len(self.frames)
        number = self.send(kind, *fields, order=number)
        answers = ("ok", "attached", "refused")
        return self.until(lambda f: f.kind in answers and f.count("id") == number, since=since)

    def run(self, *argv: str) -> int:
        answer = self.order("run", *wire.repeated("arg", argv))
        assert answer.kind == "ok", answer
        return answer.count("pid")


class Ranks:
    """The process manager of an MPI job's ranks at the host's ends of their guests' channels, and the barriers."""

    def __init__(self, hosts: Sequence[Host], session: str = "0123456789abcdef") -> None:
        self.hosts = list(hosts)
        self.servers = [PmiServer(rank, len(hosts), session) for rank in range(len(hosts))]
        self.lines: list[list[wire.Frame]] = [[] for _ in hosts]  # by rank, in the order of arrival
        self.barriers = Barriers(len(hosts))
        self.pids: list[int] = []
        self._looked = [0] * len(hosts)

    def start(self, program: str) -> None:
        for host, server in zip(self.hosts, self.servers, strict=True):
            place = [("rank", server.rank), ("ranks", server.ranks), ("state", self.state(server.rank))]
            self.pids.append(host.order("rank", *place, ("arg", program)).count("pid"))

    def state(self, rank: int) -> str:
        return f"{self.servers[rank].session}.{self.servers[rank].barriers}"

    def answer(self, rank: int, text: str) -> None:
        number = self.lines[rank][-1].count("number")
        fields = [("number", number), ("state", self.state(rank)), ("text", text)]
        assert self.hosts[rank].order("pmi", *fields).kind == "ok"

    def look(self) -> None:
        """Answer the requests of ranks."""
        for rank, host in enumerate(self.hosts):
            host.receive(0.001)
            new, self._looked[rank] = host.frames[self._looked[rank] :], len(host.frames)
            for frame in new:
                if frame.kind == "pmi":
                    self.lines[rank].append(frame)
                    self._take(rank, self.servers[rank].take(frame.text("line").encode()))

    def _take(self, rank: int, taken: str | Barrier | None) -> None:
        if not isinstance(taken, Barrier):
            self.answer(rank, taken or "")
        elif self.barriers.enter(rank, taken.number, taken.keys) is Entered.ALL:
            for server in self.servers:
                passed = server.pass_barrier(taken.session, taken.number, self.barriers.keys, last=True)
                assert passed is not None
                self.answer(server.rank, passed)

    def until(self, kind: str) -> list[wire.Frame]:
        """Serve the ranks until each guest has sent a report; return the reports."""
        end_s = time.monotonic() + HANG_S
        while not all(any(frame.kind == kind for frame in host.frames) for host in self.hosts):
            assert time.monotonic() < end_s, [host.frames[-20:] for host in self.hosts]
            self.look()
        return [host.kind(kind) for host in self.hosts]


class AgentAlone:
    """The guest agent as a process of this machine, its port a socket."""

    def __init__(self, binary: Path, folder: Path, **environment: str) -> None:
        ours, theirs = socket.socketpair()
        self.folder = folder
        with theirs:
            argv = [str(binary), str(theirs.fileno()), str(folder)]
            told = {"DFRS_TEST_PORT": str(theirs.fileno()), "DFRS_TEST_FOLDER": str(folder)}  # see odd_port.c
            self.process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], env={**os.environ, **told, **environment})
        self.host = Host(ours)

    def close(self) -> None:
        self.host.end.close()
        self.process.kill()
        self.process.wait()


class Machine:
    """A guest under QEMU's emulation; `network` are the options of its card's back end."""

    def __init__(
        self, image: GuestImage, folder: Path, name: str, memory_mib: int, address: str = "", network: str = "",
        machine: str = "pc",
    ) -> None:  # fmt: skip
        self.console = folder / f"{name}.console"
        path = folder / f"{name}.sock"
        card: list[str] = []
        if network:
            number = int(address.partition("/")[0].rpartition(".")[2])
            model = f"virtio-net-pci,netdev=n0,romfile=,mac=52:54:00:00:00:{number:02x}"
            card = ["-netdev", f"{network},id=n0", "-device", model]
        self.started_s = time.monotonic()
        self.process = subprocess.Popen([
            QEMU, "-accel", "tcg", "-M", machine, "-cpu", "max", "-m", str(memory_mib), "-nodefaults",
            "-no-user-config", "-display", "none", "-no-reboot",
            "-kernel", str(image.kernel), "-initrd", str(image.initramfs),
            "-append", command_line(name, address or None), "-serial", f"file:{self.console}",
            "-device", "virtio-serial-pci", "-chardev", f"socket,id=ctl,path={path},server=on,wait=off",
            "-device", "virtserialport,chardev=ctl,name=dfrs.ctl", *card,
        ])  # fmt: skip
        end = socket.socket(socket.AF_UNIX)
        while True:
            try:
                end.connect(str(path))
                break
            except OSError:
                assert self.process.poll() is None, "QEMU ended"
                select.select([], [], [], 0.02)
        self.host = Host(end, self._last_words)

    def _last_words(self) -> str:
        """Return QEMU's exit code, and the last lines of the guest's kernel."""
        said = self.console.read_text(errors="replace")
        return f"QEMU: {self.process.poll()}; console: {said[-4000:]}"

    def attach(self) -> float:
        """Attach to the agent as soon as it listens; return the seconds from the start to its hello."""
        end_s = time.monotonic() + HANG_S
        while not any(frame.kind == "hello" for frame in self.host.frames):
            assert time.monotonic() < end_s, self._last_words()
            assert self.process.poll() is None, self._last_words()
            self.host.send("attach", ("after", 0))
            self.host.receive(1.0)
        return time.monotonic() - self.started_s

    def close(self) -> None:
        self.host.end.close()
        self.process.kill()
        self.process.wait()
