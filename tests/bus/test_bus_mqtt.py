"""Requirements on a bus over the network: it fails in time, survives the broker, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiomqtt
import pytest
from support.bus.bus_worlds import MQTT_KINDS, Mailbox, MqttWorld, command_after_lease, lost, run, world
from support.live import HANG_S

from testbed.bus import client as client_module
from testbed.bus.broker import broker
from testbed.bus.client import BrokerAddress, BusError, MqttBus, Presence
from testbed.bus.connection import Connection, connect

by_broker = pytest.mark.parametrize("kind", MQTT_KINDS)


async def refusal(address: BrokerAddress, timeout_s: float = HANG_S) -> str:
    """Return the line with which a first connection fails, by default long before its timeout."""
    with pytest.raises(BusError) as caught:
        async with MqttBus(address, "c", connect_timeout_s=timeout_s):
            raise AssertionError("connected")
    assert "\n" not in str(caught.value)
    return str(caught.value)


PRESENCE = Presence("lab/b", lambda: b"online", b"offline", b"lost")


@asynccontextmanager
async def watched(kind: str) -> AsyncIterator[tuple[MqttWorld, Mailbox]]:
    """Open a world, with a mailbox for b's presence as others receive it."""
    async with world(kind) as w, w.bus("a") as a:
        seen = Mailbox()
        await a.subscribe("lab/b", seen)
        yield w, seen


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_an_address_without_broker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_query: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def scenario() -> None:
        port = unused_port()
        assert f"mqtt://127.0.0.1:{port}: connection refused" in await refusal(BrokerAddress("127.0.0.1", port))
        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        assert "mqtt://broker.lab:1883: there is no host of this name" in await refusal(BrokerAddress("broker.lab"))

    run(scenario())


def test_a_server_that_does_not_speak_is_told() -> None:
    async def scenario() -> None:
        here = 0
        somebody, nobody = asyncio.Event(), asyncio.Event()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal here
            here += 1
            nobody.clear()
            somebody.set()
            await reader.read()
            writer.close()
            here -= 1
            if not here:
                nobody.set()

        async with await asyncio.start_server(mute, "127.0.0.1", 0) as server:
            address = BrokerAddress("127.0.0.1", server.sockets[0].getsockname()[1])
            assert "no MQTT CONNACK within 0.3 s" in await refusal(address, 0.3)
            await nobody.wait()  # the client has closed its socket
            somebody.clear()
            coming = asyncio.create_task(MqttBus(address, "c", connect_timeout_s=HANG_S).__aenter__())
            await somebody.wait()
            coming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await coming
            await nobody.wait()

    run(scenario())


def test_a_server_that_hangs_up_is_told_at_once() -> None:
    async def scenario() -> None:
        async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.close()

        async with await asyncio.start_server(rude, "127.0.0.1", 0) as server:
            address = BrokerAddress("127.0.0.1", server.sockets[0].getsockname()[1])
            assert "closed the connection without a CONNACK" in await refusal(address)

    run(scenario())


@by_broker
def test_a_wrong_password_is_told(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w:
            for wrong in (
                replace(w.address, password="geheim"),  # noqa: S106  made up
                replace(w.address, username=None, password=None),
            ):
                text = await refusal(wrong)
                assert "check user and password" in text
                assert "geheim" not in text

    run(scenario())


@by_broker
def test_what_is_retained_is_handled_before_what_waited_in_the_session_even_if_it_comes_late(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w:
            await command_after_lease(w, late=(b"lease", b"command"))

    run(scenario())


@by_broker
def test_packets_are_not_delayed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sockets: list[socket.socket] = []
    enter = aiomqtt.Client.__aenter__

    async def spy(client: aiomqtt.Client) -> aiomqtt.Client:
        entered = await enter(client)
        sockets.append(client._client.socket())
        return entered

    monkeypatch.setattr(aiomqtt.Client, "__aenter__", spy)

    async def scenario() -> None:
        async with world(kind) as w, w.bus("a"):
            assert sockets[-1].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0

    run(scenario())


@by_broker
def test_a_restart_of_the_broker_loses_nothing(kind: str, tmp_path: Path) -> None:
    """Sender and receiver live through two restarts in the middle of a stream of QoS 1 messages.

    Mosquitto keeps sessions, so the order of reconnections does not matter. The embedded broker forgets all sessions,
    and its password changes, so the sender may connect only after the receiver has subscribed again.
    """
    port = unused_port()
    keeps = kind == "mosquitto"
    patient = {"connect_timeout_s": HANG_S, "ack_timeout_s": HANG_S}

    async def scenario() -> None:
        mail = Mailbox()
        async with AsyncExitStack() as clients:
            async with broker(kind, state_dir=tmp_path, port=port) as running:
                receiver = await clients.enter_async_context(MqttBus(running.address, "receiver", **patient))
                sender = await clients.enter_async_context(MqttBus(running.address, "sender", **patient))
                await receiver.subscribe("stream", mail)
                sending = [asyncio.create_task(sender.publish("stream", b"%d" % n)) for n in range(100)]
                if keeps:
                    await mail.count(1)
                else:
                    await asyncio.wait(sending)
                    await mail.count(100)
            for first in (100, 200):
                sending += [asyncio.create_task(sender.publish("stream", b"%d" % n)) for n in range(first, first + 50)]
                await lost(receiver)
                async with broker(kind, state_dir=tmp_path, port=port) as running:
                    receiver.address = running.address
                    if not keeps:
                        await receiver.connected.wait()
                    sender.address = running.address
                    last = range(first + 50, first + 100)
                    sending += [asyncio.create_task(sender.publish("stream", b"%d" % n)) for n in last]
                    if keeps:
                        await mail.until(lambda got, n=first + 20: b"%d" % n in got)
                    else:
                        await asyncio.wait(sending)
                        await mail.until(lambda got, n=first + 99: b"%d" % n in got)
            async with broker(kind, state_dir=tmp_path, port=port) as running:
                sender.address = receiver.address = running.address
                await asyncio.wait(sending)
                got = await mail.until(lambda got: len(set(got)) == 300)
                assert set(got) == {b"%d" % number for number in range(300)}
                first_seen = list(dict.fromkeys(int(payload) for payload in got))
                assert first_seen == sorted(first_seen)
                assert max(Counter(got).values()) <= 4  # duplicates: at most one from each of the four brokers
                await clients.aclose()

    run(scenario())


CLIENT = """
import asyncio, sys
from testbed.bus.client import BrokerAddress, MqttBus, Presence

async def main():
    presence = Presence("lab/b", lambda: b"online", b"offline", b"lost")
    async with MqttBus(BrokerAddress.parse(sys.argv[1]), "b", presence, close_timeout_s=float(sys.argv[2])):
        print("up", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@by_broker
@pytest.mark.parametrize(("number", "last_word"), [(signal.SIGKILL, b"lost"), (signal.SIGINT, b"offline")])
def test_the_end_of_a_process_is_seen(kind: str, number: signal.Signals, last_word: bytes) -> None:
    async def scenario() -> None:
        async with watched(kind) as (w, seen):
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CLIENT, w.address.url, str(HANG_S), stdout=PIPE, stderr=PIPE
            )
            assert child.stdout is not None
            assert await child.stdout.readline() == b"up\n"
            os.kill(child.pid, number)
            assert await seen.count(2) == [b"online", last_word]
            await child.communicate()

    run(scenario())


@by_broker
def test_a_client_that_falls_silent_is_given_up(kind: str) -> None:
    async def scenario() -> None:
        async with watched(kind) as (w, seen), w.bus("b", PRESENCE, keepalive_s=1, close_timeout_s=0.05):
            await seen.count(1)
            w.wires["b"].freeze()
            w.wires["b"].accepts = False
            # a client is also given up if the test pauses, and reconnects; after the end of the wire it does not
            got = await seen.until(lambda got: got[-1:] == [b"lost"])
            assert got == [b"online", b"lost"] * (len(got) // 2)

    run(scenario())


@by_broker
def test_a_client_comes_back_although_its_old_connection_is_stuck(kind: str) -> None:
    """As after a cut cable: messages of the broker pile up in a connection that it takes as open."""

    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a, w.bus("b", keepalive_s=60, close_timeout_s=0.05) as first:
            await first.subscribe("to/b", Mailbox(), qos=0)
            old = w.wires["b"]
            old.freeze()
            for _ in range(40):
                await a.publish("to/b", bytes(250_000))
            async with w.bus("b") as second:
                mail = Mailbox()
                await second.subscribe("to/b", mail, qos=0)
                await a.publish("to/b", b"hello")
                await mail.until(lambda got: b"hello" in got)
                old.accepts = False
                old.cut()
                await lost(first)
                for number in range(50):
                    await a.publish("to/b", b"%d" % number)
                await mail.until(lambda got: b"49" in got)

    run(scenario())


@by_broker
def test_a_message_without_acknowledgement_ends_the_connection(kind: str) -> None:
    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a, w.bus("b", ack_timeout_s=0.2) as b:
            mail = Mailbox()
            await a.subscribe("t", mail)
            w.wires["b"].freeze()
            publishing = asyncio.create_task(b.publish("t", b"kept"))
            await lost(b)
            w.wires["b"].cut()
            await publishing
            assert set(await mail.count(1)) == {b"kept"}

    run(scenario())


def packet(kind: int, *fields: bytes) -> bytes:
    """Return an MQTT packet of less than 128 bytes; `field` encodes its strings."""
    body = b"".join(fields)
    return bytes([kind, len(body)]) + body


def field(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


@by_broker
def test_what_a_client_sends_before_it_leaves_is_handed_on(kind: str) -> None:
    """CONNECT, many messages and DISCONNECT in one write, as from a client that waits for no answers."""

    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a:
            mail = Mailbox()
            await a.subscribe("t", mail)
            connect = packet(
                0x10, field("MQTT"), b"\4\xc2\0\x3c", field("raw"), field(w.address.username), field(w.address.password)
            )
            messages = [packet(0x32, field("t"), (n + 1).to_bytes(2, "big"), b"%d" % n) for n in range(200)]
            reader, writer = await asyncio.open_connection(w.address.host, w.address.port)
            writer.write(b"".join([connect, *messages, packet(0xE0)]))
            assert await mail.count(200) == [b"%d" % n for n in range(200)]
            await reader.read()
            writer.close()
            await writer.wait_closed()

    run(scenario())


@asynccontextmanager
async def greeter(stays: asyncio.Event) -> AsyncIterator[BrokerAddress]:
    """Run a server that acknowledges CONNECT as a broker does, and closes the connection once `stays` is set."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1000):  # not the probe before the connection
            writer.write(packet(0x20, b"\0\0\0"))
            await stays.wait()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        yield BrokerAddress("127.0.0.1", server.sockets[0].getsockname()[1])


def test_a_server_that_greets_and_hangs_up_is_told_at_once() -> None:
    """aiomqtt loses a disconnection that arrives with the CONNACK, and would wait for ever."""

    async def scenario() -> None:
        ends = asyncio.Event()
        ends.set()
        async with greeter(ends) as address:
            assert "it closed the connection right after its CONNACK" in await refusal(address)

    run(scenario())


def test_a_connection_that_breaks_while_nobody_waits_for_it_is_not_logged() -> None:
    async def scenario() -> None:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["message"]))
        ends = asyncio.Event()
        async with greeter(ends) as address:
            client = await connect(
                address, "c", None, lambda *_message: None, session_s=0, timeout_s=HANG_S, keepalive_s=60
            )
            ends.set()
            await asyncio.wait([client._disconnected])
            del client
            gc.collect()
        assert told == []

    run(scenario())


@by_broker
def test_a_client_that_cannot_say_farewell_leaves_its_last_will(kind: str) -> None:
    async def scenario() -> None:
        async with watched(kind) as (w, seen):
            async with w.bus("b", PRESENCE, outbox_limit=0):
                await seen.count(1)
            assert await seen.count(2) == [b"online", b"lost"]

    run(scenario())


@by_broker
def test_a_loss_in_the_moment_of_the_end_does_not_hold_it_up(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost_when_cancelled(_client: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise aiomqtt.MqttError("in the same moment") from None

    monkeypatch.setattr(client_module, "lost", lost_when_cancelled)

    async def scenario() -> None:
        async with world(kind) as w, asyncio.timeout(HANG_S), w.bus("a"):
            pass

    run(scenario())


@pytest.mark.parametrize("error", [RuntimeError("of the library"), OSError("bad file"), asyncio.CancelledError()])
@by_broker
def test_a_bus_survives_whatever_a_broken_connection_raises(
    kind: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bus that ends with such an error would never connect again, and its agent would not notice."""
    leave, enter = Connection.__aexit__, Connection.__aenter__
    left: list[Connection] = []

    async def leave_badly(self: Connection, *_details: object) -> None:
        await leave(self, None, None, None)
        left.append(self)
        raise error

    async def enter_badly(self: Connection) -> Connection:
        if len(left) in (1, 2):
            raise error
        return await enter(self)

    async def scenario() -> None:
        async with world(kind) as w, w.bus("a") as a:
            mail = Mailbox()
            await a.subscribe("t", mail)
            async with w.bus("b") as b:
                await b.publish("t", b"before")
                with monkeypatch.context() as patch:
                    patch.setattr(Connection, "__aexit__", leave_badly)
                    patch.setattr(Connection, "__aenter__", enter_badly)
                    w.wires["b"].cut()
                    await b.publish("t", b"after")
                    await mail.until(lambda got: got == [b"before", b"after"])
        assert len(left) == 3

    run(scenario())


def test_a_cancellation_that_comes_with_the_acknowledgement_counts() -> None:
    async def scenario() -> None:
        client = Connection("127.0.0.1")
        acknowledgement = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(client._wait_for(acknowledgement, 5.0))
        await asyncio.sleep(0)
        acknowledgement.set_result(None)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()

    run(scenario())


@by_broker
def test_many_clients_come_at_once(kind: str) -> None:
    """Subscriptions change while retained messages are sent to clients that reconnect."""

    async def scenario() -> None:
        async with world(kind) as w:
            seen = Mailbox()

            async def come(number: int) -> None:
                name = f"n{number}"
                presence = Presence(f"lab/{name}", name.encode, b"offline", b"lost")
                async with MqttBus(w.address, name, presence, connect_timeout_s=HANG_S) as bus:
                    await bus.subscribe("lab/+", Mailbox())
                    await bus.subscribe(f"command/{name}", seen)
                    await bus.publish(f"command/{name}", name.encode())

            for _ in range(3):
                seen.got.clear()
                async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as group:
                    for number in range(20):
                        group.create_task(come(number))

    run(scenario())
