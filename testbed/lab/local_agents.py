"""Agents of nodes on this machine: child processes that end with the run, or outlive a lost controller."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from testbed.bus.drivers import drivers
from testbed.errors import InputError, RunError, UserError, nearest
from testbed.host.interpreter import module_argv
from testbed.lab.cleanup.sweeper import clean_up_after
from testbed.lab.lab_record import LabRecord
from testbed.scenario.schema import NodeTable, Scenario

GRACE_S = 8.0
_AGAIN_AFTER_S = 0.25
_MOST_WAIT_S = 30.0
_log = logging.getLogger(__name__)


def check_drivers(scenario: Scenario) -> None:
    """Raise `UserError` for a driver that is not installed for the agents on this machine."""
    known = sorted(drivers())
    for index, node in enumerate(scenario.nodes):
        if (node.spawn or scenario.box is not None) and node.driver not in known:
            expected = f"one of {', '.join(known)}{nearest(node.driver, known)}"
            raise InputError(f"node {node.name}", f"nodes.{index}.driver", node.driver, expected)


@contextlib.asynccontextmanager
async def local_agents(
    nodes: Sequence[NodeTable], lab: str, broker_url: str, run_path: Path, *, folder: Path,
    record: LabRecord | None = None,
) -> AsyncIterator[None]:  # fmt: skip
    """Run one agent per node inside the block; at its end, agents get SIGTERM, then SIGKILL.

    The guests of an agent that had to be killed are removed. Agents get a session of their own, so that the terminal's
    Ctrl-C reaches only the controller. An agent that is killed is started again. Without a `record` agents end by
    themselves if this process dies. With a `record` they continue, and the next controller that has the record takes
    them over; they also continue if this controller fails to take the run over. Each agent has a folder in `folder`,
    which it removes itself. Its output goes to `agents/<node>.log` in the run directory.
    """
    logs = run_path / "agents"
    logs.mkdir(exist_ok=True)
    places = {
        node.name: _Place(node, lab, broker_url, folder / node.name, run_path / "images" / node.name, logs, record)
        for node in nodes
    }
    keepers: list[asyncio.Task[None]] = []
    try:
        for place in places.values():
            await place.begin()
        keepers += [asyncio.create_task(place.watch(), name=f"watch agent {name}") for name, place in places.items()]
        yield
    finally:
        stay = record is not None and record.taking_over
        await asyncio.shield(_end([] if stay else list(places.values()), keepers))
        if not stay:
            shutil.rmtree(run_path / "images", ignore_errors=True)


class _Process(Protocol):
    """A process of an agent, started by this process or by an earlier controller."""

    pid: int

    def terminate(self) -> None:
        """Send SIGTERM; raises `ProcessLookupError`."""

    def kill(self) -> None:
        """Send SIGKILL; raises `ProcessLookupError`."""

    async def wait(self) -> int:
        """Wait for the process to end; return its exit code, negative for a signal or if the code is unknown."""


class _Foreign:
    """A process that an earlier controller started, watched by its pidfd."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_end)

    def terminate(self) -> None:
        """See `_Process`."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """See `_Process`."""
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait(self) -> int:
        """See `_Process`."""
        await self._ended.wait()
        return -signal.SIGKILL

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._ended.set()


class _Place:
    """The agent process of one node, with its command line."""

    def __init__(
        self, node: NodeTable, lab: str, broker_url: str, state: Path, images: Path, logs: Path,
        record: LabRecord | None,
    ) -> None:  # fmt: skip
        self._node = node
        self._broker_url = broker_url
        self._log_path = logs / f"{node.name}.log"
        self._record = record
        self._argv = [
            *module_argv("node_agent", "--lab", lab, "--node", node.name, "--driver", node.driver),
            "--cpus", str(node.cpus), "--memory-mib", str(node.memory_mib),
            "--state-dir", str(state), "--image-dir", str(images),
            "--image-budget-mib", str(node.image_budget_mib), "--broker-from-stdin",
            "--die-with-parent" if record is None else "--ephemeral",
            *(["--cpu-set", ",".join(map(str, node.cpu_set))] if node.cpu_set else []),
        ]  # fmt: skip
        self._process: _Process | None = None

    async def begin(self) -> None:
        """Start the agent, or take over the one that an earlier controller has started; raises `UserError`."""
        pid = None if self._record is None else self._record.agent(self._node.name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # the process has just ended: start another
                self._process = _Foreign(pid)
                return
        await self._start()

    async def watch(self) -> None:
        """Start the agent again whenever it was killed, until this task is cancelled or the agent ends by itself."""
        waits_s = _AGAIN_AFTER_S
        while self._process is not None:
            began_s = asyncio.get_running_loop().time()
            code = await self._process.wait()
            if code >= 0:
                return
            lived_s = asyncio.get_running_loop().time() - began_s
            waits_s = _AGAIN_AFTER_S if lived_s > _MOST_WAIT_S else min(2 * waits_s, _MOST_WAIT_S)
            _log.warning("the agent of node %s was killed; it is started again", self._node.name)
            await asyncio.sleep(waits_s)
            await self._start()

    async def end(self) -> int | None:
        """Wait for the agent's end; return its process id if it had to be killed."""
        process = self._process
        if process is None:
            return None
        try:
            async with asyncio.timeout(GRACE_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            return process.pid
        return None

    def terminate(self) -> None:
        """Send SIGTERM to the agent."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    async def _start(self) -> None:
        with self._log_path.open("ab") as log:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._argv, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
                )
            except OSError as error:
                raise UserError(
                    f"node {self._node.name}: its agent cannot be started: {self._argv[0]}: {error.strerror}: expected "
                    "a Python that this user may run"
                ) from error
        self._process = process
        if process.stdin is None:
            raise RunError(f"agent of {self._node.name}: no pipe to it")
        # the URL may have a password, and every user of the machine can read arguments
        process.stdin.write(self._broker_url.encode() + b"\n")
        process.stdin.close()
        if self._record is not None:
            self._record.note_agent(self._node.name, process.pid)


async def _end(places: Sequence[_Place], keepers: Sequence[asyncio.Task[None]]) -> None:
    for keeper in keepers:
        keeper.cancel()
    await asyncio.gather(*keepers, return_exceptions=True)
    for place in places:
        place.terminate()
    killed = [pid for place in places if (pid := await place.end()) is not None]
    await clean_up_after(killed)


def remove_empty(folder: Path) -> None:
    """Remove a folder if agents have left it empty.

    The folder of a killed agent stays: it lists the shared memory of its ranks, which `testbed cleanup` removes.
    """
    with contextlib.suppress(OSError):
        folder.rmdir()


def last_words(run_path: Path) -> str:
    """Return the last log line of each agent of a run, for an error message; the result may be empty."""
    words = []
    for log in sorted((run_path / "agents").glob("*.log")):
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if lines:
            words.append(f"; {log.stem}: {lines[-1]}")
    return "".join(words)
