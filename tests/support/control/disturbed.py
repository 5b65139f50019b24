"""Dry runs with disturbances: the bus, nodes or agents are away for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from node_agent.agent import Agent
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverEvent, DriverFacts, NodeBudget
from node_agent.lease_notes import LeaseNotes
from support.control.rehearsal import Watcher, rehearse
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import GuestSpec
from testbed.control.snapshot import Snapshot
from testbed.scheduling.workload.jobs import Job

BEGINS_S = 6.0  # wall seconds of a replay of about a minute
LONG_TRACE_S = 100_000.0  # virtual seconds: the jobs of a dry run are done long before


async def at_once(function: Callable[..., object], *arguments: object) -> object:
    """Run in the loop what an agent runs in a thread, because virtual time does not work with threads."""
    return function(*arguments)


class Outliving(NullDriver):
    """The guests of a killed agent's driver, which the next agent adopts."""

    def __init__(self, before: NullDriver) -> None:
        super().__init__(",".join(before._extras))
        self.keep_s, self.on_saved = 0.0, None
        self._before = before
        self._missed: list[DriverEvent] = []
        self._unmade = [name for name, guest in before._guests.items() if not guest.runs]
        before._tell = self._missed.append
        before.close = self.left  # a killed agent closes nothing

    async def left(self) -> None:
        """Do not touch the guests."""

    async def open(self, budget: NodeBudget, tell: Callable[[DriverEvent], None]) -> DriverFacts:
        self._guests = self._before._guests
        self._before._tell = tell
        facts = await super().open(budget, tell)
        for guest in self._unmade:
            await self.stop(guest)
        for driver_event in self._missed:
            tell(driver_event)
        return facts

    def taken_over(self) -> list[GuestSpec]:
        return [guest.spec for guest in self._guests.values()]

    def settled(self, guest: str) -> None:
        """Do nothing, as this driver keeps no data of ended guests."""


class Disturbed:
    """A dry run with disturbances of the bus and the agents; drivers of new agents have `extras`.

    With `outlive` guests outlive an agent that is killed.
    """

    def __init__(
        self, disturb: Callable[[Disturbed], None], at_s: float = BEGINS_S, extras: str = "", *, outlive: bool = False
    ) -> None:
        self._outlive = outlive
        self._heirs: dict[str, NullDriver] = {}
        self._agents: dict[str, Agent] = {}
        self.hub = MemoryHub()
        self._extras = extras
        self._disturb = disturb
        self._at_s = at_s
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._back_after_s: dict[str, float] = {}
        self._begun = False

    @property
    def clients(self) -> list[str]:
        return list(self.hub._sessions)

    def cut(self, seconds: float, *clients: str) -> None:
        """Cut clients off the bus for some seconds."""
        for client in clients:
            self.hub.drop(client)
            asyncio.get_running_loop().call_later(seconds, self.hub.resume, client)

    def kill(self, node: str, seconds: float) -> None:
        """Kill the agent of a node, and start another one after some seconds."""
        self._back_after_s[node] = seconds
        agent = self._agents[node]
        driver = agent._driver
        if agent._lease.lease is not None:
            LeaseNotes(agent._config.state_dir).keep(agent._lease.lease)  # agents whose guests outlive them do so
        self._heirs[node] = Outliving(driver) if self._outlive else NullDriver(self._extras)
        self.hub.drop(f"agent-{node}")
        self._tasks[node].cancel()

    async def _run(self, first: Agent, run: Callable[[Agent], object]) -> None:
        node = first._config.node
        task = self._tasks[node] = asyncio.current_task()
        self._agents[node] = first
        try:
            await run(first)
        except asyncio.CancelledError:
            if node not in self._back_after_s:
                raise
            task.uncancel()
            await asyncio.sleep(self._back_after_s[node])  # the length of the fault, in virtual time
            second = Agent(first._config, self._heirs[node], first._connect)
            ends = asyncio.ensure_future(first._stopping.wait())
            ends.add_done_callback(lambda _done: second.stop())
            await run(second)

    def run(self, tmp_path: Path, jobs: list[Job], **changes: object):
        """Return summary and journal of the run."""
        run = Agent.run

        def look(picture) -> None:
            if not self._begun and picture.wall_s >= self._at_s:
                self._begun = True
                self._disturb(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Agent, "run", lambda agent: self._run(agent, run))
            patch.setattr("testbed.lab.bring_up.MemoryHub", lambda: self.hub)
            patch.setattr(asyncio, "to_thread", at_once)
            result, journal = rehearse(tmp_path, jobs, watcher=Watcher(look), **changes)
        assert self._begun
        return result.summary, journal


def give_up(picture: Snapshot) -> None:
    """Cancel a run that does not end."""
    if picture.trace_s > LONG_TRACE_S:
        next(task for task in asyncio.all_tasks() if task.get_coro().__name__ == "run_session").cancel()
