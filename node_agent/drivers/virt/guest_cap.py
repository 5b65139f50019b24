"""The CPU cap of one virtual machine: set, read back, and set again after a change from outside."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import libvirt

from node_agent.drivers.protocol import DriverError, DriverEvent
from node_agent.drivers.virt.hypervisor import Hypervisor
from node_agent.drivers.virt.platform import Platform, Vcpus
from testbed.bus.caps import same_cap
from testbed.bus.messages import GuestSpec


class GuestCap:
    """The intended cap of a guest, `wanted_cores`, and the virtual CPUs that enforce it."""

    def __init__(
        self, spec: GuestSpec, wanted_cores: float, hypervisor: Hypervisor, platform: Platform,
        tell: Callable[[DriverEvent], None],
    ) -> None:  # fmt: skip
        self.wanted_cores = wanted_cores
        self.vcpus: Vcpus | None = None  # until its domain is there
        self._name, self._workers = spec.guest, spec.program.workers
        self._hypervisor, self._platform = hypervisor, platform
        self._tell = tell
        self._applying = False  # a cap is being set: a read may return the old or the new one
        self._repairing: asyncio.Task[None] | None = None

    async def find(self) -> None:
        """Find the virtual CPUs of the domain."""
        self.vcpus = await asyncio.to_thread(self._platform.vcpus, self._name, self._hypervisor)

    def known_vcpus(self) -> Vcpus:
        """Return the virtual CPUs; raises `DriverError` before the domain is there."""
        if self.vcpus is None:
            raise DriverError(f"guest {self._name}: its virtual CPUs are not known yet")
        return self.vcpus

    async def apply(self) -> float:
        """Set the wanted cap; return the one in force, in cores. Raises `DriverError`."""
        self._applying = True
        try:
            return await self._set(self.wanted_cores)
        finally:
            self._applying = False

    async def _set(self, wanted_cores: float) -> float:
        vcpus, each = self.known_vcpus(), wanted_cores / self._workers

        def set_and_read(domain: libvirt.virDomain) -> float | None:
            vcpus.set_cap(domain, each)
            return vcpus.cap_cores()

        try:
            found = await self._hypervisor.on_domain(self._name, self._platform.timeouts.call_s, set_and_read)
        except OSError as error:
            raise DriverError(f"guest {self._name}: its cap cannot be read: {error}") from error
        if not self._is_right(found, wanted_cores):
            raise DriverError(f"guest {self._name}: cap {wanted_cores} cores was read back as {found}")
        return self.usable_cores(found)

    async def in_force(self) -> float:
        """Return the kernel's value of the cap, in cores. Raises `DriverError`."""
        if self.vcpus is None:
            return self.usable_cores(None)  # it boots, uncapped
        try:
            return self.usable_cores(await self._hypervisor.in_thread(self.vcpus.cap_cores))
        except OSError as error:
            raise DriverError(f"guest {self._name}: its cap cannot be read: {error}") from error

    def usable_cores(self, found_cores: float | None) -> float:
        """Return the usable cores under a cap that was read; without one, all virtual CPUs."""
        most_cores = float(self._workers)
        return most_cores if found_cores is None else min(found_cores, most_cores)

    def _is_right(self, found_cores: float | None, wanted_cores: float) -> bool:
        return same_cap(self.usable_cores(found_cores), wanted_cores, float(self._workers))

    def repair(self, found_cores: float | None) -> None:
        """If `found_cores` is not the wanted cap (a reload of systemd changes it), log it and set it again."""
        idle = not self._applying and (self._repairing is None or self._repairing.done())
        if idle and not self._is_right(found_cores, self.wanted_cores):
            repairing = self._repair(found_cores)
            self._repairing = asyncio.get_running_loop().create_task(repairing, name=f"cap of {self._name}")

    async def _repair(self, found_cores: float | None) -> None:
        drift: dict[str, object] = {"wanted": self.wanted_cores, "found": found_cores or -1.0}
        self._tell(DriverEvent(self._name, "drift", time.monotonic_ns(), drift))
        with contextlib.suppress(DriverError):
            await self.apply()
