"""A real Mosquitto with the two listeners of a lab of several machines, on the loopback interface."""

from __future__ import annotations

import contextlib
import getpass
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.live import HANG_S, wait_until
from testbed.bus.address import BrokerAddress
from testbed.bus.mosquitto import find_mosquitto
from testbed.lab.secure import broker as rules
from testbed.lab.secure.authority import Authority

LAB = "lab-1"
NODES, CONTROLLERS = {"n1": "127.0.0.1", "n2": "127.0.0.1"}, ("alice", "bob")


@dataclass(frozen=True, slots=True)
class Doors:
    """The listeners for agents and controllers, the authority of the lab, and the broker with its rules for agents."""

    authority: Authority
    agent_port: int
    controller_port: int
    log: Path
    broker: subprocess.Popen[bytes]
    rules: Path
    address: str = "127.0.0.1"

    def agent(self, name: str, *, port: int = 0) -> BrokerAddress:
        folder = self.authority.folder / "nodes" / name
        return BrokerAddress(self.address, port or self.agent_port, tls=True, tls_dir=folder)

    def controller(self, name: str = "alice", *, port: int = 0) -> BrokerAddress:
        folder = self.authority.folder / "controllers" / name
        return BrokerAddress(self.address, port or self.controller_port, tls=True, tls_dir=folder)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def open_doors(
    folder: Path,
    address: str = "127.0.0.1",
    nodes: Mapping[str, str] = NODES,
    inside: Sequence[str] = (),
    *,
    log_denied: bool = False,
) -> Iterator[Doors]:
    """Run the broker at an address, for the given nodes; `inside` is the prefix of a command on that address's network.

    With `log_denied` its log has the messages that its rules deny, as in a lab by the playbook.
    """
    authority = Authority.create(folder / "ca", LAB)
    authority.issue("broker", hosts=[address])
    for name, its_address in nodes.items():
        authority.issue("node", name, hosts=[its_address])
    for name in CONTROLLERS:
        authority.issue("controller", name)
    state = folder / "broker"
    state.mkdir()
    agent_port, controller_port = free_ports(2)
    (state / "agents.acl").write_text(rules.agents_acl(LAB, tuple(nodes), CONTROLLERS))
    (state / rules.SUBSCRIPTIONS).write_text(rules.agents_subscriptions(LAB, tuple(nodes)))
    (state / "controllers.acl").write_text(rules.controllers_acl(LAB, CONTROLLERS))
    config, log = state / "mosquitto.conf", state / "log"
    config.write_text(
        rules.mosquitto_config(
            address, authority.folder / "broker", state, state,
            agent_port=agent_port, controller_port=controller_port, user=getpass.getuser(),
            log_denied=log_denied,
        )
    )  # fmt: skip
    program = find_mosquitto()
    assert program is not None, "mosquitto is not installed"
    with config.open("a") as more:
        more.write("sys_interval 1\n")
    with log.open("wb") as sink:
        command = rules.filtered_command(config, program) if log_denied else [program, "-c", config]
        child = subprocess.Popen([*inside, *command], stdout=sink, stderr=sink)
    try:
        _until_open(child, (agent_port, controller_port), log)
        yield Doors(authority, agent_port, controller_port, log, child, state / "agents.acl", address)
    finally:
        child.terminate()
        child.wait(HANG_S)


def _until_open(child: subprocess.Popen[bytes], ports: Sequence[int], log: Path) -> None:
    """Wait until the broker listens in its network namespace, which may differ from ours."""
    wanted = {f"{port:04X}" for port in ports}

    def listens() -> bool:
        assert child.poll() is None, log.read_text()
        rows = [line.split() for line in Path(f"/proc/{child.pid}/net/tcp").read_text().splitlines()[1:]]
        return wanted <= {row[1].rpartition(":")[2] for row in rows if row[3] == "0A"}

    wait_until(listens, "a broker that listens")
