"""MPICH's process manager, Hydra, driven by hand: it prints the command lines of its proxies instead of running them.

One proxy a guest, each started by the agent of the guest's node, so that neither ssh nor a shell is involved. The
manager tells its proxies an environment of nothing, so each rank has that of its proxy.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable, Sequence

from node_agent.drivers.procs.environment import BIN, rank_argv
from node_agent.drivers.protocol import DriverError

PROXY = "hydra_pmi_proxy"
LAUNCHED_WITHIN_S = 10.0
_OWN_FOLDER = "/proc/self/cwd"  # of whoever opens it; the manager would complete a relative path with its own
_NUMBER = r"-?\d{1,9}"
_OPTIONS = {
    "--control-port": r"[A-Za-z0-9][A-Za-z0-9.:-]{0,253}:\d{1,5}",
    "--rmk": "user",
    "--launcher": "manual",
    "--demux": "poll|select",
    "--pgid": _NUMBER,
    "--retries": _NUMBER,
    "--usize": _NUMBER,
    "--pmi-port": _NUMBER,
    "--gpus-per-proc": _NUMBER,
    "--gpu-subdevs-per-proc": _NUMBER,
    "--proxy-id": _NUMBER,
}


def manager_argv(address: str, hosts: Sequence[str]) -> list[str]:
    """Return the command line of the manager, which proxies reach at `address`; one rank a host.

    Each rank runs in its proxy's own folder: the manager's may not be there on another node.
    """
    return [
        str(BIN / "mpiexec"), "-genvnone", "-localhost", address, "-launcher", "manual", "-hosts", ",".join(hosts),
        "-wdir", _OWN_FOLDER, "-n", str(len(hosts)), *rank_argv(),
    ]  # fmt: skip


def proxy_argv(argv: Sequence[str]) -> list[str]:
    """Check a proxy's command line that came from another node and return it with this node's proxy.

    Raises `DriverError` for anything but options of the proxy with values of their kind.
    """
    if not argv or argv[0].rpartition("/")[2] != PROXY or len(argv) % 2 != 1:
        raise DriverError(f"proxy command {shlex.join(argv)!r}: expected {PROXY} and its options")
    for option, value in zip(argv[1::2], argv[2::2], strict=True):
        if option not in _OPTIONS or not re.fullmatch(_OPTIONS[option], value):
            raise DriverError(f"proxy command: {option} {value}: expected only options that the process manager gives")
    if not {"--control-port", "--proxy-id"} <= set(argv[1::2]):
        raise DriverError(f"proxy command {shlex.join(argv)!r}: expected --control-port and --proxy-id")
    return [str(BIN / PROXY), *argv[1:]]


class LaunchLines:
    """Reads the manager's output: first the proxies' command lines, then what ranks print."""

    def __init__(self, then: Callable[[bytes], None]) -> None:
        self._then = then
        self._rest = b""
        self._lines: list[list[str]] = []
        self.launched: asyncio.Future[list[list[str]]] = asyncio.get_running_loop().create_future()

    def feed(self, data: bytes) -> None:
        """Take some output."""
        if self.launched.done():
            self._then(data)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self.launched.done():
                self._then(line + b"\n")
            elif line.startswith(b"HYDRA_LAUNCH_END"):
                self.launched.set_result(self._lines)
            elif line.startswith(b"HYDRA_LAUNCH:"):
                self._lines.append(shlex.split(line.partition(b":")[2].decode()))
            else:
                self._then(line + b"\n")
        if self.launched.done() and self._rest:
            self._then(self._rest)
