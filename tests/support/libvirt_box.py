"""A lab in a box for tests, with private libvirtds, so that the machine's own libvirtd is not touched."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

MISSING = [
    what
    for what, there in (
        ("root", os.geteuid() == 0),
        ("libvirtd", shutil.which("libvirtd") is not None),
        ("qemu-system-x86_64", shutil.which("qemu-system-x86_64") is not None),
        ("libvirt-python", importlib.util.find_spec("libvirt") is not None),
    )
    if not there
]
needs_hypervisor = pytest.mark.skipif(bool(MISSING), reason=f"this machine or user lacks {', '.join(MISSING)}")

SCENARIO = """
name = "{lab}"
lab = "{lab}"
policy = "FCFS"
[workload.lublin]
jobs = 1
nodes = 2
seed = 1
[box]
[[nodes]]
name = "a"
driver = "libvirt"
cpus = 1.0
memory_mib = 1536
[[nodes]]
name = "b"
driver = "libvirt"
cpus = 1.0
memory_mib = 1536
"""


@contextlib.contextmanager
def libvirt_box(lab: str, folder: Path) -> Iterator[object]:
    """Bring up a lab of two nodes, a and b, and yield its journal; the lab is removed afterwards."""
    from testbed.lab.box.down import remove_lab
    from testbed.lab.box.state import Journal
    from testbed.lab.box.up import bring_up
    from testbed.lab.boxes import spec_of
    from testbed.lab.guest_image.image import build
    from testbed.scenario.schema import load_scenario

    build()
    path = folder / f"{lab}.toml"
    path.write_text(SCENARIO.format(lab=lab), encoding="utf-8")
    said: list[str] = []
    try:
        state, _ = bring_up(spec_of(load_scenario(path)), path, said.append)
        yield Journal(state)
    finally:
        failures = remove_lab(lab, said.append).failures
        assert not failures, failures


def destination(journal: object, node_name: str, as_node: str) -> object:
    """Return the target of migrations to the hypervisor of a node whose driver has the name `as_node`."""
    from testbed.bus.migration import Destination, migration_uri
    from testbed.lab.box.network import BRIDGE

    node = next(node for node in journal.state.nodes if node.name == node_name)  # type: ignore[attr-defined]
    return Destination(
        uri=migration_uri("qemu", node.transport, node.host), host=node.host, node=as_node,
        partition=f"/{node.full_name}", bridge=BRIDGE,
    )  # fmt: skip


def driver_options(journal: object, node_name: str) -> dict[str, str]:
    """Return the options with which a driver in this process uses the hypervisor of a node."""
    from testbed.lab.box.network import BRIDGE

    node = next(node for node in journal.state.nodes if node.name == node_name)  # type: ignore[attr-defined]
    keeper = journal.process(f"namespaces {node.full_name}")  # type: ignore[attr-defined]
    return {
        "uri": node.libvirt_uri,
        "migration": node.transport,
        "partition": f"/{node.full_name}",
        "bridge": BRIDGE,
        "root": f"/proc/{keeper.pid}/root",
    }
