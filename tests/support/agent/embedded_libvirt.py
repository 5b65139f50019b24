"""The platform QEMU with libvirt's QEMU driver inside this process: arguments ROOT IMAGE."""

from __future__ import annotations

import resource
import sys
import threading
from pathlib import Path

import libvirt

from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt.domain import Machine, Place
from node_agent.drivers.virt.qemu import Qemu
from support.agent.saved_domains import SPEC

CANNOT = 77
MOST_BYTES = 8 << 30  # limit of this process's address space


def _serve() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()


def main(root: str, image: str) -> int:
    """Print `refused: ` and the reason, or `restored`."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_serve, daemon=True).start()
    try:
        connection = libvirt.open(f"qemu:///embed?root={root}")
    except libvirt.libvirtError as error:
        sys.stdout.write(f"no QEMU driver of libvirt: {error}\n")
        return CANNOT
    platform = Qemu(Place("", "br7"), "tcg", "")
    platform._machine = Machine("qemu", Path("/k/beta/vmlinuz"), Path("/k/beta/initramfs"))
    try:
        platform.restore(connection, Path(image), SPEC, "beta")
        said = "restored"
    except DriverError as error:
        said = f"refused: {error}"
    sys.stdout.write(f"{said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
