"""A guest as a libvirt domain: its XML, the fields recovered from it, and its changes between nodes."""

from __future__ import annotations

import ipaddress
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from node_agent.drivers.protocol import DriverError
from node_agent.guests.image import command_line
from testbed.bus.messages import GuestSpec, ProgramSpec

METADATA = "urn:dfrs-testbed:guest:1"
CHANNEL = "dfrs.ctl"
CONSOLES = Path("/var/log/libvirt/qemu")  # libvirt's own, so that a guest's console has one path on every node
ARCH = "x86_64"
ET.register_namespace("dfrs", METADATA)


@dataclass(frozen=True, slots=True)
class Place:
    """The settings that differ between nodes: control group and bridge; empty for libvirt's own choice, or none."""

    partition: str = ""
    bridge: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The settings shared by all guests of a node: how they are run, and what they boot."""

    accelerator: str  # kvm or qemu, libvirt's domain types
    kernel: Path
    initramfs: Path
    machine: str = "pc"
    pin: str = ""  # a CPU list for all virtual CPUs


def console_path(guest: str) -> Path:
    """Return the file that a guest's serial console is written to."""
    return CONSOLES / f"{guest}.console"


def mac_of(address: str) -> str:
    """Return the locally administered MAC that belongs to an IPv4 address: 52:54 and its bytes."""
    packed = ipaddress.IPv4Interface(address).ip.packed
    return ":".join(f"{byte:02x}" for byte in b"\x52\x54" + packed)


def child(parent: ET.Element, tag: str, text: str | None = None, **attributes: str) -> ET.Element:
    """Add an element to another one, and return it."""
    element = ET.SubElement(parent, tag, attributes)
    element.text = text
    return element


def domain_head(kind: str, spec: GuestSpec, node: str) -> ET.Element:
    """Return a domain of a libvirt type with the common elements: name, owner, memory, actions at its end."""
    root = ET.Element("domain", type=kind)
    child(root, "name", spec.guest)
    metadata = child(root, "metadata")
    ET.SubElement(
        metadata, f"{{{METADATA}}}guest",
        {
            "run": spec.run, "job": str(spec.job), "task": str(spec.task), "node": node, "address": spec.address,
            "lease": spec.lease,
        },
    )  # fmt: skip
    child(root, "memory", str(spec.memory_mib), unit="MiB")
    for event in ("on_poweroff", "on_reboot", "on_crash"):
        child(root, event, "destroy")
    return root


def domain_xml(spec: GuestSpec, node: str, machine: Machine, place: Place) -> str:
    """Return the domain of a guest.

    It has one uncapped virtual CPU per worker of its program. It has no disks, so its memory holds all its state. Run,
    job, task, node and lease are in its metadata.
    """
    root = domain_head(machine.accelerator, spec, node)
    vcpu = child(root, "vcpu", str(spec.program.workers))
    if machine.pin:
        vcpu.set("cpuset", machine.pin)
    if place.partition:
        child(child(root, "resource"), "partition", place.partition)
    boot = child(root, "os")
    child(boot, "type", "hvm", arch=ARCH, machine=machine.machine)
    child(boot, "kernel", str(machine.kernel))
    child(boot, "initrd", str(machine.initramfs))
    child(boot, "cmdline", command_line(spec.guest, spec.address or None))
    child(child(root, "features"), "acpi")
    if machine.accelerator == "kvm":
        child(root, "cpu", mode="host-model")
    devices = child(root, "devices")
    serial = child(devices, "serial", type="file")
    child(serial, "source", path=str(console_path(spec.guest)))
    child(serial, "target", port="0")
    # no path: libvirt then chooses one on each node; with a fixed one a migration deletes its destination's socket
    channel = child(devices, "channel", type="unix")
    child(channel, "source", mode="bind")
    child(channel, "target", type="virtio", name=CHANNEL)
    child(devices, "controller", type="usb", model="none")
    child(devices, "memballoon", model="none")
    if spec.address and place.bridge:
        child(add_interface(devices, spec.address, place.bridge), "model", type="virtio")
    return ET.tostring(root, encoding="unicode")


def add_interface(devices: ET.Element, address: str, bridge: str) -> ET.Element:
    """Give a domain a network card on a bridge; its hardware address follows from the guest's address."""
    interface = child(devices, "interface", type="bridge")
    child(interface, "mac", address=mac_of(address))
    child(interface, "source", bridge=bridge)
    return interface


def moved_xml(xml: str, node: str, place: Place) -> str:
    """Return a domain's XML for the node that it migrates to: it keeps its lease and its cap.

    The guest itself must see no difference.
    """
    root = ET.fromstring(xml)  # noqa: S314  # written by the hypervisor
    owner = root.find(f"metadata/{{{METADATA}}}guest")
    if owner is not None:
        owner.set("node", node)
    resource = root.find("resource")
    if resource is not None:
        root.remove(resource)
    if place.partition:
        child(child(root, "resource"), "partition", place.partition)
    bridge = root.find("devices/interface/source")
    if bridge is not None and place.bridge:
        bridge.set("bridge", place.bridge)
    return ET.tostring(root, encoding="unicode")


def channel_path(xml: str) -> Path:
    """Return the socket of a running domain's control channel; the path changes with every start and node."""
    for channel in ET.fromstring(xml).iterfind("devices/channel"):  # noqa: S314  # written by the hypervisor
        target, source = channel.find("target"), channel.find("source")
        if target is not None and target.get("name") == CHANNEL and source is not None and source.get("path"):
            return Path(source.attrib["path"])
    raise DriverError(f"the domain has no channel {CHANNEL} with a socket")


def tap_of(xml: str) -> str:
    """Return the host's end of a running domain's card; raises `DriverError` for a domain without one."""
    target = ET.fromstring(xml).find("devices/interface/target")  # noqa: S314  # written by the hypervisor
    if target is None or not target.get("dev"):
        raise DriverError("the domain has no card on a bridge")
    return target.attrib["dev"]


def is_emulated(xml: str) -> bool:
    """Whether software emulates the virtual CPUs of a domain; libvirt calls such a domain `qemu`."""
    return ET.fromstring(xml).get("type") == "qemu"  # noqa: S314  # written by the hypervisor


def owner_of(xml: str) -> Mapping[str, str]:
    """Return name, run, job, task, node and lease of one of our domains; empty for a domain that is not ours."""
    root = ET.fromstring(xml)  # noqa: S314  # written by the hypervisor
    owner = root.find(f"metadata/{{{METADATA}}}guest")
    return {} if owner is None else {"guest": root.findtext("name") or "", **owner.attrib}


def own_guest(guest: str, memory_mib: int, run: str = "") -> GuestSpec:
    """Return a guest that belongs to no job."""
    return GuestSpec(
        guest=guest, run=run, job=0, task=0, cpu_cores=1.0, memory_mib=memory_mib,
        program=ProgramSpec(name="eatcpu", work_units=1, units_per_iteration=1, seed=0),
    )  # fmt: skip


def network_of(address: str) -> str:
    """Return an address without its prefix length."""
    return address.partition("/")[0]
