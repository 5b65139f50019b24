"""A lab in a box of two nodes for benchmarks, with a driver of each node in this process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node_agent.drivers.protocol import DriverEvent, DriverFacts, NodeBudget
from node_agent.drivers.virt.driver import LibvirtDriver
from testbed.bus.messages import MPI_BARRIER, GuestSpec, ProgramSpec
from testbed.bus.mpi_barriers import Barriers, Entered
from testbed.bus.telemetry import GuestSample
from testbed.errors import RunError
from testbed.lab.box.down import remove_lab
from testbed.lab.box.network import BRIDGE
from testbed.lab.box.spec import BoxSpec, NodeSpec
from testbed.lab.box.state import Journal, only_command
from testbed.lab.box.up import bring_up
from testbed.lab.boxes import spec_of
from testbed.lab.guest_image.image import build
from testbed.scenario.schema import check_scenario

NEWS_WITHIN_S = 120.0
ENDLESS_UNITS = 1 << 50
_serial = itertools.count()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def box(memory_mib: int) -> Iterator[Journal]:
    """Make a lab of two nodes; it is removed afterwards in every case."""
    lab = f"bench{os.getpid():x}"
    nodes = [{"name": name, "driver": "libvirt", "cpus": 1.0, "memory_mib": memory_mib} for name in ("a", "b")]
    table: dict[str, object] = {"name": lab, "lab": lab, "policy": "FCFS", "workload": {}, "box": {}, "nodes": nodes}
    with made_lab(spec_of(check_scenario(table, Path(__file__))), Path(__file__)) as journal:
        yield journal


@contextlib.contextmanager
def made_lab(spec: BoxSpec, scenario: Path) -> Iterator[Journal]:
    """Make a lab; it is removed afterwards in every case."""
    if any(node.has_hypervisor for node in spec.nodes):
        build(progress=say)  # the image that its guests boot; does nothing if the image exists
    try:
        with only_command():
            state, _ = bring_up(spec, scenario, say)
        yield Journal(state)
    finally:
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would leave parts of the lab
        try:
            with only_command():
                failures = remove_lab(spec.lab, say).failures
        finally:
            signal.signal(signal.SIGINT, handler)
        if failures:
            raise RunError(f"lab {spec.lab}: not removed: {'; '.join(failures)}")


@dataclass
class Node:
    """One node's driver in this process, and the events of its guests."""

    spec: NodeSpec
    driver: LibvirtDriver
    images: Path
    facts: DriverFacts = field(default_factory=lambda: DriverFacts((), {}))
    driver_events: list[DriverEvent] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    at_barrier: Callable[[DriverEvent], None] = lambda _driver_event: None

    def hear(self, driver_event: DriverEvent) -> None:
        if driver_event.event == MPI_BARRIER:
            self.at_barrier(driver_event)
            return
        self.driver_events.append(driver_event)
        self.news.set()

    async def progress(self, guest: str) -> DriverEvent:
        """Wait until a guest that was started makes its first progress."""
        async with asyncio.timeout(NEWS_WITHIN_S):
            while True:
                for driver_event in [h for h in self.driver_events if h.guest == guest]:
                    self.driver_events.remove(driver_event)
                    if driver_event.event == "progress":
                        return driver_event
                    if driver_event.event in ("done", "failed"):
                        raise RunError(f"guest {guest} {driver_event.event}: {driver_event.detail}")
                self.news.clear()
                await self.news.wait()

    def sample(self, guest: str) -> GuestSample:
        for sample in self.driver.sample():
            if sample.guest == guest:
                return sample
        raise RunError(f"guest {guest} is not on node {self.spec.name} any more: {self.driver_events}")


async def join(members: Sequence[tuple[Node, GuestSpec]]) -> None:
    """Start the ranks of an MPI job, as a controller does; return once they have allocated their memory."""
    session, barriers = os.urandom(8).hex(), Barriers(len(members))
    passing: set[asyncio.Task[None]] = set()

    async def let_pass(number: int) -> None:
        for node, spec in members:
            await node.driver.mpi_pass(spec.guest, session, number, barriers.keys, last=True)

    def hear(driver_event: DriverEvent) -> None:
        rank = next(spec.program.rank for _, spec in members if spec.guest == driver_event.guest)
        number, keys = driver_event.detail["number"], driver_event.detail["keys"]
        if isinstance(number, int) and isinstance(keys, dict) and barriers.enter(rank, number, keys) is Entered.ALL:
            passing.add(asyncio.create_task(let_pass(number)))

    for node, _ in members:
        node.at_barrier = hear
    await asyncio.gather(*(node.driver.mpi_join(spec.guest, session) for node, spec in members))


@contextlib.asynccontextmanager
async def opened(journal: Journal, name: str, state_dir: Path) -> AsyncIterator[Node]:
    spec = next(node for node in journal.state.nodes if node.name == name)
    keeper = journal.process(f"namespaces {spec.full_name}")
    if keeper is None:
        raise RunError(f"node {name} has no keeper of its namespaces")
    driver = LibvirtDriver(
        uri=spec.libvirt_uri, partition=f"/{spec.full_name}", bridge=BRIDGE, root=f"/proc/{keeper.pid}/root"
    )
    node = Node(spec, driver, spec.store_dir / "bench")
    # a separate name, because the node's agent also has a driver, and each driver removes only its own guests
    budget = NodeBudget(f"bench-{name}", spec.cpus, spec.memory_mib, state_dir / name, node.images, spec.host, "dfrs-")
    try:
        node.facts = await driver.open(budget, node.hear)
        yield node
    finally:
        await driver.close()
        shutil.rmtree(node.images, ignore_errors=True)


def eatcpu(memory_mib: int) -> GuestSpec:
    """Return a guest with a new name, so that reports of an earlier guest are not attributed to it."""
    program = ProgramSpec(name="eatcpu", work_units=ENDLESS_UNITS, units_per_iteration=50, seed=7)
    return GuestSpec(
        guest=f"dfrs-bench-{memory_mib}-{next(_serial)}", run="bench", job=0, task=0, program=program, cpu_cores=1.0,
        memory_mib=memory_mib, address="10.77.1.1/16",
    )  # fmt: skip
