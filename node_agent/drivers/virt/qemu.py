"""QEMU, with KVM or emulating: quotas of control groups cap its virtual CPUs, and the kernel counts their time."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import libvirt

from node_agent.drivers.protocol import DriverError, NodeBudget
from node_agent.drivers.virt.accelerator import choose_accelerator
from node_agent.drivers.virt.domain import ARCH, CONSOLES, Machine, Place, channel_path, console_path, domain_xml
from node_agent.drivers.virt.groups import VcpuGroups, pid_path, vcpu_groups
from node_agent.drivers.virt.hypervisor import Hypervisor, version_text
from node_agent.drivers.virt.own_domain import check_cookie, check_same, own_again, parsed
from node_agent.drivers.virt.platform import Timeouts
from node_agent.drivers.virt.saved_file import qemu_texts
from testbed.bus.messages import GuestSpec
from testbed.host.guest_image import GuestImage


class Qemu:
    """See `Platform`."""

    hypervisor = "qemu"
    consoles = CONSOLES
    timeouts = Timeouts()
    shared = True
    heavy_at_once = 32  # a separate QEMU process does the work of each
    taps = True
    dirty_rates = True
    aborts_saves = True
    keepalive_s = 5
    boot_s = 6.0  # emulated

    def __init__(self, place: Place, accel: str, pin: str) -> None:
        if accel not in ("auto", "kvm", "tcg"):
            raise DriverError(f"option accel = {accel!r}: expected auto, kvm or tcg")
        self._place = place
        self._accel = accel
        self._pin = pin
        self._machine: Machine | None = None

    async def open(self, hypervisor: Hypervisor, budget: NodeBudget, image: GuestImage) -> tuple[str, ...]:
        """See `Platform.open`."""
        accelerator = await choose_accelerator(self._accel, hypervisor, budget, image)
        self._machine = Machine(accelerator, image.kernel, image.initramfs, pin=self._pin)
        if accelerator == "kvm":
            self.boot_s = 2.0
        return "cap:vcpu_quota", f"accel:{'kvm' if accelerator == 'kvm' else 'tcg'}"

    def versions(self, connection: libvirt.virConnect) -> Mapping[str, str]:
        """See `Platform.versions`."""
        return {"libvirt": version_text(connection.getLibVersion()), "qemu": version_text(connection.getVersion())}

    def console_path(self, guest: str) -> Path:
        """See `Platform.console_path`."""
        return console_path(guest)

    def domain_xml(self, spec: GuestSpec, node: str) -> str:
        """See `Platform.domain_xml`."""
        if self._machine is None:
            raise DriverError("the driver is not open")
        return domain_xml(spec, node, self._machine, self._place)

    def control_path(self, xml: str) -> Path:
        """See `Platform.control_path`."""
        return channel_path(xml)

    def vcpus(self, guest: str, hypervisor: Hypervisor) -> VcpuGroups:
        """See `Platform.vcpus`."""
        return vcpu_groups(hypervisor.file(pid_path(guest)))

    def save(self, domain: libvirt.virDomain, image: Path) -> None:
        """See `Platform.save`."""
        domain.save(str(image))

    def saved_guest(self, connection: libvirt.virConnect, image: Path) -> str:
        """See `Platform.saved_guest`; libvirt writes the header last."""
        del connection
        return parsed(qemu_texts(image).domain).findtext("name", "")

    def restore(self, connection: libvirt.virConnect, image: Path, spec: GuestSpec, node: str) -> None:
        """See `Platform.restore`. Reading a file makes libvirt run programs named in it, so it is checked first."""
        own, texts = ET.fromstring(self.domain_xml(spec, node)), qemu_texts(image)  # noqa: S314  # our own
        found = parsed(texts.domain)
        check_same(own, found, re.escape(_emulator(connection, own.get("type", ""))), elsewhere=True)
        check_cookie(texts.cookie)
        connection.restoreFlags(str(image), own_again(own, found), libvirt.VIR_DOMAIN_SAVE_PAUSED)


def _emulator(connection: libvirt.virConnect, kind: str) -> str:
    """Return the emulator that libvirt uses here for domains of a type that name none, as ours do."""
    path = ET.fromstring(connection.getDomainCapabilities(None, ARCH, None, kind)).findtext("path")  # noqa: S314  # libvirt's
    if not path:
        raise DriverError(f"libvirt does not say which emulator domains of type {kind} have")
    return path
