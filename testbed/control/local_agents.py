"""Agents of nodes on this machine, as child processes that end with the run."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from testbed.control.scenario import NodeTable
from testbed.errors import RunError

GRACE_S = 8.0


@contextlib.asynccontextmanager
async def local_agents(
    nodes: Sequence[NodeTable], lab: str, broker_url: str, run_path: Path
) -> AsyncIterator[dict[str, asyncio.subprocess.Process]]:
    """Run one agent a node inside the block; ended by SIGTERM, then SIGKILL, by process id.

    Agents get a session of their own, so that the terminal's Ctrl-C reaches only the controller; they end by themselves
    if this process dies. Their output goes to `agents/<node>.log` in the run directory.
    """
    agents: dict[str, asyncio.subprocess.Process] = {}
    sockets = Path(tempfile.mkdtemp(prefix="dfrs-"))  # short: socket names have at most 107 bytes
    logs = run_path / "agents"
    logs.mkdir()
    try:
        for node in nodes:
            with (logs / f"{node.name}.log").open("wb") as log:
                agents[node.name] = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "node_agent", "--lab", lab, "--node", node.name, "--driver", node.driver,
                    "--cpus", str(node.cpus), "--memory-mib", str(node.memory_mib),
                    "--state-dir", str(sockets / node.name),
                    "--image-dir", str(run_path / "images" / node.name), "--die-with-parent", "--broker-from-stdin",
                    stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
            pipe = agents[node.name].stdin
            if pipe is None:
                raise RunError(f"agent of {node.name}: no pipe to it")
            pipe.write(broker_url.encode() + b"\n")  # not in the arguments, which every user of the machine can read
            pipe.close()
        yield agents
    finally:
        await asyncio.shield(_end(agents))
        shutil.rmtree(sockets, ignore_errors=True)
        shutil.rmtree(run_path / "images", ignore_errors=True)


def last_words(run_path: Path) -> str:
    """Return the last line that each agent of a run wrote about itself, for an error message; it may be empty."""
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
