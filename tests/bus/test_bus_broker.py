"""The broker that the testbed starts: its choice, its start, and its complete removal."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest
from support.bus.bus_worlds import MQTT_KINDS, Mailbox, run, world
from support.live import until

from testbed.bus import embedded, mosquitto
from testbed.bus.broker import broker
from testbed.bus.client import BusError, MqttBus
from testbed.errors import UserError

needs_mosquitto = MQTT_KINDS[-1].marks[0]  # type: ignore[attr-defined]


def gone(pid: int) -> bool:
    """Whether a process has ended (an unreaped zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def child_named(name: str, parent: int | None = None) -> int:
    """Return the only child process of this one, or of `parent`, that has this name."""
    parent = parent or os.getpid()
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    (pid,) = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text().strip() == name]
    return pid


def test_without_mosquitto_the_embedded_one_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mosquitto, "find_mosquitto", lambda: None)

    async def scenario() -> None:
        async with broker() as running:
            assert running.kind == "embedded"
            assert running.address.host == "127.0.0.1"
        with pytest.raises(UserError, match="broker = mosquitto: no such program"):
            async with broker("mosquitto"):
                pass

    run(scenario())


@needs_mosquitto
def test_mosquitto_is_preferred_and_ends_with_its_block(tmp_path: Path) -> None:
    async def scenario() -> None:
        pid = 0

        async def fail() -> None:
            nonlocal pid
            async with broker(state_dir=tmp_path) as running:
                assert running.kind == "mosquitto"
                assert running.address.password
                pid = child_named("mosquitto")
                assert running.address.password not in command_line(pid)
                for secret in ("password", "passwords"):
                    assert (tmp_path / secret).stat().st_mode & 0o077 == 0
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert gone(pid)

        started = asyncio.Event()

        async def serve() -> None:
            async with broker():
                started.set()
                await asyncio.Event().wait()

        serving = asyncio.create_task(serve())
        await started.wait()
        pid = child_named("mosquitto")
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert gone(pid)

    run(scenario())


@pytest.mark.parametrize("kind", MQTT_KINDS)
def test_a_port_in_use_is_told(kind: str) -> None:
    async def scenario() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(BusError, match=r"(?i)address already in use") as caught:
                async with broker(kind, port=taken.getsockname()[1]):  # type: ignore[arg-type]
                    pass
            assert "\n" not in str(caught.value)

    run(scenario())


SERVER = """
import asyncio
from testbed.bus.broker import broker

async def main():
    async with broker("mosquitto"):
        print("up", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@needs_mosquitto
def test_mosquitto_dies_with_the_process_that_started_it() -> None:
    async def scenario() -> None:
        server = await asyncio.create_subprocess_exec(sys.executable, "-c", SERVER, stdout=PIPE)
        assert server.stdout is not None
        assert await server.stdout.readline() == b"up\n"
        child = child_named("mosquitto", server.pid)
        assert not gone(child)
        os.kill(server.pid, signal.SIGKILL)
        await server.wait()
        await until(lambda: gone(child), "the end of Mosquitto")

    run(scenario())


def test_an_old_connection_that_ends_late_does_not_deafen_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedded: both connections of a client share one session, and the end of either marks it as disconnected."""
    late = asyncio.Event()
    ended = asyncio.Event()
    stop = embedded._Broker._stop_handler

    async def stop_late(self: Any, handler: Any) -> None:
        await stop(self, handler)
        if not late.is_set():
            await late.wait()
            asyncio.get_running_loop().call_soon(ended.set)

    monkeypatch.setattr(embedded._Broker, "_stop_handler", stop_late)

    async def scenario() -> None:
        async with world("embedded") as w, w.bus("a") as a, w.bus("b", close_timeout_s=0.05):
            w.wires["b"].freeze()
            old = w.wires["b"]
            async with w.bus("b") as second:
                mail = Mailbox()
                await second.subscribe("to/b", mail)
                late.set()
                await ended.wait()
                await a.publish("to/b", b"hello")
                assert await mail.count(1) == [b"hello"]
                old.accepts = False

    run(scenario())


def test_the_subscriptions_of_the_embedded_broker_may_change_while_they_are_read() -> None:
    subscriptions = embedded._Snapshots(a=1, b=2)
    for pattern in subscriptions:
        subscriptions[pattern * 2] = 3
    for pattern, number in subscriptions.items():
        assert subscriptions.pop(pattern) == number
    assert not subscriptions


def test_the_embedded_broker_ends_in_the_middle_of_traffic_and_quietly(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        for _ in range(5):
            mail = Mailbox()
            async with broker("embedded") as running:
                a = MqttBus(running.address, "a", close_timeout_s=0.01)
                b = MqttBus(running.address, "b", close_timeout_s=0.01)
                await a.__aenter__()
                await b.__aenter__()
                await a.subscribe("t", mail)
                flood = [asyncio.create_task(b.publish("t", b"x")) for _ in range(200)]
                await mail.count(20)
            await b.__aexit__(None, None, None)
            await a.__aexit__(None, None, None)
            await asyncio.gather(*flood, return_exceptions=True)

    run(scenario())
    assert not [record for record in caplog.records if not record.name.startswith("testbed.bus")]
