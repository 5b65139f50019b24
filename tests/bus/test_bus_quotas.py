"""Resources of clients in every kind of broker: sessions end with their clients, queues and messages are bounded."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bus.bus_worlds import KINDS, MQTT_KINDS, Mailbox, run, world
from support.live import HANG_S

from testbed.bus import quotas, topics
from testbed.bus.client import MqttBus
from testbed.bus.comebacks import FREE, LAST_DOUBTFUL_S, Comebacks
from testbed.bus.inbox import EACH_BYTES, MOST_WAITING_BYTES, Inbox
from testbed.bus.mosquitto import find_mosquitto, mosquitto_broker
from testbed.bus.protocol import BusError

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed")
EVENTS = topics.node_topic("lab", "n1", "event")
LEASE = topics.lease_topic("lab")

_CHILD = """
import asyncio, sys
from testbed.bus.address import BrokerAddress
from testbed.bus.client import MqttBus

async def main():
    async with MqttBus(BrokerAddress.parse(sys.argv[1]), "killed", session_s=1.0, end_session=True) as bus:
        async def hear(topic, payload): pass
        await bus.subscribe("a/#", hear)
        print("there", flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


class Load:
    """The newest value of each topic under $SYS/broker."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._news = asyncio.Event()

    async def __call__(self, topic: str, payload: bytes) -> None:
        try:
            self.values[topic.removeprefix("$SYS/broker/")] = float(payload)
        except ValueError:
            return
        self._news.set()

    async def until(self, name: str, value: float) -> None:
        async with asyncio.timeout(HANG_S):
            while self.values.get(name) != value:
                self._news.clear()
                await self._news.wait()


async def hear(topic: str, payload: bytes) -> None:
    del topic, payload


@needs_mosquitto
def test_neither_a_closed_nor_a_killed_controller_leaves_a_session(tmp_path: Path) -> None:
    async def work() -> None:
        program = find_mosquitto()
        assert program is not None
        async with mosquitto_broker(program, tmp_path, sys_interval_s=1) as address:
            load = Load()
            async with MqttBus(address, "watch", keep_session=False) as watch:
                await watch.subscribe("$SYS/broker/#", load)
                await load.until("clients/total", 1)
                bus = MqttBus(address, "controller", end_session=True)
                async with bus:
                    await bus.subscribe("a/#", hear)
                    await load.until("clients/total", 2)
                await load.until("clients/total", 1)
                await load.until("clients/disconnected", 0)
                child = await asyncio.create_subprocess_exec(sys.executable, "-c", _CHILD, address.url, stdout=PIPE)
                try:
                    assert child.stdout is not None
                    await child.stdout.readline()
                    await load.until("clients/total", 2)
                finally:
                    child.kill()
                    await child.wait()
                await load.until("clients/expired", 1)
                await load.until("clients/total", 1)

    run(work())


@needs_mosquitto
def test_a_session_that_is_kept_outlives_a_cut_and_loses_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            world("mosquitto", tmp_path) as place,
            place.bus("sender") as sender,
            place.bus("controller", session_s=HANG_S, end_session=True) as bus,
        ):
            box = Mailbox()
            await bus.subscribe("a", box)
            await place.cut("controller")
            await sender.publish("a", b"meanwhile")
            await place.mend("controller")
            assert await box.count(1) == [b"meanwhile"]

    run(work())


@pytest.mark.parametrize("kind", MQTT_KINDS)
def test_only_leases_and_presence_greet_a_newcomer(kind: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with world(kind, tmp_path) as place, place.bus("n1") as node, place.bus("newcomer") as newcomer:
            fleeting = [
                *(topics.node_topic("lab", "n1", each) for each in ("event", "telemetry", "command")),
                topics.reply_topic("lab", "junk", "n1"),
            ]
            for topic in (*fleeting, topics.node_topic("lab", "n1", "status"), LEASE):
                await node.publish(topic, topic.encode(), retain=True)
            box = Mailbox()
            await newcomer.subscribe("testbed/v1/lab/#", box)
            await node.publish(topics.node_topic("lab", "n1", "event"), b"end")
            got = await box.until(lambda payloads: b"end" in payloads)
            assert sorted(got) == sorted([topics.node_topic("lab", "n1", "status").encode(), LEASE.encode(), b"end"])

    run(work())


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_beyond_the_limit_is_refused_before_it_is_sent(kind: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with world(kind, tmp_path) as place, place.bus("a") as bus:
            box = Mailbox()
            await bus.subscribe("t", box)
            for qos in (0, 1):
                with pytest.raises(BusError, match=rf"t: a message of {quotas.MOST_MESSAGE_BYTES + 1} bytes: expected"):
                    await bus.publish("t", bytes(quotas.MOST_MESSAGE_BYTES + 1), qos)
            await bus.publish("t", bytes(quotas.MOST_MESSAGE_BYTES))
            (got,) = await box.count(1)
            assert len(got) == quotas.MOST_MESSAGE_BYTES

    run(work())


@pytest.mark.parametrize("kind", MQTT_KINDS)
def test_what_waits_for_a_client_that_is_away_is_bounded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MOST_QUEUED_BYTES", 1 << 20)
    monkeypatch.setattr("testbed.bus.embedded.MOST_QUEUED_BYTES", 1 << 20)

    async def work() -> None:
        async with (
            world(kind, tmp_path) as place,
            place.bus("node") as node,
            place.bus("controller", end_session=True) as bus,
        ):
            box = Mailbox()
            await bus.subscribe(EVENTS, box)
            await place.cut("controller")
            for number in range(40):
                await node.publish(EVENTS, bytes([number]) * 100_000)
            await place.mend("controller")
            got = await box.count(5)
            while b"end" not in got:  # a message that arrives before the queue is emptied is not kept either
                await node.publish(EVENTS, b"end")
                got = await box.count(len(got) + 1)
        kept = [payload[0] for payload in got if payload != b"end"]
        assert kept == list(range(len(kept))), "the first are kept, in order"
        assert 5 <= len(kept) <= 12, "about a MiB of them"

    run(work())


def test_whoever_sends_too_fast_loses_its_own_messages_only() -> None:
    async def work() -> None:
        inbox, box = Inbox(), Mailbox()
        inbox.add("+", box, 1)
        inbox.begin("+")
        for number in range(40):
            inbox.put("flood", bytes(1 << 20))
            inbox.put("honest", bytes([number]))
        handling = asyncio.create_task(inbox.run())
        await box.count(40 + 15)
        inbox.put("flood", b"again")
        await box.until(lambda payloads: b"again" in payloads)
        handling.cancel()
        await asyncio.gather(handling, return_exceptions=True)
        assert [payload for topic, payload in box.got if topic == "honest"] == [bytes([n]) for n in range(40)]
        assert inbox.dropped == {"flood": 40 - 15}, "fifteen fit, with their topics and the overhead"

    run(work())


@pytest.mark.parametrize("topic", ["t", "t" * 60_000])
@pytest.mark.parametrize("payload", [b"", b"x", b"x" * 100_000])
def test_tiny_messages_count_with_what_keeping_them_takes(topic: str, payload: bytes) -> None:
    async def work() -> None:
        inbox = Inbox()
        most = MOST_WAITING_BYTES // (len(topic) + len(payload) + EACH_BYTES)
        tracemalloc.start()
        try:
            for number in range(most + 1000):
                inbox.put(topic.encode().decode(), payload + b"%d" % number)  # as if each came from a packet
            taken_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert 1000 <= inbox.dropped[topic] < 1000 + most
        assert taken_bytes <= 1.2 * MOST_WAITING_BYTES

    run(work())


async def drained(inbox: Inbox) -> None:
    while inbox.waiting:  # noqa: ASYNC110  # an inbox sets no event
        await asyncio.sleep(0)


def test_messages_that_nobody_claims_are_bounded_the_newest_are_kept_and_the_rest_is_counted() -> None:
    async def work() -> None:
        inbox, box = Inbox(), Mailbox()
        handling = asyncio.create_task(inbox.run())
        for number in range(100):
            inbox.put("reply", bytes([number]) + bytes(1 << 20))
            await drained(inbox)
        assert inbox.unclaimed_bytes <= MOST_WAITING_BYTES
        for number in range(3000):
            inbox.put("tiny", b"%d" % number)
            await asyncio.sleep(0)
        await drained(inbox)
        assert inbox.unclaimed_bytes <= MOST_WAITING_BYTES
        inbox.add("tiny", box, 1)
        inbox.begin("tiny")
        assert await box.count(1000) == [b"%d" % number for number in range(2000, 3000)]
        assert inbox.unclaimed_bytes == 0
        assert inbox.dropped == {"reply": 100, "tiny": 2000}
        handling.cancel()
        await asyncio.gather(handling, return_exceptions=True)

    run(work())


def test_what_is_claimed_counts_again_until_it_was_handled() -> None:
    async def work() -> None:
        inbox, box = Inbox(), Mailbox()
        handling = asyncio.create_task(inbox.run())
        for _ in range(10):
            inbox.put("late", bytes(1 << 20))
        await drained(inbox)
        inbox.add("late", box, 1)
        inbox.begin("late")
        for _ in range(10):
            inbox.put("late", bytes(1 << 20))
        assert inbox.dropped["late"] == 5, "ten claimed ones and five more are 16 MiB"
        await box.count(15)
        inbox.put("late", b"again")
        await box.until(lambda payloads: b"again" in payloads)
        assert inbox.waiting == 0
        handling.cancel()
        await asyncio.gather(handling, return_exceptions=True)

    run(work())


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_two_clients_of_one_name_try_less_and_less_often() -> None:
    clock = Clock()
    both = [Comebacks(clock), Comebacks(clock)]
    told: list[str] = []
    tries = 0
    while clock.now_s < 3600.0:  # the two clients disconnect each other in turn
        for one in both:
            one.made()
            why = one.lost("n2")
            told += [why] if why else []
            clock.now_s += one.wait_s()
            tries += 1
    assert tries < 4 * (FREE + 12) + 2 * 3600 / (0.4 * LAST_DOUBTFUL_S)
    assert told
    assert all("does another client called 'n2' run" in line for line in told)


def test_a_broker_that_says_why_is_believed_at_once() -> None:
    clock = Clock()
    comebacks = Comebacks(clock)
    comebacks.made()
    assert "gave its session to another client" in comebacks.lost("n2", taken_over=True)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=60))
def test_a_connection_that_lasted_is_made_again_at_once(lasted_s: list[float]) -> None:
    clock = Clock()
    comebacks = Comebacks(clock)
    for each_s in lasted_s:
        comebacks.made()
        clock.now_s += each_s
        comebacks.lost("n1")
        wait_s = comebacks.wait_s()
        assert 0 < wait_s <= 1.5 * LAST_DOUBTFUL_S
        assert wait_s < 0.1 or each_s < 3 * LAST_DOUBTFUL_S  # speed: by the test's own clock
        clock.now_s += wait_s


def test_a_handler_that_always_fails_is_told_with_few_tracebacks(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        inbox = Inbox()
        handled = asyncio.Event()
        left = 500

        async def fails(_topic: str, _payload: bytes) -> None:
            nonlocal left
            left -= 1
            if not left:
                handled.set()
            raise RuntimeError("broken")

        inbox.add("a/+", fails, 0)
        inbox.begin("a/+")
        running = asyncio.create_task(inbox.run())
        for number in range(left):
            inbox.put(f"a/{number}", b"x")
        async with asyncio.timeout(HANG_S):
            await handled.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
    (record,) = [record for record in caplog.records if record.name == "testbed.bus.inbox"]
    assert record.getMessage() == "handler of a/+ failed on a message of a/0 (1 bytes)"
    assert record.exc_info is not None
