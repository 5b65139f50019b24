"""The virtual machine that hosts a nested Xen node: its hardware and its QEMU command line.

A saved state can only be loaded into a machine with the same devices, so its name is derived from all these settings.
"""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from testbed.lab.box.commands import program, run
from testbed.lab.box.spec import NodeSpec
from testbed.lab.box.xen.image import XenImage
from testbed.lab.guest_image.recipe_tools import sha256

TAP_FD = 9  # file descriptor of the tap device that the launcher has opened
AGENT_DISK_MIB = 256
_DOM0_MIB = 512
_XEN_MIB = 96  # measured: the hypervisor uses 20 for itself, and some for each guest
OWN_MIB = _DOM0_MIB + _XEN_MIB  # of a machine, in addition to its guests' memory
Accelerator = Literal["kvm", "tcg"]
_ACCELERATORS: dict[Accelerator, tuple[str, str]] = {
    # numpy needs these CPU features, which all processors of the last fifteen years have; with all features that QEMU
    # can emulate (`-cpu max`), dom0 does not boot
    "tcg": ("tcg,thread=multi,tb-size=256", "kvm64,+ssse3,+sse4.1,+sse4.2,+popcnt,+lahf-lm"),
    "kvm": ("kvm", "host"),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Properties of a machine: memory in MiB including dom0 and Xen, CPUs, Xen's scheduler, QEMU's accelerator.

    Machines of equal shape can resume from the same saved state.
    """

    memory_mib: int
    cpus: int
    scheduler: str
    accelerator: Accelerator

    @classmethod
    def of(cls, node: NodeSpec, scheduler: str, accelerator: Accelerator) -> Shape:
        """Return the shape of a node's machine; dom0 shares the CPUs with guests, and has memory of its own."""
        return cls(OWN_MIB + node.memory_mib, math.ceil(node.cpus), scheduler, accelerator)

    @property
    def hypervisor_arguments(self) -> str:
        """The hypervisor's command line; CPU vulnerability mitigations are off, as all guests are ours."""
        walls = "xpti=no spec-ctrl=no"
        return f"console=com1 com1=115200 {walls} dom0_mem={_DOM0_MIB}M,max:{_DOM0_MIB}M sched={self.scheduler}"

    @property
    def devices(self) -> tuple[str, ...]:
        """QEMU's arguments on which a saved state depends."""
        accelerator, cpu = _ACCELERATORS[self.accelerator]
        return (
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-machine", "pc", "-accel", accelerator, "-cpu", cpu),
            *("-m", str(self.memory_mib), "-smp", str(self.cpus)),
            *("-device", "virtio-blk-pci,drive=disk,addr=3", "-device", "virtio-blk-pci,drive=agent,addr=4"),
            *("-device", "virtio-net-pci,netdev=outside,addr=5", "-device", "virtio-net-pci,netdev=guests,addr=6"),
        )

    def key(self) -> str:
        """Return the name of the saved state of this shape: 16 hexadecimal digits."""
        version = run(_PROGRAM, "--version").splitlines()[0]
        return sha256(json.dumps([_SAVING, version, self.hypervisor_arguments, *self.devices]).encode())[:16]


_SAVING = 2  # version of the method by which states are saved; increment it on a change
_PROGRAM = "qemu-system-x86_64"


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one start of a machine: its disks, its monitor's socket, and the log of its console."""

    disk: Path
    agent_disk: Path
    monitor: Path
    console: Path


def command_line(shape: Shape, image: XenImage, files: Files, ssh_port: int, state: Path | None = None) -> list[str]:
    """Return the command line of QEMU; with `state` the machine resumes from that saved state."""
    kernel = f"{image.kernel} console=hvc0 rdinit=/init quiet mitigations=off"
    incoming = f"exec:zstd -dcq {shlex.quote(str(state))}"
    return [
        program(_PROGRAM),
        *shape.devices,
        *("-chardev", f"file,id=console,append=on,path={files.console}", "-serial", "chardev:console"),
        *("-qmp", f"unix:{files.monitor},server=on,wait=off"),
        # the disk's content is lost with the node anyway, so its writes need not be flushed
        *("-drive", f"if=none,id=disk,format=qcow2,cache=unsafe,file={files.disk}"),
        *("-drive", f"if=none,id=agent,format=raw,readonly=on,file={files.agent_disk}"),
        *("-netdev", f"user,id=outside,hostfwd=tcp:127.0.0.1:{ssh_port}-:22"),
        *("-netdev", f"tap,id=guests,fd={TAP_FD}"),
        *("-kernel", str(image.hypervisor), "-append", shape.hypervisor_arguments),
        *("-initrd", f"{kernel},{image.initramfs}"),  # a list of boot modules, separated by commas
        *(("-incoming", incoming) if state is not None else ()),
    ]


def make_overlay(disk: Path, backing: Path, kind: Literal["raw", "qcow2"]) -> None:
    """Make an empty overlay of a disk, which stays unchanged; raises `RunError`."""
    disk.unlink(missing_ok=True)
    run("qemu-img", "create", "-q", "-f", "qcow2", "-b", str(backing), "-F", kind, str(disk))
