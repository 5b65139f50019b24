"""Declared properties of a driver, independent of its machine; agents send them with the facts of their node."""

from __future__ import annotations

from testbed.bus.records import Value, make_printable


class DriverTraits(Value, frozen=True):
    """Properties of a kind of guest that other parts of the testbed act on, so that none compares names of drivers.

    The defaults are those of a plug-in that declares nothing.
    """

    simulated: bool = False
    """Guests are arithmetic on the event loop's clock, which may be virtual: they use nothing of the machine."""
    runs_own_programs: bool = False
    """Guests run this package's programs by the node's own Python, as the agent's probe of the core's speed does."""
    guests_are_children: bool = True
    """Guests are descendants of the agent's process, and so a part of its systemd unit."""
    hypervisor: str = ""
    """libvirt's name of the hypervisor that runs the guests (`qemu`, `xen`); empty where guests need no libvirtd."""
    owns_machine: bool = False
    """The hypervisor is beneath the operating system: in a lab in a box its node is a virtual machine itself."""
    extra: str = ""
    """The extra of this package that an agent with the driver needs."""

    def __post_init__(self) -> None:
        """Make what a person reads printable."""
        make_printable(self, "hypervisor", "extra")
