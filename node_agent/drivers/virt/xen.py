"""Xen through libvirt: caps by the credit schedulers, paravirtual guests, and a console as their control channel.

Weights let every guest use its whole cap. Every 30 ms the credit scheduler gives credits to each runnable domain by its
weight, to a capped one at most its cap. It parks capped virtual CPUs whose credits are used up, even beside an idle
processor (xen/common/sched/credit.c, csched_acct). So under contention a capped guest gets the smaller of its cap and
its share by weight. With the weights that hosts use to favour domain 0, this share is a fraction of its cap. Weights
here are proportional to caps, and domain 0's weight to the processors that are not for guests: then no share is below
its cap while caps fit the node.
"""

from __future__ import annotations

import logging
import math
import threading
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import libvirt

from node_agent.drivers.builtin import XEN
from node_agent.drivers.protocol import DriverError, NodeBudget
from node_agent.drivers.virt.domain import Place, add_interface, child, domain_head
from node_agent.drivers.virt.driver import LibvirtDriver
from node_agent.drivers.virt.hypervisor import Hypervisor, version_text
from node_agent.drivers.virt.own_domain import check_same, parsed
from node_agent.drivers.virt.platform import DomainSample, Timeouts
from node_agent.drivers.virt.saved_file import xen_text
from node_agent.guests.image import command_line
from node_agent.guests.uncompressed import uncompressed
from testbed.bus.messages import GuestSpec
from testbed.host.guest_image import GuestImage

CONSOLES = Path("/var/log/xen/console")  # of xenconsoled, if started with --log=guest
_SCHEDULERS = ("credit", "credit2")
_PER_CORE = 4096  # weight: fine enough for a cap of 1 %; Xen multiplies it with all credits in 32 bits
_DOM0_LEAST_CORES = 1 / 4  # if guests may use all cores: domain 0 executes all orders
_log = logging.getLogger(__name__)
# Paths in distributions. Paravirtual guests have none, though libvirt may name it.
_EMULATOR = r"/usr/(lib|libexec)/xen(-[0-9.]+)?/bin/qemu-system-(i386|x86_64)|/usr/bin/qemu-system-(i386|x86_64)"


def guest_weight(cores: float, vcpus: int) -> int:
    """Return the weight of a guest that may use `cores` of physical CPUs; Xen counts it once per virtual CPU."""
    return max(1, math.ceil(_PER_CORE * cores / vcpus))


def dom0_weight(cores: float, for_guests_cores: float, vcpus: int) -> int:
    """Return the weight of domain 0 on a machine of so many cores, of which guests may use some."""
    left_cores = min(max(cores - for_guests_cores, _DOM0_LEAST_CORES), vcpus)
    return max(1, math.floor(_PER_CORE * left_cores / vcpus))


@dataclass(frozen=True, slots=True)
class _Guests:
    """The way in which guests run here, known once the driver is open."""

    kernel: Path
    initramfs: Path
    scheduler: str
    most_cores: float  # of all guests: the node's capacity


class XenVcpus:
    """See `Vcpus`: all values come from the hypervisor, which counts CPU time in nanoseconds."""

    def __init__(self, guest: str, hypervisor: Hypervisor, vcpus: int, most_cores: float) -> None:
        self._guest = guest
        self._hypervisor = hypervisor
        self._vcpus = vcpus
        self._most_cores = most_cores
        self._lock = threading.Lock()
        self._seen = DomainSample(None, 0.0, 0.0)
        self._part_frac: float | None = None  # of a guest with a share
        self.look()

    def set_cap(self, domain: libvirt.virDomain, each_cores: float) -> None:
        """See `Vcpus.set_cap`. A cap is of the domain, in percent of one physical CPU; 0 is none."""
        percent = 0 if each_cores >= 1 else max(1, round(each_cores * self._vcpus * 100))
        owed_cores = min(percent / 100 if percent else self._vcpus, self._most_cores)
        if self._part_frac is not None:
            owed_cores = self._part_frac * self._most_cores
        _schedule(domain, percent, guest_weight(owed_cores, self._vcpus))

    def set_part(self, domain: libvirt.virDomain, part_frac: float) -> None:
        """See `Vcpus.set_part`."""
        self._part_frac = part_frac
        percent = int(domain.schedulerParameters()["cap"])
        _schedule(domain, percent, guest_weight(part_frac * self._most_cores, self._vcpus))

    def part_frac(self) -> float:
        """See `Vcpus.part_frac`."""
        self.look()
        return self.seen_part_frac()

    def seen_part_frac(self) -> float:
        """See `Vcpus.seen_part_frac`."""
        return self.seen().weight * self._vcpus / _PER_CORE / self._most_cores

    def cap_cores(self) -> float | None:
        """See `Vcpus.cap_cores`."""
        self.look()
        return self.seen().cap_cores

    def cpu_s(self) -> float:
        """See `Vcpus.cpu_s`."""
        return self._hypervisor.now(self._guest, _cpu_s)

    def look(self) -> None:
        """See `Vcpus.look`."""
        seen = self._hypervisor.now(self._guest, _sample)
        with self._lock:
            self._seen = seen

    def seen(self) -> DomainSample:
        """See `Vcpus.seen`."""
        with self._lock:
            return self._seen


def _schedule(domain: libvirt.virDomain, cap_percent: int, weight: int) -> None:
    # libvirt's libxl driver refuses flags, and refuses each of the values alone
    domain.setSchedulerParameters({"cap": cap_percent, "weight": weight})


def _sample(domain: libvirt.virDomain) -> DomainSample:
    found = domain.schedulerParameters()
    percent = int(found["cap"])
    return DomainSample(percent / 100 if percent else None, *_use(domain), weight=int(found["weight"]))


def _use(domain: libvirt.virDomain) -> tuple[float, float]:
    _state, _most_kib, memory_kib, _vcpus, cpu_ns = domain.info()
    return cpu_ns / 1e9, memory_kib / 1024


def _cpu_s(domain: libvirt.virDomain) -> float:
    return _use(domain)[0]


class Xen:
    """See `Platform`. A hypervisor belongs to one agent, as a domain restored here still names its first node."""

    hypervisor = "xen"
    consoles = CONSOLES
    # an emulated hypervisor on a busy machine is ten times as slow as a real one, but does answer
    timeouts = Timeouts(call_s=60.0, boot_s=300.0, order_s=60.0, memory_s=900.0, silence_s=180.0, reattach_s=60.0)
    shared = False
    heavy_at_once = 1  # libxl gives up a network card whose scripts take 40 s, as they do beside others on a slow dom0
    taps = False
    dirty_rates = False
    aborts_saves = False  # libvirt's libxl driver cannot
    keepalive_s = 40
    boot_s = 2.0

    def __init__(self, place: Place, guest_type: str, script: str = "") -> None:
        if guest_type not in ("pv", "pvh"):
            raise DriverError(f"option guest_type = {guest_type!r}: expected pv or pvh")
        self._place = place
        self._type = guest_type
        self._script = script
        self._guests: _Guests | None = None

    async def open(self, hypervisor: Hypervisor, budget: NodeBudget, image: GuestImage) -> tuple[str, ...]:
        """See `Platform.open`."""
        kernel = await hypervisor.in_thread(lambda: uncompressed(image))
        scheduler = await hypervisor.call(
            self.timeouts.call_s, lambda connection: _set_up_dom0(connection, budget.cpus)
        )
        self._guests = _Guests(kernel, image.initramfs, scheduler, budget.cpus)
        return f"cap:{scheduler}", f"accel:xen-{self._type}", "dom0"

    def versions(self, connection: libvirt.virConnect) -> Mapping[str, str]:
        """See `Platform.versions`."""
        return {
            "libvirt": version_text(connection.getLibVersion()), "xen": version_text(connection.getVersion()),
            "xen-scheduler": self._made().scheduler,
        }  # fmt: skip

    def console_path(self, guest: str) -> Path:
        """See `Platform.console_path`."""
        return CONSOLES / f"guest-{guest}.log"

    def domain_xml(self, spec: GuestSpec, node: str) -> str:
        """See `Platform.domain_xml`."""
        guests = self._made()
        root = domain_head("xen", spec, node)
        child(root, "vcpu", str(spec.program.workers))
        boot = child(root, "os")
        kind = {"pv": ("linux", "xenpv"), "pvh": ("xenpvh", "xenpvh")}[self._type]
        child(boot, "type", kind[0], arch="x86_64", machine=kind[1])
        child(boot, "kernel", str(guests.kernel))
        child(boot, "initrd", str(guests.initramfs))
        child(boot, "cmdline", command_line(spec.guest, spec.address or None, "hvc0"))
        devices = child(root, "devices")
        child(child(devices, "console", type="pty"), "target", type="xen", port="0")
        if spec.address and self._place.bridge:
            card = add_interface(devices, spec.address, self._place.bridge)
            if self._script:
                child(card, "script", path=self._script)
        return ET.tostring(root, encoding="unicode")

    def control_path(self, xml: str) -> Path:
        """See `Platform.control_path`: the terminal of its console, which changes with every start."""
        source = ET.fromstring(xml).find("devices/console[@type='pty']/source")  # noqa: S314  # the hypervisor's own
        if source is None or not source.get("path"):
            raise DriverError("the domain has no console with a terminal")
        return Path(source.attrib["path"])

    def vcpus(self, guest: str, hypervisor: Hypervisor) -> XenVcpus:
        """See `Platform.vcpus`."""
        count = hypervisor.now(guest, lambda domain: int(domain.info()[3]))
        return XenVcpus(guest, hypervisor, count, self._made().most_cores)

    def save(self, domain: libvirt.virDomain, image: Path) -> None:
        """See `Platform.save`. A paravirtual guest takes part in its save: it runs until it is asked to suspend."""
        domain.resume()
        domain.save(str(image))

    def saved_guest(self, connection: libvirt.virConnect, image: Path) -> str:
        """See `Platform.saved_guest`; Xen ends a domain only once it is written."""
        del connection
        return parsed(xen_text(image)).findtext("name", "")

    def restore(self, connection: libvirt.virConnect, image: Path, spec: GuestSpec, node: str) -> None:
        """See `Platform.restore`. The domain stays as it was written: libvirt changes none for Xen."""
        own = ET.fromstring(self.domain_xml(spec, node))  # noqa: S314  # our own
        check_same(own, parsed(xen_text(image)), _EMULATOR, elsewhere=False)
        connection.restoreFlags(str(image), None, libvirt.VIR_DOMAIN_SAVE_PAUSED)

    def _made(self) -> _Guests:
        if self._guests is None:
            raise DriverError("the driver is not open")
        return self._guests


def _set_up_dom0(connection: libvirt.virConnect, for_guests_cores: float) -> str:
    """Give domain 0 the processors that are not for guests, and return the scheduler's name."""
    domain = connection.lookupByID(0)
    scheduler = str(domain.schedulerType()[0])
    if scheduler not in _SCHEDULERS:
        raise DriverError(f"Xen's scheduler {scheduler} has no caps: expected {' or '.join(_SCHEDULERS)}")
    weight = dom0_weight(connection.getInfo()[2], for_guests_cores, domain.info()[3])
    _schedule(domain, int(domain.schedulerParameters()["cap"]), weight)
    _log.info("Xen's domain 0 has weight %d, as guests may use %g cores", weight, for_guests_cores)
    return scheduler


class XenDriver(LibvirtDriver):
    """See `Driver`. Options, all text: `uri` of libvirt; `bridge` of its guests, and the `script` that joins them with
    it (by default Xen's own); `guest_type` (pv, pvh); `image`, a folder that `testbed image build` made.
    """  # noqa: D205  # the summary is a list of options

    name = "xen"
    traits = XEN.traits

    def __init__(
        self, uri: str = "xen:///system", bridge: str = "xenbr0", script: str = "", guest_type: str = "pv",
        image: str = "",
    ) -> None:  # fmt: skip
        place = Place(bridge=bridge)
        self._set_up(Xen(place, guest_type, script), uri, None, place, "/", image)
