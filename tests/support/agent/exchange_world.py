"""Agents that exchange shares in virtual time: they die at writes and messages, and the bus is unreliable.

The agents are the real ones, with files. The test replaces their clock, their bus and the CPU use of their guests.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node_agent import share_exchange
from node_agent.share_exchange import FOLDER, Kept, ShareExchange
from testbed.bus.messages import Exchange, GuestSpec, ProgramSpec
from testbed.bus.protocol import Handler
from testbed.bus.telemetry import GuestSample
from testbed.host.whole_files import write_whole
from testbed.shares.formulas import shares_of
from testbed.shares.state import AccountState

NODES = ("n0", "n1", "n2")
PERIOD_S = 5.0
TOTALS: Counter[str] = Counter()  # over all worlds


@dataclass(frozen=True)
class Faults:
    """Rates of each fault, as fractions of the messages or of the writes; `delay_s` is the longest delay."""

    lost: float = 0.0
    doubled: float = 0.0
    delayed: float = 0.0
    deaths: float = 0.0
    delay_s: float = 0.0


@dataclass(frozen=True)
class Job:
    """A job: its order, and the booked cores of each of its guests."""

    order: Exchange
    share_cores: float

    @property
    def total(self) -> int:
        """The sum of the job's shares."""
        return shares_of(self.share_cores) * len(self.order.nodes)


@dataclass
class Agent:
    """One node: its state folder, the guests on it, and its current agent."""

    name: str
    folder: Path
    specs: list[tuple[GuestSpec, Exchange]]
    exchange: ShareExchange | None = None
    task: asyncio.Task[None] | None = None
    set_cores: dict[str, float] = field(default_factory=dict)  # the values in the kernel, set by any agent of the node


class World:
    """The agents, and the bus between them. `seed` determines the faults of messages and writes."""

    def __init__(self, folder: Path, jobs: Sequence[Job], cores: float, seed: int) -> None:
        self.jobs = jobs
        self.faults = Faults()
        self.use_cores: dict[str, float] = {}
        self.waits_s: dict[str, tuple[float, ...]] = {}
        self._random = random.Random(seed)  # noqa: S311  # of a test
        self._cores = cores
        self._handlers: dict[str, tuple[Agent, Handler]] = {}
        self._begun: set[str] = set()
        self.agents = {name: Agent(name, folder / name, self._specs(name)) for name in NODES}
        for agent in self.agents.values():
            agent.folder.mkdir()

    def _specs(self, node: str) -> list[tuple[GuestSpec, Exchange]]:
        return [
            (
                GuestSpec(
                    guest=guest, run="r", job=number, task=task, cpu_cores=1.0, memory_mib=64,
                    program=ProgramSpec("patterns", 10, 1, 1), share_cores=job.share_cores,
                ),
                job.order,
            )
            for number, job in enumerate(self.jobs)
            for task, (guest, there) in enumerate(job.order.nodes.items())
            if there == node
        ]  # fmt: skip

    # --- agents

    def begin(self, name: str) -> None:
        """Start the guests of a node."""
        agent = self.agents[name]
        agent.exchange = self._new(agent)
        for spec, order in agent.specs:
            agent.exchange.begin(spec, order)
            agent.set_cores[spec.guest] = spec.share_cores or 0.0  # a driver does so when it starts a guest
        self._begun.add(name)
        self._serve(agent)

    def restart(self, name: str) -> None:
        """Let another agent adopt the guests of a dead one."""
        agent = self.agents[name]
        if agent.task is not None and agent.task.done():
            TOTALS["agent restarts"] += 1
            agent.exchange = self._new(agent)
            agent.exchange.take_over([spec for spec, _ in agent.specs])
            self._serve(agent)

    def restart_some(self) -> None:
        """Let agents adopt the guests of some dead agents."""
        for name in NODES:
            if self._happens(0.4):
                self.restart(name)

    async def kill(self, name: str) -> None:
        """Kill an agent while it waits."""
        agent = self.agents[name]
        if agent.task is not None and not agent.task.done():
            TOTALS["deaths while it waits"] += 1
            agent.task.cancel()
            await asyncio.gather(agent.task, return_exceptions=True)

    def _new(self, agent: Agent) -> ShareExchange:
        async def samples() -> list[GuestSample]:
            return [self._sample(spec.guest) for spec, _ in agent.specs]

        async def set_share(guest: str, cores: float) -> None:
            agent.set_cores[guest] = cores

        now_s = asyncio.get_running_loop().time
        return ShareExchange("lab", agent.name, self._cores, agent.folder, now_s, samples, set_share)

    def _serve(self, agent: Agent) -> None:
        assert agent.exchange is not None
        agent.task = asyncio.get_running_loop().create_task(agent.exchange.run(_Bus(self, agent)))

    def _sample(self, guest: str) -> GuestSample:
        cpu_s = self.use_cores.get(guest, 0.0) * asyncio.get_running_loop().time()
        return GuestSample(
            guest=guest, state="running", cap_cores=1.0, cpu_s=cpu_s, rss_mib=1.0, read_mib=0.0, written_mib=0.0,
            units_done=1, units_mono_ns=1, waits_s=self.waits_s.get(guest, ()),
        )  # fmt: skip

    async def end(self) -> None:
        """End all agents."""
        tasks = [agent.task for agent in self.agents.values() if agent.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- faults

    def _happens(self, part: float) -> bool:
        return self._random.random() < part

    def die(self, what: str) -> None:
        """Kill the calling agent with some probability."""
        if self._happens(self.faults.deaths):
            TOTALS[f"deaths {what}"] += 1
            raise asyncio.CancelledError

    def write(self, path: Path, content: bytes, **options: Any) -> None:
        """Write a file as agents do, for an agent that may die before and after the write."""
        self.die("before it is kept")
        write_whole(path, content, **options)
        if len(self._begun) == len(NODES):
            self.check_kept()
        self.die("after it is kept")

    def subscribe(self, agent: Agent, topic: str, handler: Handler) -> None:
        self._handlers[topic] = agent, handler

    def send(self, topic: str, payload: bytes) -> None:
        """Deliver a message now or later, or lose it."""
        TOTALS["messages"] += 1
        self.check_set()
        if self._happens(self.faults.lost):
            TOTALS["messages lost"] += 1
            return
        for _ in range(2 if self._happens(self.faults.doubled) else 1):
            delay_s = 0.0
            if self._happens(self.faults.delayed):
                TOTALS["messages delayed"] += 1
                delay_s = self._random.uniform(0.0, self.faults.delay_s)
            asyncio.get_running_loop().call_later(delay_s, self._deliver, topic, payload)
        self.die("between two messages")

    def _deliver(self, topic: str, payload: bytes) -> None:
        agent, handler = self._handlers.get(topic, (None, None))
        if agent is None or handler is None or agent.task is None or agent.task.done():
            TOTALS["messages to a dead agent"] += 1
            return
        TOTALS["messages delivered"] += 1
        with contextlib.suppress(StopIteration):
            handler(topic, payload).send(None)  # type: ignore[attr-defined]  # it only fills a queue

    # --- invariants

    def kept(self, node: str, job: Job) -> dict[str, AccountState]:
        """Return the accounts of a job on a node's disk."""
        path = self.agents[node].folder / FOLDER / f"{min(job.order.nodes)}.json"
        return msgspec.json.decode(path.read_bytes(), type=Kept).accounts if path.exists() else {}

    def accounts(self, job: Job) -> dict[str, AccountState]:
        """Return all kept accounts of a job."""
        return {owner: state for node in NODES for owner, state in self.kept(node, job).items()}

    def check_kept(self) -> None:
        """No share was created or lost, and the shares of no node exceed its cores."""
        for job in self.jobs:
            accounts = self.accounts(job)
            assert accounts.keys() >= job.order.nodes.keys(), "an account is missing"
            found = sum(state.shares for state in accounts.values()) + in_transfers(accounts)
            assert found == job.total, f"shares are not conserved: {found} of {job.total}"
        for node in NODES:
            guests = [self.kept(node, job).get(spec.guest) for job in self.jobs for spec, _ in self.agents[node].specs]
            assert sum(state.shares for state in guests if state is not None) <= shares_of(self._cores)

    def check_agents(self) -> None:
        """No agent has failed without a fault."""
        for agent in self.agents.values():
            if agent.task is not None and agent.task.done() and not agent.task.cancelled():
                agent.task.result()
        self.check_kept()
        self.check_set()

    def check_set(self) -> None:
        """The shares in force of a job's guests never exceed the shares of the job."""
        for job in self.jobs:
            cores = [self.agents[node].set_cores.get(guest, 0.0) for guest, node in job.order.nodes.items()]
            assert shares_of(sum(cores)) <= job.total + len(cores), "more shares are in force than the job has"

    def transfers(self) -> list[tuple[str, str]]:
        """Return the transfers without an answer."""
        return [
            (owner, target)
            for job in self.jobs
            for owner, state in self.accounts(job).items()
            for target, sent in state.sent.items()
            if sent.shares
        ]


class _Bus:
    """The bus of one agent."""

    def __init__(self, world: World, agent: Agent) -> None:
        self._world, self._agent = world, agent

    async def subscribe(self, pattern: str, handler: Handler, qos: int = 1) -> None:
        del qos
        self._world.subscribe(self._agent, pattern, handler)

    async def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        del qos, retain
        self._world.send(topic, payload)


def in_transfers(accounts: dict[str, AccountState]) -> int:
    """Return the shares in transfers that their receivers have not taken."""
    found = 0
    for owner, state in accounts.items():
        for target, sent in state.sent.items():
            last = accounts[target].received.get(owner)
            taken = last is not None and last.number == sent.number and last.taken
            found += 0 if taken else sent.shares
    return found


@contextlib.contextmanager
def writes_of(world: World) -> Iterator[None]:
    """Let agents write files through the world."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share_exchange, "write_whole", world.write)
        yield
