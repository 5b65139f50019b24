"""Agents of nodes on this machine, as child processes that end with the run."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from testbed.bus.drivers import drivers
from testbed.errors import InputError, RunError, UserError, nearest
from testbed.host.interpreter import module_argv
from testbed.scenario.schema import NodeTable, Scenario

GRACE_S = 8.0


def check_drivers(scenario: Scenario) -> None:
    """Raise `UserError` for a driver that is not installed for the agents on this machine."""
    known = sorted(drivers())
    for index, node in enumerate(scenario.nodes):
        if (node.spawn or scenario.box is not None) and node.driver not in known:
            expected = f"one of {', '.join(known)}{nearest(node.driver, known)}"
            raise InputError(f"node {node.name}", f"nodes.{index}.driver", node.driver, expected)


@contextlib.asynccontextmanager
async def local_agents(
    nodes: Sequence[NodeTable], lab: str, broker_url: str, run_path: Path
) -> AsyncIterator[dict[str, asyncio.subprocess.Process]]:
    """Run one agent per node inside the block; ended by SIGTERM, then SIGKILL, by process id.

    Agents get a session of their own, so that the terminal's Ctrl-C reaches only the controller; they end by themselves
    if this process dies. They remove their own folders. Their output goes to `agents/<node>.log` in the run directory.
    """
    agents: dict[str, asyncio.subprocess.Process] = {}
    sockets = Path(tempfile.mkdtemp(prefix="dfrs-"))  # short: socket names have at most 107 bytes
    logs = run_path / "agents"
    logs.mkdir()
    try:
        for node in nodes:
            with (logs / f"{node.name}.log").open("ab") as log:
                argv = [
                    *module_argv("node_agent", "--lab", lab, "--node", node.name, "--driver", node.driver),
                    "--cpus", str(node.cpus), "--memory-mib", str(node.memory_mib),
                    "--state-dir", str(sockets / node.name),
                    "--image-dir", str(run_path / "images" / node.name),
                    "--image-budget-mib", str(node.image_budget_mib), "--die-with-parent", "--broker-from-stdin",
                ]  # fmt: skip
                try:
                    agents[node.name] = await asyncio.create_subprocess_exec(
                        *argv, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
                    )
                except OSError as error:
                    raise UserError(
                        f"node {node.name}: its agent cannot be started: {argv[0]}: {error.strerror}: expected a "
                        "Python that this user may run"
                    ) from error
            pipe = agents[node.name].stdin
            if pipe is None:
                raise RunError(f"agent of {node.name}: no pipe to it")
            pipe.write(broker_url.encode() + b"\n")  # not in the arguments, which every user of the machine can read
            pipe.close()
        yield agents
    finally:
        await asyncio.shield(_end(agents))
        _remove_empty(sockets)
        shutil.rmtree(run_path / "images", ignore_errors=True)


def _remove_empty(folder: Path) -> None:
    """Remove a folder that agents have left empty.

    A killed agent's own folder stays: `testbed cleanup` reads from it the shared memory left by its ranks.
    """
    with contextlib.suppress(OSError):
        folder.rmdir()


def last_words(run_path: Path) -> str:
    """Return the last log line of each agent of a run, for an error message; it may be empty."""
    words = []
    for log in sorted((run_path / "agents").glob("*.log")):
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if lines:
            words.append(f"; {log.stem}: {lines[-1]}")
    return "".join(words)


async def _end(agents: dict[str, asyncio.subprocess.Process]) -> None:
    for agent in agents.values():
        with contextlib.suppress(ProcessLookupError):
            agent.terminate()
    for agent in agents.values():
        try:
            async with asyncio.timeout(GRACE_S):
                await agent.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                agent.kill()
            await agent.wait()
