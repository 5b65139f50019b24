"""State of a guest after a save or a migration whose outcome the hypervisor did not report."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import libvirt

from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt.hypervisor import Hypervisor
from node_agent.drivers.virt.platform import Platform

_LOOK_EVERY_S = 0.2


async def is_still_here(hypervisor: Hypervisor, name: str, call_s: float, within_s: float) -> bool:
    """Wait until the hypervisor runs no job on a domain any more, and return whether the domain is here.

    When the connection breaks during a save or a migration, the hypervisor continues by itself. A domain whose state
    stays unknown for `within_s` counts as here, so that it is not forgotten.
    """
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + within_s
    with contextlib.suppress(DriverError):
        while loop.time() < ends_s:
            if await hypervisor.find(name, call_s) is None:
                return False
            with contextlib.suppress(DriverError):  # it may go at this moment
                kind, *_ = await hypervisor.on_domain(name, call_s, lambda domain: domain.jobInfo())
                if kind == libvirt.VIR_DOMAIN_JOB_NONE:
                    return True
            await asyncio.sleep(_LOOK_EVERY_S)
    return True


async def is_image_of(hypervisor: Hypervisor, platform: Platform, image: Path, name: str) -> bool:
    """Return whether the hypervisor accepts a file as a whole image of a guest."""
    with contextlib.suppress(DriverError):
        call_s = platform.timeouts.call_s
        return await hypervisor.call(call_s, lambda connection: platform.saved_guest(connection, image)) == name
    return False
