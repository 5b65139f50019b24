"""A process driver in a separate process, in the role of an agent that a test kills: it runs the test's steps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

from node_agent.drivers.process import ProcessDriver
from support.agent.process_suite import ProcessSuite
from testbed.testing import DriverConformance
from testbed.testing.nodes import Node

TESTS = Path(__file__).parents[2]


class ByCaps(ProcessSuite):
    """Nodes whose caps are set by one mechanism."""

    def __init__(self, caps: str | None) -> None:
        self.caps = caps

    def make(self) -> ProcessDriver:
        return ProcessDriver(caps=self.caps)


def suite_of(kind: str) -> DriverConformance:
    """Return the suite of a kind: for processes a mechanism of caps or nothing, for containers the URL of an engine."""
    if "://" not in kind:
        return ByCaps(kind or None)
    from support.containers.suite import Containers

    return Containers.at(kind)


class OtherAgent:
    """The process. A step is the body of a coroutine with `node` and `suite`; `do` returns its return value."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def do(self, step: str) -> object:
        """Run a step, and return its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(textwrap.dedent(step)).encode() + b"\n")
        line = await self._process.stdout.readline()
        assert line, "the step failed"
        return json.loads(line)

    def stop(self) -> None:
        """Stop the process (SIGSTOP): it neither works nor ends."""
        self._process.send_signal(signal.SIGSTOP)

    async def kill(self) -> None:
        """Kill the process, as a crash does."""
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()


@contextlib.asynccontextmanager
async def other_agent(folder: Path, kind: str, keep_s: float = 900.0) -> AsyncIterator[OtherAgent]:
    """Start the process on the first node of a folder; `kind` is the argument of `suite_of`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.agent.driver_process", str(folder), kind, str(keep_s),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )  # fmt: skip
    try:
        yield OtherAgent(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def main(folder: str, kind: str, keep_s: str) -> None:
    """Run steps from standard input, until it is killed."""
    suite = suite_of(kind)
    (node,) = suite.nodes(Path(folder), 1)
    assert isinstance(node, Node)
    assert isinstance(node.driver, ProcessDriver)
    node.driver.keep_s = float(keep_s)
    await node.open()
    scope: dict[str, object] = {"node": node, "suite": suite, "asyncio": asyncio, "os": os, "tasks": []}
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        exec("async def step():\n" + textwrap.indent(json.loads(line), "    "), scope)  # noqa: S102  # of a test
        found = await scope["step"]()  # type: ignore[operator]
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
