"""The control domain (dom0) of a nested Xen node, queried and configured from outside by ssh."""

from __future__ import annotations

import secrets
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import RunError
from testbed.host.interpreter import module_argv
from testbed.lab.box.commands import CommandError, program, run
from testbed.lab.box.spec import NodeSpec
from testbed.lab.box.xen.image import XenImage
from testbed.lab.box.xen.recipe import HOST_NAME

BRIDGE = "xenbr0"
SCRIPT = "vif-dfrs"  # Xen's hotplug script, which attaches guests to the bridge
OUTSIDE = "10.0.2.2"  # address for the host's loopback interface in QEMU's user network
AGENT_FILES = "/opt/dfrs"
AGENT_STATE = "/var/lib/dfrs/agent"
_URI = "xen:///system"
_PID_FILE = "/run/dfrs-agent.pid"
_ASK_WITHIN_S = 60.0  # an ssh login takes seconds on an emulated processor, and longer under load
_LOGIN_WITHIN_S = 20.0
_BECOME_WITHIN_S = 90.0
# $1 host name, $2 address with prefix length, $3 hardware address; standard input: a random seed, then the time.
# All nodes are loaded from one saved state: without a new seed they would all produce the same random numbers.
_BECOME = f"""
mount -t ext4 -o ro /dev/vdb {AGENT_FILES}
mkdir -p {AGENT_STATE}
hostname "$1"
ip link set eth1 address "$3"
ip link add {BRIDGE} address "$3" type bridge
ip link set eth1 master {BRIDGE} up
ip link set {BRIDGE} up
ip address add "$2" dev {BRIDGE}
read -r seed
echo "$seed" > /dev/urandom
python3 -c 'import fcntl; fcntl.ioctl(open("/dev/urandom", "wb"), 0x5207)' # RNDRESEEDCRNG
echo ready
read -r now
date --set "@$now" > /dev/null
"""
_END_AGENT = f"""
pid=$(cat {_PID_FILE} 2> /dev/null) || exit 0
grep -qs node_agent "/proc/$pid/cmdline" || exit 0
kill -TERM "$pid"
for _ in $(seq "$1"); do
  [ -d "/proc/$pid" ] || exit 0
  sleep 0.2
done
kill -KILL "$pid"
"""
_TELL_GUESTS = f"""
names=$(virsh -c {_URI} list --name)
for domain in $names; do
  echo "domain $domain"
  virsh -c {_URI} schedinfo "$domain" 2> /dev/null || true
done
"""


@dataclass(frozen=True, slots=True)
class Dom0:
    """The control domain of one node. All methods block, within deadlines of their own, and raise `RunError`."""

    node: NodeSpec

    @property
    def _folder(self) -> Path:
        return self.node.run_dir / "xen"

    def furnish(self, image: XenImage, ssh_port: int) -> None:
        """Copy the image's ssh keys to the node's folder, as an image that is built later has other keys."""
        for path in (image.key, image.known_hosts):
            shutil.copy(path, self._folder / path.name)
        (self._folder / "port").write_text(f"{ssh_port}\n", encoding="ascii")

    def command(self, words: str) -> list[str]:
        """Return the ssh command line that runs a shell command in the control domain."""
        try:
            port = (self._folder / "port").read_text(encoding="ascii").strip()
        except OSError as error:
            raise RunError(f"dom0 of {self.node.name}: {error.filename}: {error.strerror}") from error
        settings = {
            "BatchMode": "yes", "IdentitiesOnly": "yes", "StrictHostKeyChecking": "yes", "HostKeyAlias": HOST_NAME,
            "UserKnownHostsFile": self._folder / "known_hosts", "GlobalKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR", "ConnectTimeout": round(_ASK_WITHIN_S),
            "ServerAliveInterval": 10, "ServerAliveCountMax": 6,
        }  # fmt: skip
        return [
            *(program("ssh"), "-F", "none", "-i", str(self._folder / "key"), "-p", port),
            *(word for name, value in settings.items() for word in ("-o", f"{name}={value}")),
            *("root@127.0.0.1", words),
        ]

    def ask(self, words: str, timeout_s: float = _ASK_WITHIN_S) -> str:
        """Run a shell command in the control domain and return its output."""
        try:
            return run(*self.command(words), timeout_s=timeout_s)
        except CommandError as error:
            raise self._failure(error.ending, error.said) from error

    def lets_in(self) -> bool:
        """Whether an ssh login succeeds."""
        try:
            self.ask("true", _LOGIN_WITHIN_S)
        except RunError:
            return False
        return True

    def answers(self, timeout_s: float = _ASK_WITHIN_S) -> bool:
        """Whether the libvirtd in the control domain answers requests."""
        try:
            self.ask(f"virsh -c {_URI} version", timeout_s)
        except RunError:
            return False
        return True

    def become(self, hardware_address: str) -> None:
        """Configure the control domain as its node (name, network, random seed, clock) after its state was loaded."""
        words = _words(_BECOME, self.node.full_name, self.node.address, hardware_address)
        with subprocess.Popen(  # noqa: S603  # arguments are a list, built from checked names
            self.command(words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            if child.stdin is None or child.stdout is None:
                raise self._failure("no pipes", "")
            try:
                child.stdin.write(f"{secrets.token_hex(64)}\n")
                child.stdin.flush()
                child.stdout.readline()
                # the time is sent last, so that the control domain sets its clock without a delay
                _, said = child.communicate(f"{time.time():.6f}\n", timeout=_BECOME_WITHIN_S)
            except (OSError, subprocess.TimeoutExpired) as error:
                child.kill()
                raise self._failure("it did not become the node", str(error)) from error
        if child.returncode != 0:
            lines = said.strip().splitlines()
            raise self._failure(f"exit code {child.returncode}", lines[-1] if lines else "")

    def agent_command(self, arguments: list[str]) -> list[str]:
        """Return the ssh command line that runs the agent in the control domain."""
        # with a higher priority than the creation of domains, as a node with a silent agent counts as lost
        agent = shlex.join(["nice", "-n", "-10", *module_argv("node_agent", *arguments, python="python3")])
        return self.command(
            f"echo $$ > {_PID_FILE}; cd /; export PYTHONPATH={AGENT_FILES}/python LC_ALL=C.UTF-8; exec {agent}"
        )

    def end_agent(self, grace_s: float) -> None:
        """End the agent in the control domain, if it runs: by SIGTERM, after `grace_s` by SIGKILL."""
        self.ask(_words(_END_AGENT, str(round(grace_s * 5))), grace_s + _ASK_WITHIN_S)

    def guests(self) -> list[tuple[str, float | None]]:
        """Return the node's guests as (name, cap in cores); None is no cap."""
        return read_guests(self.ask(_words(_TELL_GUESTS)))

    def _failure(self, ending: str, said: str) -> RunError:
        return RunError(f"dom0 of {self.node.name}: {ending}{': ' if said else ''}{said}")


def read_guests(told: str) -> list[tuple[str, float | None]]:
    """Parse guests and their caps from a line `domain NAME` per guest, each followed by virsh's `schedinfo`."""
    found: list[tuple[str, float | None]] = []
    for line in told.splitlines():
        key, _, value = line.partition(":")
        if line.startswith("domain "):
            found.append((line.removeprefix("domain ").strip(), None))
        elif key.strip() == "cap" and found and int(value) > 0:
            found[-1] = (found[-1][0], int(value) / 100)  # in percent of one CPU
    return [(name, cap) for name, cap in found if name != "Domain-0"]


def _words(script: str, *arguments: str) -> str:
    return shlex.join(["sh", "-euc", script, "sh", *arguments])
