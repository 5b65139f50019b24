"""Specification of a lab in a box and its nodes, with the names and paths of their parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from testbed.bus.drivers import traits_of
from testbed.bus.migration import Transport

RUN_ROOT = Path("/run/dfrs-testbed")
STORE_ROOT = Path("/var/lib/dfrs-testbed")


def prefix(lab: str) -> str:
    """Return the prefix of the names of all parts of a lab."""
    return f"dfrs-{lab}-"


def lab_dir(lab: str) -> Path:
    """Return the folder of a lab's state, sockets and logs; neither the folder nor the lab outlives a reboot."""
    return RUN_ROOT / lab


def store_dir(lab: str) -> Path:
    """Return the folder on disk of a lab's saved guests and caches."""
    return STORE_ROOT / lab


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node: its capacity (cores, MiB), its driver, and its address with prefix length on the guests' network.

    `image_budget_mib` limits the node's images on the disk; 0 is no limit but that of the disk. `transport` is that of
    live migrations between the hypervisors of the lab. `cpu_set` are the CPUs of the node's guests, by default all.
    """

    lab: str
    name: str
    cpus: float
    memory_mib: int
    driver: str
    address: str
    image_budget_mib: int = 0
    transport: Transport = "tls"
    cpu_set: tuple[int, ...] = ()

    @property
    def full_name(self) -> str:
        """Its network namespace, host name and control group partition."""
        return prefix(self.lab) + self.name

    @property
    def host(self) -> str:
        """Its address without the prefix length."""
        return self.address.partition("/")[0]

    @property
    def has_hypervisor(self) -> bool:
        """Whether its guests are virtual machines."""
        return bool(traits_of(self.driver).hypervisor)

    @property
    def is_nested(self) -> bool:
        """Whether the node is a virtual machine itself, in which its hypervisor, libvirtd and agent run."""
        return traits_of(self.driver).owns_machine

    @property
    def has_libvirtd(self) -> bool:
        """Whether the node has a libvirtd on this machine."""
        return self.has_hypervisor and not self.is_nested

    @property
    def run_dir(self) -> Path:
        """Folder of sockets, configuration and the agent's private files."""
        return lab_dir(self.lab) / self.name

    @property
    def store_dir(self) -> Path:
        """Folder on disk for saved guests, libvirt's files and logs."""
        return store_dir(self.lab) / self.name

    @property
    def image_dir(self) -> Path:
        """Folder of saved guests."""
        return self.store_dir / "images"

    @property
    def pki_dir(self) -> Path:
        """Folder of the certificates of its libvirtd and hypervisor, /etc/pki in the node's mount namespace."""
        return self.run_dir / "pki"

    @property
    def socket(self) -> Path:
        """The socket of its libvirtd, as a path outside the node's mount namespace."""
        return self.run_dir / "run" / "libvirt-sock"

    @property
    def libvirt_uri(self) -> str:
        """The URI of its libvirtd, for clients outside the node's mount namespace."""
        return f"qemu+unix:///system?socket={self.socket}"


@dataclass(frozen=True, slots=True)
class BoxSpec:
    """A lab: its nodes, the broker's kind, and the rate limit of links in Mbit/s (None is no limit).

    The limit applies per node and direction. `xen_scheduler` is the scheduler of the hypervisors in nested Xen nodes.
    """

    lab: str
    nodes: tuple[NodeSpec, ...]
    broker: str
    link_mbit_per_s: float | None
    emulator_headroom_frac: float
    xen_scheduler: Literal["credit", "credit2"] = "credit"

    @property
    def fabric(self) -> str:
        """The network namespace of the bridge between the nodes."""
        return prefix(self.lab) + "fabric"
