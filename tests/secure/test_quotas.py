"""A node that floods the broker: its resources there are bounded, and others are served. Real Mosquitto, real TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import aiomqtt
import pytest
from support.live import HANG_S, wait_until
from support.secure.doors import LAB, Doors, open_doors

from testbed.bus import quotas, topics
from testbed.bus.client import MqttBus
from testbed.bus.tls import client_context
from testbed.lab.secure.broker import SAVE_EVERY_S

_MIB = 1 << 20
_PATIENCE_S = 5.0  # timeout of an intruder, whose messages get no acknowledgement once the broker has disconnected it


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    with open_doors(tmp_path) as opened:
        yield opened


def intruder(doors: Doors, protocol: aiomqtt.ProtocolVersion = aiomqtt.ProtocolVersion.V311) -> aiomqtt.Client:
    """Return a client with the certificate of n1, without our client's own limits."""
    address = doors.agent("n1")
    return aiomqtt.Client(
        address.host, address.port, identifier=f"{topics.CLIENT_PREFIX}n1", protocol=protocol, timeout=HANG_S,
        tls_context=client_context(address.tls_dir),
    )  # fmt: skip


async def send(client: aiomqtt.Client, topic: str, payload: bytes, qos: int) -> None:
    """Publish, with a timeout, because there is no acknowledgement once the broker has disconnected the client."""
    await client.publish(topic, payload, qos, timeout=_PATIENCE_S)  # speed: a timeout here does not decide a test


class Load:
    """The broker's statistics for a controller."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._news = asyncio.Event()

    async def __call__(self, topic: str, payload: bytes) -> None:
        name, word = topic.removeprefix("$SYS/broker/"), payload.partition(b" ")[0]
        if word.replace(b".", b"").isdigit():
            self.values[name] = float(word)
        self._news.set()

    async def settled(self) -> None:
        """Wait until the broker has published all its statistics, and once more."""
        begin_s = self.values.get("uptime", 0.0)
        while not {"retained messages/count", "store/messages/bytes"} <= self.values.keys() or (
            self.values.get("uptime", 0.0) < begin_s + 2
        ):
            self._news.clear()
            await self._news.wait()


def peak_mib(pid: int) -> float:
    fields = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in fields if line.startswith("VmHWM")) / 1024


async def ping_pong(doors: Doors) -> None:
    """Another node and a controller communicate: commands, events and replies arrive."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(_topic: str, payload: bytes) -> None:
        heard.put_nowait(payload)

    async with (
        MqttBus(doors.controller(), "honest", keep_session=False) as controller,
        MqttBus(doors.agent("n2"), "n2", keep_session=False) as agent,
    ):
        await agent.subscribe(topics.node_topic(LAB, "n2", "command"), hear)
        await controller.subscribe(topics.node_topic(LAB, "n2", "event"), hear)
        await controller.subscribe(topics.reply_topic(LAB, controller.party, topics.ANY), hear)
        for sender, topic in (
            (controller, topics.node_topic(LAB, "n2", "command")),
            (agent, topics.node_topic(LAB, "n2", "event")),
            (agent, topics.reply_topic(LAB, "alice", "n2")),
        ):
            await sender.publish(topic, topic.encode())
            assert await asyncio.wait_for(heard.get(), HANG_S) == topic.encode()


def play(work: object) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG_S):
            await work  # type: ignore[misc]

    asyncio.run(main())


def test_retained_messages_stay_on_the_few_topics_that_a_node_has(doors: Doors) -> None:
    async def work() -> None:
        load = Load()
        async with MqttBus(doors.controller(), "watch", keep_session=False) as watch, intruder(doors) as n1:
            await watch.subscribe("$SYS/broker/#", load)
            await load.settled()
            before = load.values["retained messages/count"]
            for number in range(200):
                await n1.publish(topics.reply_topic(LAB, f"junk-{number}", "n1"), bytes(200_000), 1, retain=True)
            own = [topics.node_topic(LAB, "n1", kind) for kind in ("status", "telemetry", "event")]
            for topic in [*own, topics.reply_topic(LAB, "alice", "n1")]:
                await n1.publish(topic, b"mine", 1, retain=True)
            while load.values["retained messages/count"] < before + 4:
                await load.settled()
            await load.settled()
            assert load.values["retained messages/count"] < before + 100, "a few more are the broker's own, below $SYS"
            assert load.values["store/messages/bytes"] < _MIB
        await ping_pong(doors)

    play(work())


def test_what_waits_for_a_controller_that_is_away_is_bounded_in_bytes(doors: Doors) -> None:
    async def work() -> None:
        load, topic = Load(), topics.node_topic(LAB, "n1", "event")
        async with aiomqtt.Client(
            doors.address, doors.controller_port, identifier=f"{topics.CLIENT_PREFIX}dead", clean_session=False,
            tls_context=client_context(doors.controller().tls_dir),
        ) as dead:  # fmt: skip
            await dead.subscribe(topic, 1)
        async with MqttBus(doors.controller(), "watch", keep_session=False) as watch, intruder(doors) as n1:
            await watch.subscribe("$SYS/broker/#", load)
            await load.settled()
            for _ in range(150):
                await n1.publish(topic, bytes(900_000), 1)
            while load.values["store/messages/bytes"] < 20 * _MIB:  # the broker reports it a while later
                await load.settled()
            await load.settled()
            assert load.values["store/messages/bytes"] < quotas.MOST_QUEUED_BYTES + _MIB
        await ping_pong(doors)

    play(work())
    dropped = f"Outgoing messages are being dropped for client {topics.CLIENT_PREFIX}dead"
    wait_until(lambda: dropped in doors.log.read_text(), "a log line about it")


def test_the_whole_broker_is_bounded_and_goes_on_for_the_others(doors: Doors) -> None:
    """QoS 0 for a controller that reads nothing is bounded only by Mosquitto's quota for all of its memory."""

    async def work() -> None:
        topic = topics.node_topic(LAB, "n1", "event")
        stuck = aiomqtt.Client(
            doors.address, doors.controller_port, identifier=f"{topics.CLIENT_PREFIX}stuck", timeout=HANG_S,
            tls_context=client_context(doors.controller().tls_dir),
        )  # fmt: skip
        async with stuck:
            await stuck.subscribe(topic, 0)
            sock = stuck._client.socket()
            asyncio.get_running_loop().remove_reader(sock.fileno())
            for _ in range(3):
                with contextlib.suppress(aiomqtt.MqttError):
                    async with intruder(doors) as n1:
                        for _ in range(150):
                            await send(n1, topic, bytes(_MIB - 100), 0)
                            await asyncio.sleep(0)
                        await send(n1, topic, b"flushed", 1)
            assert peak_mib(doors.broker.pid) < 1.5 * quotas.MOST_BROKER_BYTES / _MIB
            sock.shutdown(socket.SHUT_RDWR)  # as the broker does with a client that is silent for too long
            asyncio.get_running_loop().add_reader(sock.fileno(), stuck._client.loop_read)
        await ping_pong(doors)

    play(work())


def test_a_packet_beyond_the_limit_costs_its_sender_the_connection(doors: Doors) -> None:
    async def work() -> None:
        for size in (quotas.MOST_PACKET_BYTES + 1, 16 * _MIB):
            with pytest.raises(aiomqtt.MqttError):
                async with intruder(doors, aiomqtt.ProtocolVersion.V5) as n1:
                    await send(n1, topics.node_topic(LAB, "n1", "event"), bytes(size), 1)
        assert "disconnected due to oversize packet" in doors.log.read_text()
        assert peak_mib(doors.broker.pid) < 40
        await ping_pong(doors)

    play(work())


def test_persistence_is_no_load(doors: Doors) -> None:
    """The quotas bound the size of each save of the broker's database, and saves are not continuous."""
    saved = [line for line in (doors.log.parent / "mosquitto.conf").read_text().splitlines() if "autosave" in line]
    assert saved == [f"autosave_interval {SAVE_EVERY_S}"]
    assert quotas.MOST_QUEUED_BYTES / SAVE_EVERY_S < 2 * _MIB, "bytes per second for each offline client"


def subscribe_packet(number: int, topics_each: int = 300, levels: int = 199) -> bytes:
    """Return a SUBSCRIBE of MQTT 3.1.1 for topics that are all different, level by level."""
    wanted = ["/".join(f"{number:x}{topic:x}" for _ in range(levels))[:60_000] for topic in range(topics_each)]
    body = (1).to_bytes(2) + b"".join(len(each).to_bytes(2) + each.encode() + b"\x00" for each in wanted)
    length, octets = len(body), bytearray()
    while length > 0x7F:
        octets.append(length & 0x7F | 0x80)
        length >>= 7
    return b"\x82" + bytes([*octets, length]) + body


def test_subscriptions_to_what_a_node_may_not_read_take_no_memory_of_the_broker(doors: Doors) -> None:
    """Each level of a topic costs the broker some 700 bytes: a megabyte of SUBSCRIBE would exhaust its memory."""
    folder = doors.agent("n1").tls_dir

    def flood() -> None:
        context = client_context(folder)
        with (
            socket.create_connection((doors.address, doors.agent_port), HANG_S) as plain,
            context.wrap_socket(plain, server_hostname=doors.address) as n1,
        ):
            name = b"dfrs.n1"
            hello = b"\x00\x04MQTT\x04\x02\x00\x3c" + len(name).to_bytes(2) + name
            n1.sendall(b"\x10" + bytes([len(hello)]) + hello)
            assert n1.recv(4) == b"\x20\x02\x00\x00"
            for number in range(10):
                n1.sendall(subscribe_packet(number))
                answer = n1.recv(1 << 16)
                while len(answer) < 3 + 302:
                    more = n1.recv(1 << 16)
                    assert more, "the broker closed the connection"
                    answer += more
                assert answer[-300:] == b"\x80" * 300, "each topic is refused"

    flood()
    assert doors.broker.poll() is None
    assert peak_mib(doors.broker.pid) < 64
    play(ping_pong(doors))
