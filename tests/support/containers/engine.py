"""A Docker engine for tests: it is invisible outside of its folder, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.live import HANG_S

_END_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.05
_GROUPS = Path("/sys/fs/cgroup")
# in a separate mount namespace, which removes its mounts at its end, and whose /run has no other engine's sockets
_APART = (
    "unshare", "--mount", "--propagation", "private", "--", "sh", "-c", 'mount -t tmpfs tmpfs /run && exec "$0" "$@"',
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineAt:
    """The address of the engine; `inside` is the prefix of a command that runs on the engine's network."""

    url: str
    inside: tuple[str, ...]


def group_of(url: str) -> str:
    """Return the control group of an engine's containers, as `engine` configures it."""
    return f"/{Path(url.removeprefix('unix://')).parent.name}"


def why_not() -> str:
    """Return why this machine cannot run an engine; empty if it can."""
    if os.geteuid() != 0:
        return "an engine needs root"
    for program, package in (("dockerd", "docker.io"), ("ip", "iproute2"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            return f"no {program} is installed ({package}: scripts/debian-packages test)"
    return ""


@contextlib.contextmanager
def engine(*, own_network: bool = False, experimental: bool = False) -> Iterator[EngineAt]:
    """Run an engine until the end of the block. Without a separate network its containers use the machine's.

    An `experimental` engine can checkpoint containers, if CRIU works on this machine.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dfrs-docker-")))
        inside = stack.enter_context(_network(folder.name)) if own_network else ()
        bridge = () if own_network else ("--bridge=none",)
        log = folder / "dockerd.log"
        with log.open("wb") as output:
            child = subprocess.Popen(
                [
                    *inside, *_APART, "dockerd", "--data-root", folder / "data", "--exec-root", folder / "exec",
                    "--pidfile", folder / "dockerd.pid", "-H", f"unix://{folder}/docker.sock", *bridge,
                    "--iptables=false", "--ip6tables=false", "--ip-forward=false", f"--cgroup-parent=/{folder.name}",
                    "--exec-opt=native.cgroupdriver=cgroupfs",
                    *(("--experimental",) if experimental else ()),
                ],
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        stack.callback(_end, child, folder.name)
        _until_up(child, folder / "docker.sock", log)
        yield EngineAt(f"unix://{folder}/docker.sock", inside)


@contextlib.contextmanager
def _network(name: str) -> Iterator[tuple[str, ...]]:
    """Make a network that has only a loopback interface; yields the prefix of a command that runs on it."""
    subprocess.run(["ip", "netns", "add", name], check=True)
    inside = ("nsenter", f"--net=/run/netns/{name}", "--")  # not `ip netns exec`, which hides the control groups
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        yield inside
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def _end(child: subprocess.Popen[bytes], name: str) -> None:
    """End the engine, and kill the remaining processes if it did not end cleanly."""
    child.terminate()
    try:
        child.wait(_END_WITHIN_S)  # speed: after that the engine is killed, which does not affect a test
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    hangs_s = time.monotonic() + HANG_S
    while not _cleaned(name):
        left = f"processes {_processes(name)}, {_groups(name)}"
        assert time.monotonic() < hangs_s, f"of the engine {name} is left: {left}"
        time.sleep(_LOOK_EVERY_S)  # this process gets no events of the ends of others' children


def _cleaned(name: str) -> bool:
    """Kill the engine's processes, and remove its control groups once they are empty; return whether all are gone."""
    left = _processes(name)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for group in _groups(name):
        with contextlib.suppress(OSError):  # a process in the group has not quite ended yet
            group.rmdir()
    return not left and not _groups(name)


def _processes(name: str) -> list[int]:
    """Return the engine's processes and its containers': a command line or control group has its folder's name."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if name.encode() in (process / "cmdline").read_bytes() + (process / "cgroup").read_bytes():
                found.append(int(process.name))
    return found


def _groups(name: str) -> list[Path]:
    """Return the engine's control groups, inner ones first."""
    tops = [_GROUPS / name, *_GROUPS.glob(f"*/{name}")]
    return [Path(folder) for top in tops for folder, _, _ in os.walk(top, topdown=False)]


def _until_up(child: subprocess.Popen[bytes], path: Path, log: Path) -> None:
    """Wait until the engine has its socket; it answers connections once it is ready."""
    hangs_s = time.monotonic() + HANG_S
    with socket.socket(socket.AF_UNIX) as probe:
        while probe.connect_ex(str(path)):
            assert child.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < hangs_s, log.read_text()[-2000:]
            time.sleep(_LOOK_EVERY_S)  # the engine reports its start only to systemd
