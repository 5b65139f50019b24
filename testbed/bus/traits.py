"""Declared properties (traits) of a driver, independent of its machine; agents send them with their node's facts."""

from __future__ import annotations

from testbed.bus.records import Value, make_printable


class DriverTraits(Value, frozen=True):
    """Properties of a kind of guest, so that other parts of the testbed need not compare names of drivers.

    The defaults are those of a plug-in that declares nothing.
    """

    simulated: bool = False
    """Guests are computed by the event loop's clock, which may be virtual: they use no resources of the machine."""
    runs_own_programs: bool = False
    """Guests run this package's programs with the node's own Python, as the agent's probe of the core's speed does."""
    guests_are_children: bool = True
    """Guests are descendants of the agent's process, and therefore part of its systemd unit."""
    hypervisor: str = ""
    """libvirt's name of the hypervisor that runs the guests (`qemu`, `xen`); empty where guests need no libvirtd."""
    owns_machine: bool = False
    """The hypervisor runs below the operating system: in a box such a node is a virtual machine itself."""
    extra: str = ""
    """The optional dependency group (extra) of this package that an agent with the driver needs."""

    def __post_init__(self) -> None:
        """Make texts that people read printable."""
        make_printable(self, "hypervisor", "extra")
