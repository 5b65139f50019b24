"""Facts of a node: its machine, its budget, and its driver's findings."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

import psutil

from node_agent.drivers.protocol import Driver, DriverFacts, NodeBudget
from node_agent.stores import ImageStores
from testbed import __version__
from testbed.bus.messages import NodeFacts


def cpu_model() -> str:
    """Return the processor's name, as reported by the kernel."""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def node_facts(
    budget: NodeBudget,
    driver: Driver,
    found: DriverFacts,
    capabilities: tuple[str, ...],
    stores: ImageStores,
    image_port: int,
    image_free_mib: int | None,
) -> NodeFacts:
    """Return the facts that an agent announces.

    `image_port` is the port of its image server, 0 without one; `image_free_mib` the free space for images, None
    without a limit.
    """
    return NodeFacts(
        cpus=budget.cpus,
        memory_mib=budget.memory_mib,
        machine_cores=os.cpu_count() or 1,
        machine_memory_mib=psutil.virtual_memory().total >> 20,
        cpu_model=cpu_model(),
        kernel=platform.release(),
        driver=driver.name,
        capabilities=capabilities,
        versions={"testbed": __version__, "python": platform.python_version(), **found.versions},
        address=budget.address,
        image_port=image_port,
        image_free_mib=stores.disk.free_mib() if image_free_mib is None else image_free_mib,
        guest_floor_mib=found.floor_mib,
        programs=found.programs,
        image_stores=stores.names,
        traits=driver.traits,
        guest_boot_s=found.boot_s,
    )
