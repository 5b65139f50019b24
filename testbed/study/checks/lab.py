"""The lab of a check session: opened and leased once, released at the end; marked as broken when a node is lost."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from testbed.bus.messages import AnyAction, NodeFacts
from testbed.bus.telemetry import GuestSample
from testbed.errors import UserError, nearest
from testbed.lab.blocking import BlockingLab, BlockingLabJob
from testbed.lab.boxes import spec_of
from testbed.lab.fleet import Fleet, Node
from testbed.lab.lab import SMALL_MIB
from testbed.lab.liveness import Change
from testbed.lab.opening import open_lab
from testbed.lab.outcomes import Watched
from testbed.scenario.schema import Scenario
from testbed.study.checks.machine import hypervisor_of, hypervisors_of, machine_facts, machine_key, storage_of

_CALL_S = 30.0


@dataclass(frozen=True, slots=True)
class NodeUnderTest:
    """One node: its index in the lab, its name, and the facts that its agent reports."""

    index: int
    name: str
    facts: NodeFacts


@dataclass(frozen=True, slots=True)
class DriverUnderTest:
    """The driver of the nodes under test: its name, its hypervisor, and its capabilities.

    `hypervisor` is `kvm`, `qemu`, `xen`, or the driver's name such as `process`. `names` are those that
    `@pytest.mark.hypervisor` accepts for it.
    """

    name: str
    hypervisor: str
    names: frozenset[str]
    capabilities: frozenset[str]


def choose_nodes(scenario: Scenario, wanted: str) -> tuple[str, ...]:
    """Return the names of the nodes to check, in the lab's order; `wanted` is comma-separated, empty for all nodes."""
    known = [node.name for node in scenario.nodes]
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UserError(f"--nodes {name!r}: expected nodes of the lab: {', '.join(known)}{nearest(name, known)}")
    return tuple(name for name in known if name in names) if names else tuple(known)


def restricted(scenario: Scenario, names: Sequence[str]) -> Scenario:
    """Return the scenario with only these nodes; a box keeps all of its nodes, because they run already."""
    if scenario.box is not None:
        return scenario
    return scenario.model_copy(update={"nodes": tuple(node for node in scenario.nodes if node.name in names)})


class LabUnderTest:
    """Live nodes under this process's lease. `broken` is the reason why no more checks can run, or empty.

    Within the context the lab is open as `live`. Agents that this process started end with the context.
    """

    live: BlockingLab

    def __init__(self, scenario: Scenario, names: Sequence[str], place: Path) -> None:
        self.scenario = restricted(scenario, names)
        self.broken = ""
        self._names = tuple(names)
        self._places = (place / str(number) for number in itertools.count(1))
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Open the lab: start its agents if needed, take its lease, and wait for its nodes.

        Raises `UserError` if the lab cannot be reached, or if another controller drives it.
        """
        self._place = next(self._places)
        self._place.mkdir()
        with contextlib.ExitStack() as stack:
            self.live = stack.enter_context(open_lab(self.scenario, folder=self._place))
            stack.callback(self._leave)
            self._stack = stack.pop_all()
        self._fleet.on_node_change = self._changed
        self.nodes = tuple(
            NodeUnderTest(index, name, facts)
            for index, (name, facts) in enumerate(zip(self.live.nodes, self.live.facts, strict=True))
            if name in self._names
        )
        return self

    def __exit__(self, *_failure: object) -> None:
        self._stack.close()

    @property
    def _fleet(self) -> Fleet:
        return self.live.original.fleet

    def _leave(self) -> None:
        # agents end while the lab is closed: their nodes are not lost
        self._fleet.on_node_change = lambda _node, _change: None

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Close the lab for the duration of the block: its lease is released although guests may still run."""
        self._stack.close()
        try:
            yield
        finally:
            self.__enter__()

    def _changed(self, node: Node, change: Change) -> None:
        if (not node.online or change.restarted) and not self.broken:
            self.broken = f"node {node.name} went away: {change.reason}"

    @property
    def driver(self) -> DriverUnderTest:
        """The driver of the nodes under test, with the capabilities that all of these nodes have."""
        facts = [node.facts for node in self.nodes]
        return DriverUnderTest(
            facts[0].driver,
            hypervisor_of(facts[0]),
            frozenset.intersection(*(hypervisors_of(fact) for fact in facts)),
            frozenset.intersection(*(frozenset(fact.capabilities) for fact in facts)),
        )

    @property
    def cpus(self) -> float:
        """Cores of the smallest node under test."""
        return min(node.facts.cpus for node in self.nodes)

    @property
    def floor_mib(self) -> int:
        """The least memory of a guest in MiB: the greatest minimum over the nodes under test."""
        return max(node.facts.guest_floor_mib for node in self.nodes)

    @property
    def small_mib(self) -> int:
        """Memory in MiB of a guest whose size does not matter: a small amount that is enough for an MPI rank."""
        return max(SMALL_MIB, self.floor_mib)

    def storage(self, node: NodeUnderTest) -> str:
        """Return the type of the file system with a node's images; `?` if it is on another machine."""
        return storage_of(self.image_folder(node))

    def machine(self, node: NodeUnderTest) -> str:
        """Return the machine key under which the references have a node's figures."""
        return machine_key(machine_facts(node.facts, self.storage(node)))

    def image_folder(self, node: NodeUnderTest) -> Path | None:
        """Return the folder of a node's images, None if it is on another machine or inside a virtual machine."""
        if self.scenario.box is not None:
            spec = next(spec for spec in spec_of(self.scenario).nodes if spec.name == node.name)
            return None if spec.is_nested else spec.image_dir
        if next(table.spawn for table in self.scenario.nodes if table.name == node.name):
            return self._place / "images" / node.name
        return None

    def call(self, node: NodeUnderTest, action: AnyAction, deadline_s: float = _CALL_S) -> dict[str, object]:
        """Send a command to a node and return its agent's report; raises `TestbedError` if it fails or times out."""
        return self.live.command(node.index, action, deadline_s)

    def guests_on(self, node: NodeUnderTest) -> list[GuestSample]:
        """Return all guests that the agent of a node reports."""
        return self.live.guests_on(node.index)

    def idle_cores(self, node: NodeUnderTest) -> float:
        """Return the number of idle cores of a node's machine in its latest telemetry; 0 without telemetry."""
        telemetry = self._fleet.nodes[node.index].telemetry
        return 0.0 if telemetry is None else (1.0 - telemetry.cpu_frac) * node.facts.machine_cores

    def watch(self, node: NodeUnderTest, jobs: Sequence[BlockingLabJob], every_s: float, for_s: float) -> Watched:
        """Sample CPU time and work units of the first tasks of jobs on one node every `every_s` for `for_s` seconds."""
        return self.live.watch(node.index, [job.name for job in jobs], every_s, for_s)

    def guest(
        self,
        *,
        memory_mib: int = 0,
        cpu_cores: float = 0.0,
        nodes: Sequence[int | str | NodeUnderTest] = (),
        **details: Any,
    ) -> BlockingLabJob:
        """Return a job that is not started yet, with one task on each of `nodes` (default: the first under test).

        `memory_mib` defaults to `small_mib`, and `cpu_cores` per task to all cores of the smallest node. `details` are
        those of `Lab.job`: program, work_s, topology, message_bytes, iteration_s, imbalance, touched_frac.
        """
        where = [node.index if isinstance(node, NodeUnderTest) else node for node in nodes] or [self.nodes[0].index]
        return self.live.job(
            memory_mib=memory_mib or self.small_mib, cpu_cores=cpu_cores or self.cpus, nodes=where, **details
        )
