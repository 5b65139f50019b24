"""No call blocks the event loop: controller and agents of a live run in one loop, with every call watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from blockbuster import BlockBuster
from support.control.interrupting import Interrupting
from support.control.rehearsal import Watcher, scenario
from support.deadlines import PATIENT

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.process import ProcessDriver
from testbed.bus.broker import broker
from testbed.bus.client import MqttBus
from testbed.bus.protocol import Bus
from testbed.control.session import run_session
from testbed.scenario.schema import Scenario
from testbed.scheduling.workload.jobs import Job

# Lookups of file names and the write of a journal line only use memory, and the journal must be written before the
# act, so they are allowed. Sleeping, and waiting for sockets, pipes, locks or the content of files, is blocking.
METADATA = {
    f"os.{name}"
    for name in (
        "access", "listdir", "lstat", "mkdir", "readlink", "remove", "rename", "replace", "rmdir", "scandir", "stat",
        "statvfs", "unlink",
    )
}  # fmt: skip


def is_of_the_kernel(file: object, *_arguments: object, **_options: object) -> bool:
    """Whether a file is one of the kernel's, without a disk."""
    return str(getattr(file, "name", "")).startswith(("/proc/", "/sys/"))


@asynccontextmanager
async def one_loop_lab(chosen: Scenario, run_path: Path, client_id: str) -> AsyncIterator[Bus]:
    """A lab whose agents live in this process: real broker, real guests, one loop."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:  # an agent that fails ends the run
        address = (await stack.enter_async_context(broker("embedded"))).address
        bus = await stack.enter_async_context(MqttBus(address, client_id))
        agents, ordered = [], asyncio.Event()

        async def run(agent: Agent) -> None:
            await agent.run()
            assert ordered.is_set(), "an agent has ended by itself: the log says why"

        for node in chosen.nodes:
            place = run_path / node.name
            config = AgentConfig(chosen.lab, node.name, node.cpus, node.memory_mib, place, place / "images")
            agents.append(Agent(config, ProcessDriver(), partial(MqttBus, address, f"agent-{node.name}")))
            group.create_task(run(agents[-1]))
        try:
            yield bus
        finally:
            ordered.set()
            for agent in agents:
                agent.stop()


@pytest.mark.slow
def test_no_call_of_a_live_run_blocks_the_loop(tmp_path: Path) -> None:
    jobs = [Job(1, 0, 1, 1.0, 0.2, 60), Job(2, 60, 2, 1.0, 0.2, 60), Job(3, 90, 1, 1.0, 0.2, 60)]
    chosen = scenario(programs={"units_per_core_s": 50000.0}, deadlines=PATIENT)
    watch = BlockBuster(scanned_modules=["testbed", "node_agent"])
    for name in [name for name in watch.functions if name in METADATA or name.endswith(".write")]:
        del watch.functions[name]
    for name, function in watch.functions.items():
        if name.startswith("io."):
            function.can_block_predicate = is_of_the_kernel

    # fork and exec answer over a pipe within a millisecond; asyncio's own processes do the same
    watch.functions["os.read"].can_block_in("subprocess.py", "_execute_child")
    watch.functions["os.read"].can_block_in("testbed/host/kernel_files.py", "read_kernel_file")

    class WatchedRun(Watcher):
        """Watch from the first job on, because agents may read files when they start."""

        def line(self, trace_s: float, text: str) -> None:
            super().line(trace_s, text)
            if text == "job 1 submitted":
                watch.activate()

    async def main() -> dict[str, object]:
        try:
            result = await run_session(
                chosen, Interrupting("Interrupting", 60.0), jobs, tmp_path / "run", one_loop_lab, WatchedRun()
            )
        finally:
            watch.deactivate()
        return result.summary

    summary = asyncio.run(main())
    assert summary["done"] == 3, summary
    assert summary["metrics"]["restores"]["value"] == 3, "starts, caps, saves, transfers and restores were watched"
