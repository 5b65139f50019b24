"""The bus is down while an agent samples: every sample arrives once, unaltered, in order, with its own time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest
from support.deadlines import PATIENT_DEADLINES
from support.live import HANG_S, until

from node_agent.agent import Agent, AgentConfig
from node_agent.backlog import Backlog
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverEvent
from node_agent.telemetry import NodeSampler
from node_agent.telemetry_sender import Listener, TelemetrySender
from testbed.bus import topics
from testbed.bus.client import MqttBus
from testbed.bus.guest_details import GuestReport
from testbed.bus.memory import MemoryHub
from testbed.bus.messages import GuestSpec, ProgramSpec, decode
from testbed.bus.mosquitto import find_mosquitto, mosquitto_broker
from testbed.bus.telemetry import Telemetry
from testbed.lab.fleet import Node
from testbed.lab.leased import lease_lab

TOPIC = topics.node_topic("t", "n0", "telemetry")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeouts, so that only disturbances of a test delay samples, and not a slow machine."""
    monkeypatch.setattr("node_agent.telemetry_sender.ACK_S", HANG_S)
    monkeypatch.setattr("node_agent.telemetry_sender._LISTENS_WITHIN_S", HANG_S)


def samples(count: int) -> list[Telemetry]:
    sampler = NodeSampler("n0", "boot", "clock", time.monotonic)
    return [sampler.sample(()) for _ in range(count)]


class Heard:
    """A subscriber that records messages."""

    def __init__(self) -> None:
        self.records: list[Telemetry] = []

    async def __call__(self, topic: str, payload: bytes) -> None:
        self.records.append(decode(Telemetry, payload, topic))


@asynccontextmanager
async def posting(hub: MemoryHub, folder: Path) -> AsyncIterator[tuple[TelemetrySender, Listener, Backlog, Heard]]:
    backlog = Backlog(folder)
    backlog.open()
    heard = Heard()
    async with hub.client("controller") as controller, hub.client("agent") as bus:
        await controller.subscribe(TOPIC, heard)
        listener = Listener(bus)
        post = TelemetrySender(bus, TOPIC, backlog, listener)
        running = asyncio.create_task(post.run())
        try:
            yield post, listener, backlog, heard
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            backlog.close()


def test_what_was_taken_off_the_bus_follows_in_order_before_what_is_new(tmp_path: Path) -> None:
    async def main() -> None:
        hub, made = MemoryHub(), samples(60)
        async with posting(hub, tmp_path) as (post, _, backlog, heard):
            for sample in made[:10]:
                post.put(sample)
            await until(lambda: len(heard.records) == 10, "10 samples")
            hub.drop("agent")
            for sample in made[10:50]:
                post.put(sample)
            await until(lambda: bool(backlog), "samples set aside")
            hub.resume("agent")
            for sample in made[50:]:  # they stay behind the queued samples
                post.put(sample)
            await until(lambda: len(heard.records) == 60, "60 samples")
            assert not backlog
            assert [msgspec.structs.replace(record, late=False) for record in heard.records] == made
            assert [record.late for record in heard.records] == [False] * 10 + [True] * 50

    asyncio.run(main())


def test_nothing_is_sent_to_a_broker_that_may_have_forgotten_the_controller(tmp_path: Path) -> None:
    async def main() -> None:
        hub, made = MemoryHub(), samples(3)
        async with posting(hub, tmp_path) as (post, listener, backlog, heard):
            listener.heard()
            hub.drop("agent")
            post.put(made[0])
            await until(lambda: bool(backlog), "samples set aside")
            hub.resume("agent")
            post.put(made[1])
            for _ in range(50):
                await asyncio.sleep(0)
            assert heard.records == []
            listener.heard()
            await until(lambda: len(heard.records) == 2, "2 samples")
            post.put(made[2])
            await until(lambda: len(heard.records) == 3, "3 samples")
            assert [record.late for record in heard.records] == [True, True, False]

    asyncio.run(main())


def test_what_an_agent_could_not_send_before_its_end_the_next_one_sends(tmp_path: Path) -> None:
    async def main() -> None:
        hub, made = MemoryHub(), samples(4)
        async with posting(hub, tmp_path) as (post, _, backlog, _):
            hub.drop("agent")
            for sample in made[:3]:
                post.put(sample)
            await until(lambda: bool(backlog), "samples set aside")
        async with posting(MemoryHub(), tmp_path) as (post, _, _, heard):
            post.put(made[3])
            await until(lambda: len(heard.records) == 4, "4 samples")
            assert [msgspec.structs.replace(record, late=False) for record in heard.records] == made

    asyncio.run(main())


class Mosquitto:
    """A broker at one port that can be killed and started again, with or without its saved sessions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._stack = contextlib.AsyncExitStack()

    async def start(self):
        before = set(psutil.Process().children())
        address = await self._stack.enter_async_context(mosquitto_broker(find_mosquitto(), self._folder, self._port))
        (self._child,) = set(psutil.Process().children()) - before
        return address

    async def kill(self, *, forget: bool) -> None:
        os.kill(self._child.pid, signal.SIGKILL)
        await self._stack.aclose()
        if forget:
            (self._folder / "mosquitto.db").unlink(missing_ok=True)

    async def stop(self) -> None:
        await self._stack.aclose()


SPEC = GuestSpec(
    guest="g", run="t", job=1, task=0, cpu_cores=1.0, memory_mib=10,
    program=ProgramSpec(name="eatcpu", work_units=10**9, units_per_iteration=100, seed=1),
)  # fmt: skip


async def waiting(folder: Path) -> list[Telemetry]:
    """Return the samples that an agent has left for the next agent."""
    backlog = Backlog(folder)
    backlog.open()
    return [decode(Telemetry, line, TOPIC) for line in await backlog.first(sys.maxsize)]


@dataclass(frozen=True)
class Got:
    """A sample that the controller has received: its times of sampling and of receipt, by one common clock."""

    record: Telemetry
    taken_ns: int
    heard_ns: int


def unheard(got: list[Got], left: list[Telemetry], taken: list[Telemetry]) -> list[int]:
    """Return the numbers of the samples that neither the controller nor the next agent has."""
    known = {record.mono_ns for record in (*(each.record for each in got), *left)}
    return [number for number, record in enumerate(taken) if record.mono_ns not in known]


def check(got: list[Got], left: list[Telemetry], taken: list[Telemetry], killed: int, back_ns: int) -> None:
    """Assert that the only lost samples are those that the killed broker had acknowledged, but not yet delivered.

    `killed` is the number of samples that had been taken by then. A busy controller is some samples behind.
    """
    lost = unheard(got, left, taken)
    assert not lost or lost == list(range(lost[0], lost[-1] + 1)), "the samples in a broker are consecutive"
    assert all(number < killed for number in lost)
    arrived = [record for number, record in enumerate(taken) if number not in lost]
    records = [msgspec.structs.replace(each.record, late=False) for each in got]
    assert records == arrived[: len(records)]  # none is missing, none came twice, none was altered
    # samples in transit at the end of the agent are kept for the next one, although some of them may have arrived
    assert [msgspec.structs.replace(record, late=False) for record in left] == taken[len(taken) - len(left) :]
    late = [each.record for each in got if each.record.late]
    assert len(late) > 100
    assert late[0].mono_ns < back_ns < records[-1].mono_ns
    # agent and controller read the same clock: the error of a sample's time is at most the fastest delivery so far
    fastest_ns = None
    for each in got:
        if not each.record.late:
            delivery_ns = each.heard_ns - each.record.mono_ns
            fastest_ns = delivery_ns if fastest_ns is None else min(fastest_ns, delivery_ns)
        assert fastest_ns is not None, "the first sample was late"
        assert 0 <= each.taken_ns - each.record.mono_ns <= fastest_ns, each.record.late


@pytest.mark.slow
@pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed")
@pytest.mark.parametrize("forget", [False, True], ids=["sessions kept", "sessions lost"])
def test_a_broker_that_is_killed_costs_no_sample_but_those_that_it_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: bool
) -> None:
    taken: list[Telemetry] = []
    sample = NodeSampler.sample

    def noted(self, *arguments):
        taken.append(sample(self, *arguments))
        return taken[-1]

    monkeypatch.setattr(NodeSampler, "sample", noted)

    async def main() -> None:
        folder = tmp_path / "broker"
        mosquitto = Mosquitto(folder)
        address = await mosquitto.start()
        driver = NullDriver()
        config = AgentConfig("t", "n0", 1.0, 100, tmp_path / "n0", tmp_path / "images", telemetry_s=0.02)
        agent = Agent(config, driver, partial(MqttBus, address, "agent-n0"))
        got: list[Got] = []
        events: list[GuestReport] = []
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(mosquitto.stop)
            controller = await stack.enter_async_context(MqttBus(address, "controller"))
            leasing = lease_lab(controller, "t", ["n0"], "controller", deadlines=PATIENT_DEADLINES)
            leased = await stack.enter_async_context(leasing)
            fleet = leased.fleet

            def take(_node: Node, record: Telemetry, taken_ns: int) -> None:
                got.append(Got(record, taken_ns, time.monotonic_ns()))

            fleet.on_telemetry = take
            fleet.on_guest_event = lambda _node, event: events.append(event)
            running = asyncio.create_task(agent.run())
            await leased.ready()
            await driver.start(SPEC, 0.5)
            await until(lambda: len(got) > 50 and events, "samples and an event")
            if not forget:
                await until((folder / "mosquitto.db").exists, "saved sessions")
            killed = len(taken)
            await mosquitto.kill(forget=forget)
            await until(lambda: len(taken) > killed + 50, "samples without a broker")
            for number in range(3):
                driver._tell(DriverEvent("g", "progress", time.monotonic_ns(), {"units": number}))
            await until(lambda: len(taken) > killed + 150, "more samples without a broker")
            back_ns = time.monotonic_ns()
            await mosquitto.start()
            # events may arrive before the first of the samples that were set aside
            await until(
                lambda: len(events) == 4 and got[-1].record.mono_ns > back_ns and not got[-1].record.late,
                "all events, and a later sample that is not late",
            )
            agent.stop()
            await running
            left = await waiting(tmp_path / "n0")
            await until(lambda: all(number < killed for number in unheard(got, left, taken)), "all later samples")
        check(got, left, taken, killed, back_ns)
        assert [event.told["units"] for event in events] == [0, 0, 1, 2]

    asyncio.run(main())
