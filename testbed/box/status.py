"""How a lab is: what runs, what answers, and what is missing that should be there."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass

from testbed.box.hypervisor import Libvirtd, cap_cores, domains
from testbed.box.online import agents_online
from testbed.box.order import is_there
from testbed.box.partition import here
from testbed.box.plan import layers_of
from testbed.box.processes import alive
from testbed.box.services import Broker, NodeAgent
from testbed.box.spec import NodeSpec
from testbed.box.state import BoxState, Journal, find
from testbed.errors import TestbedError

_LISTEN_S = 2.0


@dataclass(frozen=True, slots=True)
class DomainStatus:
    """A guest: its name and the cap of one vCPU in cores, None without one."""

    name: str
    cap_cores: float | None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node: process ids are None where nothing runs; `libvirtd_answers` is None where none belongs."""

    node: str
    driver: str
    cpus: float
    memory_mib: int
    address: str
    socket: str | None
    libvirtd_pid: int | None
    libvirtd_answers: bool | None
    agent_pid: int | None
    agent_online: bool
    domains: tuple[DomainStatus, ...]


@dataclass(frozen=True, slots=True)
class LabReport:
    """A lab; `missing` names each part that should be there and is not, so it is well when that is empty.

    `cgroups` says which version of control groups the partitions are in: v1, hybrid, or v2.
    """

    lab: str
    phase: str
    scenario: str
    broker_pid: int | None
    cgroups: str
    nodes: tuple[NodeReport, ...]
    missing: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return asdict(self)


def report(lab: str) -> LabReport:
    """Look at a lab; raises nothing for what is broken, that is the finding."""
    try:
        state = find(lab)
        trouble = "its state was never written"
    except TestbedError as error:
        state, trouble = None, str(error)
    if state is None:
        return LabReport(lab, "unknown", "", None, here().kind, (), (trouble,))
    journal = Journal(state)
    missing = [part.name for layer in layers_of(state.spec, journal) for part in layer if not is_there(part)]
    online = _online(state)
    broker = Broker(state.spec, journal)
    nodes = tuple(_node(node, journal, node.name in online) for node in state.nodes)
    missing += [
        f"agent {node.node}: not online" for node in nodes if node.agent_pid is not None and not node.agent_online
    ]
    if state.phase != "up":
        missing.append(f"lab {lab}: its making was not completed (phase {state.phase})")
    pid = broker.process.pid if broker.process is not None and alive(broker.process) else None
    return LabReport(lab, state.phase, state.scenario, pid, here().kind, nodes, tuple(missing))


def _node(node: NodeSpec, journal: Journal, online: bool) -> NodeReport:
    daemon, agent = Libvirtd(node, journal), NodeAgent(node, journal)
    runs = node.has_hypervisor and alive(daemon.process)
    answers = (runs and daemon.answers()) if node.has_hypervisor else None
    return NodeReport(
        node.name, node.driver, node.cpus, node.memory_mib, node.address,
        str(node.socket) if node.has_hypervisor else None,
        daemon.process.pid if runs and daemon.process is not None else None, answers,
        agent.process.pid if agent.process is not None and alive(agent.process) else None, online,
        tuple(_domains(node)) if answers else (),
    )  # fmt: skip


def _domains(node: NodeSpec) -> list[DomainStatus]:
    found = []
    for name in domains(node):
        try:
            found.append(DomainStatus(name, cap_cores(node, name)))
        except TestbedError:  # it has ended in between
            continue
    return found


def _online(state: BoxState) -> set[str]:
    names = {node.name for node in state.nodes}
    try:
        return set(asyncio.run(agents_online(state.broker_url, state.lab, names, _LISTEN_S)))
    except TestbedError:
        return set()
