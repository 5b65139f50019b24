"""Reports the status of a lab in a box: its nodes with their processes and guests, and missing parts."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass

from testbed.errors import TestbedError
from testbed.lab.box.hypervisor import Libvirtd, cap_cores, domains
from testbed.lab.box.online import agents_online
from testbed.lab.box.order import is_there
from testbed.lab.box.partition import here
from testbed.lab.box.plan import agent_of, layers_of
from testbed.lab.box.processes import ProcessId, alive
from testbed.lab.box.services import Broker
from testbed.lab.box.spec import NodeSpec
from testbed.lab.box.state import BoxState, Journal, find
from testbed.lab.box.xen.dom0 import Dom0

_LISTEN_S = 2.0


@dataclass(frozen=True, slots=True)
class DomainStatus:
    """A guest: its name, and the cap of one vCPU in cores, None without a cap."""

    name: str
    cap_cores: float | None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Status of a node: process ids are None without a process; `libvirtd_answers` is None without a libvirtd.

    A nested node has a `machine_pid`, but no socket: its libvirtd runs in the machine, and is queried by ssh.
    """

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
    machine_pid: int | None = None


@dataclass(frozen=True, slots=True)
class LabReport:
    """Status of a lab; the lab is healthy if `missing`, the names of missing parts, is empty.

    `cgroups` is the version of control groups of the partitions: v1, hybrid, or v2.
    """

    lab: str
    phase: str
    scenario: str
    broker_pid: int | None
    cgroups: str
    nodes: tuple[NodeReport, ...]
    missing: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return the report as plain data for JSON."""
        return asdict(self)


def report(lab: str) -> LabReport:
    """Check all parts of a lab; broken parts are reported, and raise no error."""
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
        missing.append(f"lab {lab}: its creation was not completed (phase {state.phase})")
    return LabReport(lab, state.phase, state.scenario, _pid(broker.process), here().kind, nodes, tuple(missing))


def _node(node: NodeSpec, journal: Journal, online: bool) -> NodeReport:
    if node.is_nested:
        return _nested(node, journal, online)
    daemon = Libvirtd(node, journal)
    answers = (alive(daemon.process) and daemon.answers()) if node.has_libvirtd else None
    return NodeReport(
        node.name, node.driver, node.cpus, node.memory_mib, node.address,
        str(node.socket) if node.has_libvirtd else None,
        _pid(daemon.process) if node.has_libvirtd else None, answers,
        _pid(agent_of(node, journal).process), online, tuple(_domains(node)) if answers else (),
    )  # fmt: skip


def _nested(node: NodeSpec, journal: Journal, online: bool) -> NodeReport:
    machine = f"machine {node.full_name}"
    try:
        guests = [DomainStatus(*guest) for guest in Dom0(node).guests()] if alive(journal.process(machine)) else None
    except TestbedError:
        guests = None
    return NodeReport(
        node.name, node.driver, node.cpus, node.memory_mib, node.address, None, None, guests is not None,
        _pid(agent_of(node, journal).process), online, tuple(guests or ()), _pid(journal.process(machine)),
    )  # fmt: skip


def _pid(process: ProcessId | None) -> int | None:
    return process.pid if process is not None and alive(process) else None


def _domains(node: NodeSpec) -> list[DomainStatus]:
    found = []
    for name in domains(node):
        try:
            found.append(DomainStatus(name, cap_cores(node, name)))
        except TestbedError:  # the domain has ended meanwhile
            continue
    return found


def _online(state: BoxState) -> set[str]:
    names = {node.name for node in state.nodes}
    try:
        return set(asyncio.run(agents_online(state.broker_url, state.lab, names, _LISTEN_S)))
    except TestbedError:
        return set()
