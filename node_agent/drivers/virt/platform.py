"""The differences between the hypervisors behind libvirt, as an interface for the driver and its guests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import libvirt

from node_agent.drivers.protocol import NodeBudget
from node_agent.drivers.virt.hypervisor import Hypervisor
from testbed.bus.messages import GuestSpec
from testbed.host.guest_image import GuestImage


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts of a driver, in seconds."""

    call_s: float = 30.0  # for libvirt
    boot_s: float = 90.0  # for a guest's first frame
    order_s: float = 30.0  # for a guest to answer
    memory_s: float = 300.0  # for a guest's memory to be filled, saved, restored
    silence_s: float = 60.0  # without a beat of a guest whose machine should work and does not
    reattach_s: float = 20.0  # without a beat of a guest whose machine works, before the next attach
    reattachments: int = 3  # in a row without a new work unit; the next one ends the guest: no progress


@dataclass(frozen=True, slots=True)
class DomainSample:
    """The last sample of a domain: the sum of its virtual CPUs' caps in cores (None: uncapped), their CPU time,
    the memory it occupies, its weight where the hypervisor has to be asked for it, and the total throttled time of a
    domain with one virtual CPU where the hypervisor measures it.
    """  # noqa: D205  # one sentence

    cap_cores: float | None
    cpu_s: float
    rss_mib: float
    weight: int = 0
    throttled_s: float | None = None


class Vcpus(Protocol):
    """A running domain's virtual CPUs. All methods but `seen` may block, and raise `OSError` or `DriverError`."""

    def set_cap(self, domain: libvirt.virDomain, each_cores: float) -> None:
        """Cap each virtual CPU; 1 core and more is no cap."""

    def cap_cores(self) -> float | None:
        """Return the sum of the caps in cores as it is now, None without one."""

    def set_part(self, domain: libvirt.virDomain, part_frac: float) -> None:
        """Set the part of the node that the domain gets while others want the rest."""

    def part_frac(self) -> float:
        """Return that part as it is now."""

    def seen_part_frac(self) -> float:
        """Return that part at once, as of the last sample; raises as `seen` does."""

    def cpu_s(self) -> float:
        """Return the CPU time that they have used by now."""

    def look(self) -> None:
        """Refresh the sample of `seen`."""

    def seen(self) -> DomainSample:
        """Return the last sample at once; raises `OSError`, `ValueError` or `DriverError` if the domain has gone."""


class Platform(Protocol):
    """One hypervisor. Methods that take a domain or a connection block: they are called in threads."""

    hypervisor: str  # its name in URIs of libvirt
    consoles: Path  # the folder of the guests' consoles, on the hypervisor's file system
    timeouts: Timeouts  # for calls to it and its guests
    shared: bool  # whether agents of several nodes may use one hypervisor, each with its own domains
    heavy_at_once: int  # how many domains may be created, saved or restored at the same time
    taps: bool  # whether virtual CPUs are threads of this machine, and cards are taps
    dirty_rates: bool  # whether it measures at which rates guests write to their memory
    aborts_saves: bool  # whether a save in progress can be aborted
    keepalive_s: int  # interval of libvirt's keepalive; three without an answer close the connection
    boot_s: float  # about how long a small guest takes to start; known once it is open

    async def open(self, hypervisor: Hypervisor, budget: NodeBudget, image: GuestImage) -> tuple[str, ...]:
        """Determine how guests run; returns this as capabilities."""

    def versions(self, connection: libvirt.virConnect) -> Mapping[str, str]:
        """Return the versions of the software in use, by name."""

    def console_path(self, guest: str) -> Path:
        """Return the file that a guest's console is written to."""

    def domain_xml(self, spec: GuestSpec, node: str) -> str:
        """Return the domain of a guest: uncapped, with as many virtual CPUs as its program has workers, no disk."""

    def control_path(self, xml: str) -> Path:
        """Return the socket or terminal of a running domain's control channel; `DriverError` while there is none."""

    def vcpus(self, guest: str, hypervisor: Hypervisor) -> Vcpus:
        """Return the virtual CPUs of a running or paused domain; raises `DriverError`."""

    def save(self, domain: libvirt.virDomain, image: Path) -> None:
        """Write a paused domain to a file, and end it."""

    def saved_guest(self, connection: libvirt.virConnect, image: Path) -> str:
        """Return the name of the guest in a file; raises an error for an incomplete file."""

    def restore(self, connection: libvirt.virConnect, image: Path, spec: GuestSpec, node: str) -> None:
        """Restore a saved guest, paused and uncapped, as our own domain; `DriverError` if the file has another."""
