"""Environments in which faults disturb runs: two nodes of processes, or two nodes of virtual machines in a lab."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

import psutil
from guest_lab import made_lab

from testbed.bus.address import BrokerAddress
from testbed.bus.mosquitto import find_mosquitto, mosquitto_broker
from testbed.host.interpreter import module_argv
from testbed.lab.box.processes import end, mark, spawn
from testbed.lab.box.services import Broker, NodeAgent
from testbed.lab.box.spec import BoxSpec
from testbed.lab.box.state import Journal
from testbed.lab.boxes import spec_of
from testbed.scenario.schema import load_scenario

SCENARIO = """
name = "faults"
lab = "{lab}"
policy = "GreedyPM */per/OPT=MIN/MINVT=600"
time_scale = 100
seed = 1
on_node_loss = "{on_node_loss}"
[broker]
address = "{broker}"
[programs]
units_per_core_s = {units}
[workload.lublin]
nodes = 2
jobs = 400
seed = 362
load = 0.9
[workload.segment]
first_job = 71
jobs = 12
[[nodes]]
name = "node-a"
cpus = 0.35
memory_mib = 640
spawn = false
[[nodes]]
name = "node-b"
cpus = 0.35
memory_mib = 640
spawn = false
"""
UNITS_PER_CORE_S = 48_000  # about the rate of a core, so that run times are those of the trace; the same in all runs
KVM_SCENARIO = Path(__file__).parents[1] / "scenarios/kvm-two-nodes.toml"


class World(Protocol):
    """Two nodes, `node-a` and `node-b`, an agent on each, and a broker, with methods that disturb them."""

    def scenario(self, on_node_loss: str) -> str:
        """Return the scenario of a run in this environment."""
        ...

    async def broker_away(self, seconds: float) -> None:
        """Kill the broker, and start it again."""
        ...

    async def node_cut(self, seconds: float) -> None:
        """Keep the agent of node-b from the broker."""
        ...

    async def agent_stopped(self, seconds: float) -> None:
        """Stop the agent of node-b, and continue it after a while."""
        ...

    async def agent_killed(self, seconds: float) -> None:
        """Kill the agent of node-b, and start it again."""
        ...


class Relay:
    """Forwards connections to the broker, but for the time in which it is cut."""

    def __init__(self, to: BrokerAddress) -> None:
        self._to = to
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._server.close()
        self._open.set()
        for writer in self._writers:
            writer.close()

    async def cut(self, seconds: float) -> None:
        self._open.clear()
        await asyncio.sleep(seconds)
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError):
            there, back = await asyncio.open_connection(self._to.host, self._to.port)
            self._writers.add(back)
            await asyncio.gather(self._forward(reader, back), self._forward(there, writer))
        writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@dataclass
class ProcessWorld:
    """A Mosquitto, a relay before it for node-b, and two agents of processes."""

    folder: Path
    lab: str
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    agents: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def __aenter__(self) -> Self:
        await self._begin_broker(0)
        self.relay = await self.stack.enter_async_context(Relay(self.address))
        for node in ("node-a", "node-b"):
            await self._begin_agent(node)
        return self

    async def __aexit__(self, *_error: object) -> None:
        for agent in self.agents.values():
            with suppress(ProcessLookupError):
                agent.send_signal(signal.SIGCONT)
                agent.terminate()
            await agent.wait()
        await self.stack.aclose()
        await self._broker.aclose()

    def scenario(self, on_node_loss: str) -> str:
        """Return the scenario of a run in this environment."""
        return SCENARIO.format(lab=self.lab, broker=self.address.url, on_node_loss=on_node_loss, units=UNITS_PER_CORE_S)

    async def _begin_broker(self, port: int) -> None:
        program = find_mosquitto()
        if program is None:
            sys.exit("faults.py: mosquitto is not installed")
        before = {child.pid for child in psutil.Process().children()}
        self._broker = AsyncExitStack()
        self.address = await self._broker.enter_async_context(mosquitto_broker(program, self.folder / "broker", port))
        (self._broker_pid,) = {child.pid for child in psutil.Process().children()} - before

    async def _begin_agent(self, node: str) -> None:
        port = self.relay.port if node == "node-b" else self.address.port
        url = self.address.url.replace(f":{self.address.port}", f":{port}")
        with (self.folder / f"{node}.log").open("ab") as log:
            self.agents[node] = await asyncio.create_subprocess_exec(
                *module_argv("node_agent", "--lab", self.lab, "--node", node, "--cpus", "0.35", "--memory-mib", "640"),
                "--state-dir", str(self.folder / node), "--broker", url, stdout=log, stderr=log,
            )  # fmt: skip

    async def broker_away(self, seconds: float) -> None:
        os.kill(self._broker_pid, signal.SIGKILL)
        await self._broker.aclose()
        await asyncio.sleep(seconds)
        await self._begin_broker(self.address.port)

    async def node_cut(self, seconds: float) -> None:
        await self.relay.cut(seconds)

    async def agent_stopped(self, seconds: float) -> None:
        self.agents["node-b"].send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self.agents["node-b"].send_signal(signal.SIGCONT)

    async def agent_killed(self, seconds: float) -> None:
        self.agents["node-b"].kill()
        await self.agents["node-b"].wait()
        await asyncio.sleep(seconds)
        await self._begin_agent("node-b")


@contextlib.contextmanager
def guest_world(folder: Path, lab: str) -> Iterator[GuestWorld]:
    """Make a lab of virtual machines, and remove it at the end. It blocks: call it outside of an event loop."""
    path = folder / "lab.toml"
    path.write_text(_guest_scenario(lab, "fail"))
    spec = spec_of(load_scenario(path))
    with made_lab(spec, path) as journal:
        yield GuestWorld(lab, spec, journal)


def _guest_scenario(lab: str, on_node_loss: str) -> str:
    text = KVM_SCENARIO.read_text(encoding="utf-8")
    return text.replace('lab = "kvm"', f'lab = "{lab}"\non_node_loss = "{on_node_loss}"')


@dataclass
class GuestWorld:
    """A lab of virtual machines that is up; the agent of node-b reaches the broker over a relay."""

    lab: str
    spec: BoxSpec
    journal: Journal
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        self._address = BrokerAddress.parse(self.journal.state.broker_url)
        self.relay = await self.stack.enter_async_context(Relay(self._address))
        (self._node,) = (node for node in self.spec.nodes if node.name == "node-b")
        self._agent = NodeAgent(self._node, self.journal)
        self._agent.remove()
        self._begin_agent()
        return self

    async def __aexit__(self, *_error: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid(), signal.SIGCONT)
        await self.stack.aclose()

    def scenario(self, on_node_loss: str) -> str:
        """Return the scenario of a run in this environment."""
        return _guest_scenario(self.lab, on_node_loss)

    def _begin_agent(self) -> None:
        url = self._address.url.replace(f":{self._address.port}", f":{self.relay.port}")
        marked_as = mark(self._node.lab, self._node.name, "agent")
        self.journal.started(self._agent.name, spawn(self._agent.argv, marked_as, self._agent.log, f"{url}\n"))

    def _pid(self) -> int:
        process = self._agent.process
        if process is None:
            raise RuntimeError("node-b has no agent")
        return process.pid

    async def broker_away(self, seconds: float) -> None:
        broker = Broker(self.spec, self.journal)
        if broker.process is not None:
            children = psutil.Process(broker.process.pid).children(recursive=True)
            for pid in (broker.process.pid, *(child.pid for child in children)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(end, [broker.process], 8.0)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(broker.make)

    async def node_cut(self, seconds: float) -> None:
        await self.relay.cut(seconds)

    async def agent_stopped(self, seconds: float) -> None:
        os.kill(self._pid(), signal.SIGSTOP)
        await asyncio.sleep(seconds)
        os.kill(self._pid(), signal.SIGCONT)

    async def agent_killed(self, seconds: float) -> None:
        os.kill(self._pid(), signal.SIGKILL)
        await asyncio.sleep(seconds)
        self._begin_agent()
