"""The exchange of caps between agents, under decisions that change the caps of jobs: random, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from node_agent.drivers.protocol import DriverError
from node_agent.share_exchange import ShareExchange
from testbed.bus.messages import Exchange, GuestSpec, ProgramSpec
from testbed.bus.protocol import Handler
from testbed.bus.telemetry import GuestSample
from testbed.lab.virtual_time import run_in_virtual_time

NODES = ("n0", "n1", "n2")
WORK = {"a": (0.6, 0.3, 0.2), "b": (0.1, 0.6, 0.2)}  # by job: the work of its tasks, one on each node
ROUNDING = 1e-5


class World:
    """Three agents of one core, whose two jobs advance with their slowest tasks; messages are lost and doubled."""

    def __init__(self, folder: Path, seed: int, *, checks: bool = True) -> None:
        self.checks = checks
        self.random = random.Random(seed)  # noqa: S311  # of a test
        self.folder = folder
        self.handlers: dict[str, Handler] = {}
        self.caps: dict[str, float] = {}
        self.given = dict.fromkeys(WORK, 0.0)  # the current upper limit of each job
        self.cpu_s: dict[str, float] = {}
        self.at_s = 0.0
        self.lives = 0
        self.busy: set[str] = set()
        self.agents = {node: self.agent(node) for node in NODES}

    def agent(self, node: str) -> ShareExchange:
        folder = self.folder / node
        folder.mkdir(exist_ok=True)

        async def samples() -> Sequence[GuestSample]:
            self.work()
            return [
                GuestSample(
                    guest=guest, state="running", cap_cores=cap, cpu_s=self.cpu_s[guest], rss_mib=1.0, read_mib=0.0,
                    written_mib=0.0, units_done=1, units_mono_ns=1,
                )
                for guest, cap in self.caps.items() if NODES[int(guest[1])] == node
            ]  # fmt: skip

        async def set_share(guest: str, cores: float) -> None:
            raise AssertionError(f"{guest} has no share, {cores}")

        return ShareExchange("lab", node, 1.0, folder, asyncio.get_running_loop().time, samples, set_share, self.move)

    async def move(self, guest: str, cores: float) -> None:
        if guest in self.busy:
            raise DriverError("busy")
        self.set(guest, cores)

    def set(self, guest: str, cores: float) -> None:
        self.work()
        self.caps[guest] = cores
        self.cpu_s.setdefault(guest, 0.0)
        self.check()

    def check(self) -> None:
        if not self.checks:
            return
        for name, given in self.given.items():
            assert sum(cap for guest, cap in self.caps.items() if guest[0] == name) <= given + ROUNDING
        for number in range(3):
            assert sum(cap for guest, cap in self.caps.items() if guest[1] == str(number)) <= 1 + ROUNDING

    def rate(self, name: str) -> float:
        caps = [self.caps.get(f"{name}{task}", 0.0) for task in range(3)]
        return min(cap / work for cap, work in zip(caps, WORK[name], strict=True))

    def work(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for guest in self.caps:
            self.cpu_s[guest] += self.rate(guest[0]) * WORK[guest[0]][int(guest[1])] * (now_s - self.at_s)
        self.at_s = now_s

    async def subscribe(self, pattern: str, handler: Handler, qos: int = 1) -> None:
        del qos
        self.handlers[pattern] = handler

    async def publish(self, topic: str, payload: bytes, qos: int = 1, *, retain: bool = False) -> None:
        del qos, retain
        for _ in range(self.random.choice((0, 1, 1, 1, 2))):
            asyncio.get_running_loop().call_later(self.random.uniform(0, 1), self.deliver, topic, payload)

    def deliver(self, topic: str, payload: bytes) -> None:
        asyncio.ensure_future(self.handlers[topic](topic, payload))  # noqa: RUF006  # the handler only fills a queue

    # --- the controller's part

    def order(self, name: str) -> Exchange:
        self.lives += 1
        return Exchange(
            mode="bank", secret=f"{self.lives:064x}", period_s=5, grant_s=5, bank="n0", capped=True,
            nodes={f"{name}{task}": node for task, node in enumerate(NODES)},
        )  # fmt: skip

    def start(self, name: str, cap: float) -> None:
        self.given[name] = 3 * cap
        order = self.order(name)
        for task, node in enumerate(NODES):
            spec = GuestSpec(
                guest=f"{name}{task}", run="r", job=1, task=task, cpu_cores=1.0, memory_mib=64,
                program=ProgramSpec("patterns", 10, 1, 1),
            )  # fmt: skip
            self.agents[node].begin(spec, order, cap)
            self.set(spec.guest, cap)

    async def decide(self, caps: dict[str, float]) -> None:
        """Lower caps before raising others, as `Operations.set_cap` does: every cut precedes every new order."""
        for name, cap in sorted(caps.items(), key=lambda each: 3 * each[1] - self.given[each[0]]):
            before = self.given[name]
            self.given[name] = max(before, 3 * cap)
            await self.set_all(name, cap, None, lower=True)
            self.given[name] = 3 * cap
            await self.set_all(name, cap, self.order(name), lower=False)

    async def set_all(self, name: str, cap: float, order: Exchange | None, *, lower: bool) -> None:
        tasks = list(range(3))
        self.random.shuffle(tasks)
        for task in tasks:
            found = await self.agents[NODES[task]].rebase({f"{name}{task}": cap}, order, lower=lower)
            for guest, cores in found.items():
                self.set(guest, cores)
            await asyncio.sleep(self.random.choice((0, 0.1, 3)))


def run(tmp_path: Path, seed: int, *, kill: bool) -> dict[str, list[float]]:
    async def scenario() -> dict[str, list[float]]:
        world = World(tmp_path, seed)
        rates: dict[str, list[float]] = {name: [] for name in WORK}
        world.start("a", 0.3)
        world.start("b", 0.3)
        serving = {node: asyncio.create_task(agent.run(world)) for node, agent in world.agents.items()}
        try:
            for _ in range(8):
                for node in NODES:
                    if kill and world.random.random() < 0.5:
                        serving[node].cancel()
                        await asyncio.gather(serving[node], return_exceptions=True)
                        agent = world.agents[node] = world.agent(node)
                        here = [guest for guest in world.caps if NODES[int(guest[1])] == node]
                        specs = [
                            GuestSpec(
                                guest=guest, run="r", job=1, task=int(guest[1]), cpu_cores=1.0, memory_mib=64,
                                program=ProgramSpec("patterns", 10, 1, 1),
                            )
                            for guest in here
                        ]  # fmt: skip
                        agent.take_over(specs, {guest: world.caps[guest] for guest in here})
                        serving[node] = asyncio.create_task(agent.run(world))
                await asyncio.sleep(100)
                world.check()
                assert not any(task.done() for task in serving.values())
                for name, found in rates.items():
                    found.append(world.rate(name) / (world.given[name] / 3 / max(WORK[name])))
                first = world.random.uniform(0.1, 0.8)
                await world.decide({"a": first, "b": world.random.uniform(0.1, 0.9 - first)})
        finally:
            for task in serving.values():
                task.cancel()
            await asyncio.gather(*serving.values(), return_exceptions=True)
        return rates

    return run_in_virtual_time(scenario())


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_no_job_has_more_than_it_was_given_and_no_node_more_than_it_has(tmp_path: Path, seed: int, kill: bool) -> None:
    rates = run(tmp_path, seed, kill=kill)
    for found in rates.values():  # relative to equal caps
        assert min(found) > 0.85
        assert max(found) > 1.2


def test_a_busy_guest_gets_its_cap_in_a_later_period(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, 0, checks=False)  # a busy guest keeps more than its cap
        world.start("a", 0.3)
        serving = [asyncio.create_task(agent.run(world)) for agent in world.agents.values()]
        world.busy.add("a1")
        await asyncio.sleep(60)
        assert world.caps["a1"] == 0.3
        world.busy.clear()
        await asyncio.sleep(60)
        assert world.caps["a1"] < 0.29
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    run_in_virtual_time(scenario())


def test_an_exchange_of_weights_is_not_for_capped_guests(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, 0)
        spec = GuestSpec(
            guest="a0", run="r", job=1, task=0, cpu_cores=1.0, memory_mib=64, program=ProgramSpec("patterns", 10, 1, 1)
        )
        order = Exchange(mode="bank", secret="5" * 64, period_s=5, grant_s=5, nodes={"a0": "n0"}, bank="n0")
        with pytest.raises(DriverError, match="guest a0: expected an exchange of caps"):
            world.agents["n0"].begin(spec, order, 0.3)

    run_in_virtual_time(scenario())
