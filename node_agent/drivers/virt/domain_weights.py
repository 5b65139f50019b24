"""The weight of one virtual machine, through libvirt."""

from __future__ import annotations

from collections.abc import Callable

import libvirt

from node_agent.drivers.virt.hypervisor import Hypervisor
from node_agent.drivers.virt.platform import Vcpus


class DomainWeights:
    """See `Weights`: the node's partition, or its hypervisor, bounds all guests together."""

    def __init__(self, hypervisor: Hypervisor, call_s: float, vcpus: Callable[[], Vcpus]) -> None:
        self._hypervisor = hypervisor
        self._call_s = call_s
        self._vcpus = vcpus

    async def bound(self, cores: float) -> None:
        """See `Weights.bound`."""

    async def weigh(self, guest: str, part_frac: float) -> float:
        """See `Weights.weigh`."""
        vcpus = self._vcpus()

        def set_and_read(domain: libvirt.virDomain) -> float:
            vcpus.set_part(domain, part_frac)
            return vcpus.part_frac()

        return await self._hypervisor.on_domain(guest, self._call_s, set_and_read)

    def weight(self, guest: str) -> float:
        """See `Weights.weight`: as of the driver's last sample."""
        del guest
        return self._vcpus().seen_part_frac()
