"""The drivers of this package: their entry points and declared traits, without importing them.

A controller reads the traits on machines that have neither libvirt nor Docker.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from testbed.bus.traits import DriverTraits

if TYPE_CHECKING:  # imported by controllers, too, which need no driver's code
    from node_agent.drivers.protocol import Driver


@dataclass(frozen=True, slots=True)
class BuiltInDriver:
    """An entry point that names a driver's class (`MODULE:CLASS`) and its declared traits."""

    place: str
    traits: DriverTraits

    def load(self) -> type[Driver]:
        """Import the class."""
        module, _, name = self.place.partition(":")
        return cast("type[Driver]", getattr(import_module(module), name))


PROCESS = BuiltInDriver("node_agent.drivers.process:ProcessDriver", DriverTraits(runs_own_programs=True))
DOCKER = BuiltInDriver(
    "node_agent.drivers.containers.driver:DockerDriver",
    DriverTraits(runs_own_programs=True, guests_are_children=False, extra="docker"),
)
LIBVIRT = BuiltInDriver(
    "node_agent.drivers.virt.driver:LibvirtDriver",
    DriverTraits(guests_are_children=False, hypervisor="qemu", extra="libvirt"),
)
XEN = BuiltInDriver(
    "node_agent.drivers.virt.xen:XenDriver",
    DriverTraits(guests_are_children=False, hypervisor="xen", owns_machine=True, extra="libvirt"),
)
NULL = BuiltInDriver("node_agent.drivers.null:NullDriver", DriverTraits(simulated=True, guests_are_children=False))
