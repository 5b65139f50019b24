"""Which parts a lab has, in the order of their making: layer after layer, the parts of one side by side."""

from __future__ import annotations

from testbed.box.hypervisor import Libvirtd
from testbed.box.network import Fabric, NodeNetwork
from testbed.box.partition import Partition
from testbed.box.parts import Folders, Part
from testbed.box.room import RUN_FOLDERS, STORE_FOLDERS, Room
from testbed.box.services import Broker, NodeAgent
from testbed.box.spec import BoxSpec, lab_dir, store_dir
from testbed.box.state import Journal

Layers = list[list[Part]]


def layers_of(spec: BoxSpec, journal: Journal) -> Layers:
    """Return the parts of a lab; each layer needs those before it, removal goes the other way."""
    virtual = [node for node in spec.nodes if node.has_hypervisor]
    run_folders = ("broker", *(f"{node.name}/{name}" for node in spec.nodes for name in RUN_FOLDERS))
    store_folders = tuple(f"{node.name}/{name}" for node in spec.nodes for name in STORE_FOLDERS)
    return [
        [Folders(lab_dir(spec.lab), run_folders)],
        [Folders(store_dir(spec.lab), store_folders)],
        [Fabric(spec), Broker(spec, journal), *(Partition(spec, node) for node in virtual)],
        [NodeNetwork(spec, node) for node in spec.nodes],
        [Room(node, journal) for node in spec.nodes],
        [Libvirtd(node, journal) for node in virtual],
        [NodeAgent(node, journal) for node in spec.nodes],
    ]
