"""The daemons of libvirt that serve a node, by their files of process ids."""

from __future__ import annotations

import contextlib
from pathlib import Path

from node_agent.drivers.virt.hypervisor import Hypervisor

_PID_FILES = ("/run/libvirt/libvirtd.pid", "/run/libvirtd.pid", "/run/virtqemud.pid", "/run/virtlogd.pid")
_NAMES = ("libvirtd", "virtqemud", "virtlogd")


def daemon_pids(hypervisor: Hypervisor) -> tuple[int, ...]:
    """Return the process ids of the daemons that run; none where they are on another machine."""
    if "+ssh:" in hypervisor.uri:
        return ()
    found = []
    for name in _PID_FILES:
        with contextlib.suppress(OSError, ValueError):
            pid = int(hypervisor.file(Path(name)).read_text(encoding="ascii"))
            if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() in _NAMES:  # else the file is an old one
                found.append(pid)
    return tuple(dict.fromkeys(found))
