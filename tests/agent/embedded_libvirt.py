"""The platform QEMU with libvirt's QEMU driver inside this process: python FILE ROOT IMAGE [KERNEL INITRAMFS].

Without a kernel it restores the image, as node beta. With one it makes a guest as node alpha, saves it to the image,
and restores it as node beta.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from pathlib import Path

import libvirt
import msgspec
from saved_domains import SPEC

from node_agent.drivers.protocol import DriverError
from node_agent.drivers.virt import domain
from node_agent.drivers.virt.domain import Machine, Place, owner_of
from node_agent.drivers.virt.qemu import Qemu

CANNOT = 77
MOST_BYTES = 8 << 30  # of this process
_SETTINGS = """
user = "+{user}"
group = "+{group}"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = []
stdio_handler = "file"
cgroup_controllers = []
"""


def _serve() -> None:
    while True:
        libvirt.virEventRunDefaultImpl()


def _platform(kernel: str, initramfs: str) -> Qemu:
    platform = Qemu(Place("", "br7"), "tcg", "")
    platform._machine = Machine("qemu", Path(kernel), Path(initramfs))
    return platform


def _made_and_restored(connection: libvirt.virConnect, image: Path, kernel: str, initramfs: str) -> str:
    spec, platform = msgspec.structs.replace(SPEC, address=""), _platform(kernel, initramfs)
    try:
        made = connection.createXML(platform.domain_xml(spec, "alpha"), libvirt.VIR_DOMAIN_START_PAUSED)
    except libvirt.libvirtError as error:
        sys.stdout.write(f"no guest of QEMU's: {error}\n")
        sys.exit(CANNOT)
    platform.save(made, image)
    assert platform.saved_guest(connection, image) == spec.guest
    platform.restore(connection, image, spec, "beta")
    back = connection.lookupByName(spec.guest)
    owner = owner_of(back.XMLDesc())
    back.destroy()
    return f"restored {owner['guest']} of {owner['node']}"


def main(root: str, image: str, kernel: str = "", initramfs: str = "") -> int:
    """Print `refused: ` and why, or `restored`."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    domain.CONSOLES = Path(root)
    (Path(root) / "etc").mkdir(parents=True)
    (Path(root) / "etc" / "qemu.conf").write_text(
        _SETTINGS.format(user=os.getuid(), group=os.getgid()), encoding="ascii"
    )
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_serve, daemon=True).start()
    try:
        connection = libvirt.open(f"qemu:///embed?root={root}")
    except libvirt.libvirtError as error:
        sys.stdout.write(f"no QEMU driver of libvirt: {error}\n")
        return CANNOT
    try:
        if kernel:
            said = _made_and_restored(connection, Path(image), kernel, initramfs)
        else:
            _platform("/k/beta/vmlinuz", "/k/beta/initramfs").restore(connection, Path(image), SPEC, "beta")
            said = "restored"
    except DriverError as error:
        said = f"refused: {error}"
    sys.stdout.write(f"{said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
