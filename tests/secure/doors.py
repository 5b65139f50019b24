"""A real Mosquitto with the two doors of a lab of several machines, on the loopback interface."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testbed.bus.address import BrokerAddress
from testbed.bus.mosquitto import find_mosquitto
from testbed.secure import broker as rules
from testbed.secure.authority import Authority

LAB = "lab-1"
NODES, CONTROLLERS = ("n1", "n2"), ("alice",)


@dataclass(frozen=True, slots=True)
class Doors:
    """Where agents and controllers come in, and the authority of the lab."""

    authority: Authority
    agent_port: int
    controller_port: int
    log: Path

    def agent(self, name: str, *, port: int = 0) -> BrokerAddress:
        folder = self.authority.folder / "nodes" / name
        return BrokerAddress("127.0.0.1", port or self.agent_port, tls=True, tls_dir=folder)

    def controller(self, name: str = "alice", *, port: int = 0) -> BrokerAddress:
        folder = self.authority.folder / "controllers" / name
        return BrokerAddress("127.0.0.1", port or self.controller_port, tls=True, tls_dir=folder)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def open_doors(folder: Path) -> Iterator[Doors]:
    authority = Authority.create(folder / "ca", LAB)
    authority.issue("broker", hosts=["127.0.0.1"])
    for name in NODES:
        authority.issue("node", name, hosts=["127.0.0.1"])
    for name in CONTROLLERS:
        authority.issue("controller", name)
    state = folder / "broker"
    state.mkdir()
    agent_port, controller_port = free_ports(2)
    (state / "agents.acl").write_text(rules.agents_acl(LAB, NODES))
    (state / "controllers.acl").write_text(rules.controllers_acl(LAB, CONTROLLERS))
    config, log = state / "mosquitto.conf", state / "log"
    config.write_text(
        rules.mosquitto_config(
            "127.0.0.1", authority.folder / "broker", state, state,
            agent_port=agent_port, controller_port=controller_port, user=getpass.getuser(),
        )
    )  # fmt: skip
    program = find_mosquitto()
    assert program is not None, "mosquitto is not installed"
    with log.open("wb") as sink:
        child = subprocess.Popen([program, "-c", config], stdout=sink, stderr=sink)
    try:
        asyncio.run(_until_open(agent_port, controller_port, log))
        yield Doors(authority, agent_port, controller_port, log)
    finally:
        child.terminate()
        child.wait(10)


async def _until_open(*ports_and_log: object) -> None:
    *ports, log = ports_and_log
    async with asyncio.timeout(10):
        for port in ports:
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    break
    assert log is not None
