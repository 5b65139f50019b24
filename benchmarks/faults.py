"""What faults cost a run: `python benchmarks/faults.py [--case NAME ...] [--repeats 1] [--out FILE.json]`.

Twelve jobs of the quickstart's trace on two nodes of real processes, with a Mosquitto and agents of its own. Once the
replay has gone on for `--after-s` something is done: the broker is killed and back after a while, node-b is cut off (a
relay between it and the broker forwards nothing), its agent is stopped (SIGSTOP), or killed and started again. The
table says how many jobs were done, and why the others were not. Needs Mosquitto.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
from lab import print_machine, print_table

from testbed.bus.address import BrokerAddress
from testbed.bus.mosquitto import find_mosquitto, mosquitto_broker
from testbed.interpreter import module_argv

SCENARIO = """
name = "faults"
lab = "{lab}"
policy = "GreedyPM */per/OPT=MIN/MINVT=600"
time_scale = 100
seed = 1
on_guest_loss = "{on_guest_loss}"
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
UNITS_PER_CORE_S = 8000  # not measured before each run: the same work in all of them
SAY_EVERY_S = 0.1


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
class World:
    """A broker, a relay before it for node-b, and two agents; all of them can be hurt."""

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


Fault = Callable[[World], Awaitable[None]]


async def nothing(_world: World) -> None:
    """The control."""


CASES: dict[str, tuple[str, Fault, str]] = {
    "none": ("nothing", nothing, "fail"),
    "broker-10": ("broker killed, back after 10 s", lambda world: world.broker_away(10), "fail"),
    "broker-60": ("broker killed, back after 60 s", lambda world: world.broker_away(60), "fail"),
    "stop-30": ("agent stopped for 30 s", lambda world: world.agent_stopped(30), "fail"),
    "cut-30": ("node cut off for 30 s", lambda world: world.node_cut(30), "fail"),
    "kill-3": ("agent killed, back after 3 s", lambda world: world.agent_killed(3), "fail"),
    "kill-3-restart": ("the same, jobs start again", lambda world: world.agent_killed(3), "restart"),
}


def entries(journal: Path) -> list[dict[str, Any]]:
    if not journal.exists():
        return []
    lines = journal.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def the_run(folder: Path) -> Path:
    (path,) = folder.glob("runs/*")
    return path


def kinds(folder: Path) -> set[str]:
    return {entry["kind"] for journal in folder.glob("runs/*/events.jsonl") for entry in entries(journal)}


async def run_case(name: str, after_s: float, folder: Path) -> dict[str, Any]:
    _, fault, on_guest_loss = CASES[name]
    lab = f"faults-{os.getpid()}"
    async with World(folder, lab) as world:
        path = folder / "faults.toml"
        path.write_text(
            SCENARIO.format(lab=lab, broker=world.address.url, on_guest_loss=on_guest_loss, units=UNITS_PER_CORE_S)
        )
        with (folder / "run.log").open("wb") as log:
            run = await asyncio.create_subprocess_exec(
                *module_argv("testbed", "run", str(path), "--out", str(folder / "runs")), stdout=log, stderr=log
            )
        while run.returncode is None and "replay" not in kinds(folder):
            with suppress(TimeoutError):
                await asyncio.wait_for(run.wait(), SAY_EVERY_S)
        hurting = asyncio.ensure_future(_later(after_s, fault, world))
        code = await run.wait()
        await hurting
    run_path = the_run(folder)
    summary = json.loads((run_path / "summary.json").read_text())
    nodes = [
        f"{entry['node']} {entry.get('standing', entry['online'])}: {entry['reason']}"
        for entry in entries(run_path / "events.jsonl")
        if entry["kind"] == "node"
    ]
    return {
        "case": name, "done": summary["done"], "failed": summary["failed"], "exit_code": code, "nodes": nodes,
        "wall_s": entries(run_path / "events.jsonl")[-1].get("t_s"),
    }  # fmt: skip


async def _later(seconds: float, fault: Fault, world: World) -> None:
    await asyncio.sleep(seconds)
    await fault(world)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--case", action="append", choices=list(CASES), help="one case; all of them by default")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--after-s", type=float, default=8.0, help="when in the replay it happens, in wall seconds")
    parser.add_argument("--out", type=Path, help="results as JSON")
    options = parser.parse_args()
    print_machine()
    results = []
    for name in options.case or CASES:
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory(prefix="dfrs-faults-") as folder:
                results.append(asyncio.run(run_case(name, options.after_s, Path(folder))))
            print(json.dumps(results[-1]), flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1) + "\n")
    print_table(
        "Twelve jobs, two nodes of processes",
        ("fault", "done", "failed", "reasons"),
        [
            (
                CASES[str(one["case"])][0],
                one["done"],
                len(one["failed"]),
                "; ".join(sorted(set(one["failed"].values()))),
            )
            for one in results
        ],
    )


if __name__ == "__main__":
    main()
