"""Runs in virtual time whose controller is killed at an entry of its journal, and resumed; agents keep running."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.null import NullDriver
from support.control.rehearsal import Watcher
from testbed.bus.memory import MemoryHub
from testbed.bus.protocol import Bus
from testbed.control.lost_run import LostRun, load_lost_run
from testbed.control.session import RunResult, _Session, resume_session, run_session
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.measure.run_lock import RunLock
from testbed.measure.rundir import RunDirectory
from testbed.run.events import Event
from testbed.scenario.schema import Scenario
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.workload.jobs import Job

HANGS_S = 3600.0  # of virtual time: the runs take a minute or two
LEASE_S = 30.0  # of virtual time: after that the lease of a killed controller has expired


class KilledController:
    """A run on agents that outlive its controllers.

    The controller is killed each time that `dies(event)` holds for an event that it has journalled. After `away_s` of
    virtual time another controller resumes the run.
    """

    def __init__(
        self, tmp_path: Path, scenario: Scenario, jobs: Sequence[Job], dies: Callable[[Event], bool], *,
        away_s: float = 2 * LEASE_S, extras: str = "",
    ) -> None:  # fmt: skip
        self._folder = tmp_path
        self._scenario = scenario
        self._jobs = jobs
        self._dies = dies
        self._away_s = away_s
        self._extras = extras
        self._hub = MemoryHub()
        self._controller = ""
        self._session: asyncio.Task[RunResult] | None = None
        self.path = tmp_path / "run1"
        self.killed_at: list[Event] = []
        self.watcher = Watcher()
        self._bring_up = self._lab  # one object, because a dry run is recognised by its identity

    def run(self) -> RunResult:
        """Return the result of the last controller."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("testbed.control.session.dry_lab", self._bring_up)
            # the wall clock does not follow virtual time
            patch.setattr(LostRun, "now_s", lambda lost: lost.since_s + self._away_s)
            finish = _Session.finish
            patch.setattr(_Session, "finish", lambda session, *, complete: self._finish(finish, session, complete))
            journal = RunDirectory.journal
            patch.setattr(RunDirectory, "journal", lambda directory, event: self._journal(journal, directory, event))
            return run_in_virtual_time(self._main())

    async def _main(self) -> RunResult:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(HANGS_S), self._agents():
            policy = parse(self._scenario.policy[0], self._scenario.period_s)
            first = run_session(self._scenario, policy, self._jobs, self.path, self._bring_up, self.watcher)
            self._session = loop.create_task(first)
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    return await self._session
                await asyncio.sleep(self._away_s)  # the length of the fault, in virtual time
                lock = RunLock(self.path)
                resumed = resume_session(load_lost_run(self.path), lock, self._bring_up, self.watcher)
                self._session = loop.create_task(resumed)

    def _finish(self, finish: Callable[..., RunResult], session: _Session, complete: bool) -> RunResult:
        """Write results, unless the controller is dead."""
        if session.path != self.path:
            raise asyncio.CancelledError
        return finish(session, complete=complete)

    def _journal(
        self, journal: Callable[[RunDirectory, Event], int], directory: RunDirectory, event: Event
    ) -> int:  # fmt: skip
        number = journal(directory, event)
        if directory.path == self.path and self._dies(event):
            self.killed_at.append(event)
            self._hub.drop(self._controller)
            directory.sync()
            self.path = self._folder / f"run{len(self.killed_at) + 1}"
            shutil.copytree(directory.path, self.path)
            assert self._session is not None
            self._session.cancel()
        return number

    @contextlib.asynccontextmanager
    async def _lab(self, _scenario: Scenario, _path: Path, client: str) -> AsyncIterator[Bus]:
        self._controller = client
        async with self._hub.client(client) as bus:
            yield bus

    @contextlib.asynccontextmanager
    async def _agents(self) -> AsyncIterator[None]:
        agents = []
        for node in self._scenario.nodes:
            place = self._folder / node.name
            images = place / "images"
            config = AgentConfig(
                self._scenario.lab, node.name, node.cpus, node.memory_mib, place, images, str(images),
                serve_images=False,
            )  # fmt: skip
            agents.append(Agent(config, NullDriver(self._extras), partial(self._hub.client, f"agent-{node.name}")))
        tasks = [asyncio.create_task(agent.run(), name="rehearsing agent") for agent in agents]
        try:
            yield
        finally:
            for agent in agents:
                agent.stop()
            await asyncio.gather(*tasks)
