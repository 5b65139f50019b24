"""Starts the machine of a node: `python -m testbed.lab.box.xen.launch NODE BRIDGE TAP COMMAND...`.

NODE is the node's full name. QEMU runs in the host's network namespace, where the broker is; its second interface is a
port of a bridge in the node's network namespace. A tap device belongs to the namespace in which it is opened, and
exists until its file is closed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import sys
from pathlib import Path

from testbed.lab.box.commands import run
from testbed.lab.box.partition import join_partition
from testbed.lab.box.xen.hardware import TAP_FD

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_IFF_VNET_HDR = 0x4000


def open_tap(name: str) -> int:
    """Create a tap device in the current network namespace and return its file descriptor; raises `OSError`."""
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
    return tap


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def main() -> None:
    """Open the tap device in the node's network namespace, and execute the command in the node's partition."""
    node, bridge, tap, *command = sys.argv[1:]
    join_partition(node, os.getpid())
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    other = os.open(Path("/run/netns") / node, os.O_RDONLY)
    _enter(other)
    device = open_tap(tap)
    run("ip", "link", "set", tap, "master", bridge, "up")
    _enter(own)
    os.dup2(device, TAP_FD, inheritable=True)
    os.execv(command[0], command)  # noqa: S606  # no shell, and our own command line


if __name__ == "__main__":
    main()
