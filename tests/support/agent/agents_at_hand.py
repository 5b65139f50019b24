"""Agents with null drivers that are commanded without a bus, and crash at a chosen command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from node_agent.agent import Agent, AgentConfig
from node_agent.drivers.null import NullDriver
from testbed.bus.guest_details import GuestReport
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import AnyAction, GuestSpec, NodeFacts, ProgramSpec, Reply
from testbed.bus.requests import CommandFailedError
from testbed.bus.suspicious_acts import ActKind
from testbed.errors import FailureCode, TestbedError
from testbed.lab.job_guests import JobGuests, Unrecorded

MEMORY_MIB = 1000


class ControllerDiedError(BaseException):
    """The controller is killed: none of its code runs any more."""


@dataclass
class Crash:
    """A crash at the `number`th command, counted from 0: `who` dies `before` or after the agent executes it.

    The successor of a killed agent adopts its guests. Held guests stay held, or are released if `running`.
    """

    number: int
    who: str
    before: bool
    running: bool = False


@dataclass
class AgentsAtHand:
    """Nodes of a fleet: each agent has a separate folder, which the successor of a killed agent uses, too."""

    folder: Path
    count: int = 2
    crash: Crash | None = None
    agents: list[Agent] = field(default_factory=list)
    log: list[tuple[int, AnyAction]] = field(default_factory=list)
    on_guest_event: Callable[[int, GuestReport], None] = lambda _node, _event: None
    on_mpi_barrier: Callable[[int, GuestReport], None] = lambda _node, _event: None

    def __post_init__(self) -> None:
        self.agents = [self._agent(node, NullDriver()) for node in range(self.count)]

    def _agent(self, node: int, driver: NullDriver) -> Agent:
        place = self.folder / str(node)
        config = AgentConfig(
            "t", f"n{node}", 1.0, MEMORY_MIB, place, place / "images", str(place / "images"), serve_images=False
        )  # fmt: skip
        return Agent(config, driver, lambda presence: MemoryHub().client("agent", presence))

    def driver(self, node: int) -> NullDriver:
        driver = self.agents[node]._driver
        assert isinstance(driver, NullDriver)
        return driver

    async def restart(self, node: int, *, running: bool = False) -> None:
        """Kill an agent, whose guests keep running, and start another one that adopts them."""
        before, driver = self.agents[node], NullDriver()
        driver._guests = self.driver(node)._guests
        self.agents[node] = self._agent(node, driver)
        self.agents[node]._residents._memory_mib.update(before._residents._memory_mib)
        for guest in list(driver._guests) if running else []:
            await driver.release(guest)

    async def call(self, node: int, action: AnyAction, _deadline_s: float) -> dict[str, object]:
        crash, number = self.crash, len(self.log)
        self.log.append((node, action))
        if crash is None or crash.number != number:
            return await self._perform(node, action)
        if not crash.before:
            await self._perform(node, action)
        if crash.who == "controller":
            raise ControllerDiedError
        await self.restart(node, running=crash.running)
        reply = Reply(id="0", node=self.name(node), status="failed", code=FailureCode.AGENT_RESTARTED.value)
        raise CommandFailedError(self.name(node), action, "interrupted: the agent was restarted", reply)

    async def _perform(self, node: int, action: AnyAction) -> dict[str, object]:
        await asyncio.sleep(0)
        try:
            return await self.agents[node].perform(action)
        except TestbedError as error:
            reply = Reply(id="0", node=self.name(node), status="failed", code=error.failure_code)
            raise CommandFailedError(self.name(node), action, str(error), reply) from error

    def facts(self, node: int) -> NodeFacts:
        place = str(self.folder / str(node) / "images")
        return NodeFacts(
            driver="null", cpus=1.0, memory_mib=MEMORY_MIB, address=place, capabilities=("save:null",), machine_cores=1,
            machine_memory_mib=MEMORY_MIB, kernel="", cpu_model="", versions={}, image_port=0, image_free_mib=1000,
        )  # fmt: skip

    def name(self, node: int) -> str:
        return f"n{node}"

    def suspect(self, node: int, kind: ActKind, what: object) -> None:
        raise AssertionError((node, kind, what))


def job(tasks: int, *, ranks: bool) -> JobGuests:
    """Return an endless job with this number of tasks, with MPI or without."""
    specs = tuple(
        GuestSpec(
            guest=f"g{task}", run="t", job=1, task=task, cpu_cores=1.0, memory_mib=60,
            program=ProgramSpec(name="eatcpu", work_units=10**9, units_per_iteration=100, seed=1,
                                rank=task, ranks=tasks if ranks else 1),
        )
        for task in range(tasks)
    )  # fmt: skip
    return JobGuests(specs=specs, state=Unrecorded())


async def started(nodes: AgentsAtHand, live: JobGuests, places: tuple[int, ...]) -> None:
    """Create the guests without a controller; each has more units done than the one before it."""
    for task, (node, spec) in enumerate(zip(places, live.specs, strict=True)):
        driver, agent = nodes.driver(node), nodes.agents[node]
        agent._residents.found(spec)
        guest = driver._put(spec, 1.0, 1000.0 * (task + 1))
        guest.runs = True
        driver._arm(guest)
    assert isinstance(live.state, Unrecorded)
    live.state.running_on = places
