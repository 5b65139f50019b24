"""States of domains: listed, queried, suspended and resumed with the effect read back."""

from __future__ import annotations

import contextlib

import libvirt

from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt.domain import owner_of


def runs(domain: libvirt.virDomain) -> bool:
    """Whether a domain is running."""
    return bool(domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING)


def list_owners(connection: libvirt.virConnect) -> list[dict[str, str]]:
    """Return the owners of the testbed's domains, from their metadata."""
    owners = []
    for domain in connection.listAllDomains():
        with contextlib.suppress(libvirt.libvirtError):  # it ended just now
            owner = owner_of(domain.XMLDesc())
            if owner:
                owners.append(dict(owner))
    return owners


def suspend(domain: libvirt.virDomain) -> None:
    """Suspend a domain, unless it is suspended already; raises `DriverError`."""
    if domain.state()[0] != libvirt.VIR_DOMAIN_PAUSED:
        domain.suspend()
    state = domain.state()[0]
    if state != libvirt.VIR_DOMAIN_PAUSED:
        raise DriverError(f"{domain.name()} is in state {state} after it was suspended")


def resume(domain: libvirt.virDomain) -> None:
    """Resume a domain; raises `DriverError`."""
    domain.resume()
    state = domain.state()[0]
    if state != libvirt.VIR_DOMAIN_RUNNING:
        raise DriverError(f"{domain.name()} is in state {state} after it was resumed")
