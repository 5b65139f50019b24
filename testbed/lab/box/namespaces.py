"""The mount and UTS namespaces of a node, which make the node look like a separate machine to libvirt.

A sleeping process keeps the namespaces alive; other processes enter them by its /proc files. In the mount namespace:

* libvirt's folders and the certificates of the hypervisor are the node's own.
* /sys shows the node's network namespace, and also the control groups.
* The machine's D-Bus and systemd are hidden, so that libvirt itself creates the guests' control groups inside the
  partition, and no reload of systemd resets their quotas.
* libvirt's state of running guests is on a tmpfs, as /run is on most machines. libvirt syncs that state at each change,
  which on a disk would wait for images that are being saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.errors import RunError
from testbed.lab.box.commands import program
from testbed.lab.box.processes import (
    ProcessId,
    alive,
    kill_all,
    last_line,
    mark,
    marked,
    spawn,
    wait_until,
    with_housemates,
)
from testbed.lab.box.spec import NodeSpec
from testbed.lab.box.state import Journal

# $1 host name, $2 folder of sockets and configuration, $3 folder on disk
_FURNISH = """
hostname "$1"
mkdir -p /run/libvirt /etc/libvirt /etc/pki /var/lib/libvirt /var/log/libvirt /var/cache/libvirt
mount --bind "$2/run" /run/libvirt
mkdir -p /run/libvirt/qemu
mount -t tmpfs -o mode=755 state /run/libvirt/qemu
mount --bind "$2/etc" /etc/libvirt
mount --bind "$2/pki" /etc/pki
mount --bind "$3/lib" /var/lib/libvirt
mount --bind "$3/log" /var/log/libvirt
mount --bind "$3/cache" /var/cache/libvirt
for hidden in /run/dbus /run/systemd; do
  if [ -d "$hidden" ]; then mount -t tmpfs -o size=4k,mode=755 hidden "$hidden"; fi
done
mount --rbind /sys/fs/cgroup "$2/cgroup"
mount -t sysfs sysfs /sys
mount --move "$2/cgroup" /sys/fs/cgroup
: > "$2/furnished"
exec sleep infinity
"""
RUN_FOLDERS = ("run", "etc/qemu", "pki", "cgroup")
STORE_FOLDERS = ("lib/qemu", "log", "cache/qemu", "images")
_FURNISHED_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class NodeNamespaces:
    """The namespaces of one node, and the process that keeps them alive."""

    node: NodeSpec
    journal: Journal

    @property
    def name(self) -> str:
        """See `Part.name`."""
        return f"namespaces {self.node.full_name}"

    def there(self) -> bool:
        """See `Part.there`."""
        return is_on_network(self.journal.process(self.name), self.node) and self._furnished.exists()

    def make(self) -> None:
        """See `Part.make`."""
        node = self.node
        self._furnished.unlink(missing_ok=True)
        log = node.store_dir / "log" / "namespaces.log"
        process = spawn(
            [
                *(
                    program("nsenter"),
                    f"--net=/run/netns/{node.full_name}",
                ),  # first, as a mounted /sys shows the network namespace of the mounting process
                *(program("unshare"), "--mount", "--uts", "--propagation", "private"),
                *(program("sh"), "-euc", _FURNISH, "sh", node.full_name, str(node.run_dir), str(node.store_dir)),
            ],
            mark(node.lab, node.name, "namespaces"),
            log,
        )
        self.journal.started(self.name, process)
        if not wait_until(lambda: self._furnished.exists() or not alive(process), _FURNISHED_WITHIN_S):
            raise RunError(f"{self.name}: not ready after {_FURNISHED_WITHIN_S:g} s{last_line(log)}")
        if not alive(process):
            raise RunError(f"{self.name}: the process that keeps them ended{last_line(log)}")

    def remove(self) -> list[str]:
        """See `Part.remove`; all processes that still run in the namespaces are killed."""
        killed = kill_all(lambda: with_housemates(marked(self.node.lab, self.node.name)))
        return [f"{self.name} ({killed} {'process' if killed == 1 else 'processes'})"] if killed else []

    @property
    def _furnished(self) -> Path:
        return self.node.run_dir / "furnished"


def is_on_network(process: ProcessId | None, node: NodeSpec) -> bool:
    """Whether a process runs in the network namespace that currently has the node's name, not in an earlier one."""
    if process is None or not alive(process):
        return False
    try:
        own, named = Path(f"/proc/{process.pid}/ns/net").stat(), Path(f"/run/netns/{node.full_name}").stat()
    except FileNotFoundError:
        return False
    return own.st_ino == named.st_ino


def enter(node: NodeSpec, journal: Journal, *, network: bool) -> list[str]:
    """Return a prefix for a command line that runs the command within a node.

    The command uses the node's network namespace with `network`, else that of the machine.
    """
    keeper = journal.process(f"namespaces {node.full_name}")
    if keeper is None or not alive(keeper):
        raise RunError(f"node {node.name}: its namespaces are gone; no process can be started in it")
    own = f"/proc/{keeper.pid}/ns"
    return [
        *(program("nsenter"), f"--mount={own}/mnt", f"--uts={own}/uts"),
        *([f"--net=/run/netns/{node.full_name}"] if network else []),
    ]
