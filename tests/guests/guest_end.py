"""The host's end of a guest agent's channel, and guests to speak with: a machine under QEMU, or the agent alone."""

from __future__ import annotations

import select
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from node_agent.guests import wire
from node_agent.guests.image import GuestImage, command_line

QEMU = "qemu-system-x86_64"
NEEDS_QEMU = f"{QEMU} is not installed"
NEEDS_GCC = "gcc is not installed"


def missing(*tools: str) -> bool:
    return any(shutil.which(tool) is None for tool in tools)


class Host:
    """Orders to a guest, and all frames that came from it."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
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
        """Take what is there within a time; return whether anything came."""
        if not select.select([self.end], [], [], timeout_s)[0]:
            return False
        data = self.end.recv(65536)
        assert data, "the guest's end was closed"
        self.frames += self.reader.feed(data)
        return True

    def until(self, wanted: Callable[[wire.Frame], bool], timeout_s: float = 20.0, since: int = 0) -> wire.Frame:
        end_s = time.monotonic() + timeout_s
        while True:
            for frame in self.frames[since:]:
                if wanted(frame):
                    return frame
            left_s = end_s - time.monotonic()
            assert left_s > 0, f"did not come; there were {self.frames[-20:]}"
            self.receive(left_s)

    def kind(self, kind: str, timeout_s: float = 20.0, since: int = 0) -> wire.Frame:
        return self.until(lambda frame: frame.kind == kind, timeout_s, since)

    def order(self, kind: str, *fields: tuple[str, object], number: int | None = None) -> wire.Frame:
        since = len(self.frames)
        number = self.send(kind, *fields, order=number)
        answers = ("ok", "attached", "refused")
        return self.until(lambda f: f.kind in answers and f.count("id") == number, since=since)

    def run(self, *argv: str) -> int:
        answer = self.order("run", *wire.repeated("arg", argv))
        assert answer.kind == "ok", answer
        return answer.count("pid")

    def launch_lines(self, pid: int) -> list[list[str]]:
        """Return the command lines of the proxies that the process manager prints."""
        self.until(lambda f: f.kind == "out" and f.text("text").startswith("HYDRA_LAUNCH_END"))
        lines = [f.text("text") for f in self.frames if f.kind == "out" and f.count("pid") == pid]
        return [shlex.split(line.partition(":")[2]) for line in lines if line.startswith("HYDRA_LAUNCH:")]


class AgentAlone:
    """The guest agent as a process of this machine, its port a socket."""

    def __init__(self, binary: Path, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [str(binary), str(theirs.fileno()), str(folder)]
            self.process = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
        self.host = Host(ours)

    def close(self) -> None:
        self.host.end.close()
        self.process.kill()
        self.process.wait()


class Machine:
    """A guest under QEMU's emulation; `network` are the options of its card's back end."""

    def __init__(
        self, image: GuestImage, folder: Path, name: str, memory_mib: int, address: str = "", network: str = ""
    ) -> None:
        self.console = folder / f"{name}.console"
        path = folder / f"{name}.sock"
        card: list[str] = []
        if network:
            number = int(address.partition("/")[0].rpartition(".")[2])
            model = f"virtio-net-pci,netdev=n0,romfile=,mac=52:54:00:00:00:{number:02x}"
            card = ["-netdev", f"{network},id=n0", "-device", model]
        self.started_s = time.monotonic()
        self.process = subprocess.Popen([
            QEMU, "-accel", "tcg", "-M", "pc", "-cpu", "max", "-m", str(memory_mib), "-nodefaults", "-no-user-config",
            "-display", "none", "-no-reboot", "-kernel", str(image.kernel), "-initrd", str(image.initramfs),
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
        self.host = Host(end)

    def attach(self, timeout_s: float = 60.0) -> float:
        """Attach to the agent as soon as it is there; return how long after the start it said hello."""
        end_s = time.monotonic() + timeout_s
        while not any(frame.kind == "hello" for frame in self.host.frames):
            assert time.monotonic() < end_s, self.console.read_text(errors="replace")
            assert self.process.poll() is None, self.console.read_text(errors="replace")
            self.host.send("attach", ("after", 0))
            self.host.receive(1.0)
        return time.monotonic() - self.started_s

    def close(self) -> None:
        self.host.end.close()
        self.process.kill()
        self.process.wait()
