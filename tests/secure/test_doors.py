"""Access at each listener of the broker, and the permitted messages of each party: real Mosquitto, real TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.live import HANG_S
from support.secure.doors import LAB, Doors, open_doors

from testbed.bus import topics
from testbed.bus.address import BrokerAddress
from testbed.bus.client import MqttBus
from testbed.bus.protocol import BusError
from testbed.lab.secure.authority import Authority

ALL = f"testbed/v1/{LAB}/#"


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with open_doors(tmp_path_factory.mktemp("doors")) as opened:
        yield opened


def play(work: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG_S):
            await work

    asyncio.run(main())


class Ear:
    """Receives the messages of a subscription; `marker` is the last one."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.news = asyncio.Event()

    async def __call__(self, topic: str, payload: bytes) -> None:
        self.heard.append((topic, payload))
        self.news.set()

    async def until(self, payload: bytes) -> list[str]:
        async with asyncio.timeout(HANG_S):
            while not any(found == payload for _, found in self.heard):
                self.news.clear()
                await self.news.wait()
        return [topic for topic, found in self.heard if found != payload]


@asynccontextmanager
async def bus(address: BrokerAddress, client_id: str) -> AsyncIterator[MqttBus]:
    async with MqttBus(address, client_id, keep_session=False) as opened:
        yield opened


def test_an_agent_writes_under_its_own_name_only(doors: Doors) -> None:
    async def work() -> None:
        ear = Ear()
        async with bus(doors.controller(), "c") as controller, bus(doors.agent("n1"), "whatever") as agent:
            for kind in ("status", "telemetry", "event"):
                await controller.subscribe(topics.node_topic(LAB, topics.ANY, kind), ear)
            await controller.subscribe(topics.reply_topic(LAB, "alice", topics.ANY), ear)
            for topic in (
                topics.node_topic(LAB, "n2", "status"), topics.node_topic(LAB, "n2", "telemetry"),
                topics.node_topic(LAB, "n2", "event"), topics.node_topic(LAB, "n2", "command"),
                topics.node_topic(LAB, "n1", "command"), topics.lease_topic(LAB), topics.lease_topic("lab-2"),
                "testbed/v1/lab-2/node/n1/status", "somewhere/else",
                topics.reply_topic(LAB, "bob", "n2"), topics.reply_topic(LAB, "controller-0123456789ab", "n1"),
                topics.reply_topic(LAB, "alice", "n2"), f"testbed/v1/{LAB}/controller/alice/reply",
            ):  # fmt: skip
                await agent.publish(topic, b"forged", retain=True)
            for kind in ("status", "telemetry", "event"):
                await agent.publish(topics.node_topic(LAB, "n1", kind), b"own")
            await agent.publish(topics.reply_topic(LAB, "alice", "n1"), b"end")
            heard = await ear.until(b"end")
        assert heard == [topics.node_topic(LAB, "n1", kind) for kind in ("status", "telemetry", "event")]

    play(work())


def test_an_agent_hears_its_own_commands_and_the_lease_only(doors: Doors) -> None:
    async def work() -> None:
        ear = Ear()
        async with bus(doors.controller(), "c") as controller, bus(doors.agent("n1"), "x") as agent:
            for pattern in (ALL, "#", topics.node_topic(LAB, topics.ANY, "command"), topics.reply_pattern(LAB)):
                try:
                    await agent.subscribe(pattern, ear)
                except BusError:
                    continue  # the broker refuses at once
            await agent.subscribe(topics.node_topic(LAB, "n1", "command"), ear)
            await agent.subscribe(topics.lease_topic(LAB), ear)
            await controller.publish(topics.node_topic(LAB, "n2", "command"), b"for n2")
            await controller.publish(topics.node_topic(LAB, "n1", "command"), b"for n1")
            await controller.publish(topics.lease_topic(LAB), b"end")
            await ear.until(b"end")
        assert {payload for _, payload in ear.heard} == {b"for n1", b"end"}

    play(work())


def test_nobody_takes_over_the_session_of_another_node(doors: Doors) -> None:
    async def work() -> None:
        ear = Ear()
        async with bus(doors.controller(), "c") as controller, bus(doors.agent("n2"), "agent-lab-1-n2") as honest:
            await honest.subscribe(topics.node_topic(LAB, "n2", "command"), ear)
            for claimed in ("agent-lab-1-n2", "n2"):
                async with bus(doors.agent("n1"), claimed) as thief:
                    await thief.publish(topics.node_topic(LAB, "n1", "status"), b"here")
            await controller.publish(topics.node_topic(LAB, "n2", "command"), b"still yours")
            await ear.until(b"still yours")
            assert honest.connected.is_set()

    play(work())


@pytest.mark.parametrize(
    ("who", "why"),
    [
        ("agent at the controllers' door", "it does not trust 'lab-1 agents-ca', which signed our certificate"),
        ("controller at the agents' door", "on this port: agents have port 8883, controllers 8884"),
        ("stranger", "another lab's broker trusts another authority"),
        ("nobody", "its certificate is not to be trusted: unable to get local issuer certificate"),
    ],
)
def test_who_does_not_belong_at_a_door_is_told_why(doors: Doors, tmp_path: Path, who: str, why: str) -> None:
    if who == "agent at the controllers' door":
        address = doors.agent("n1", port=doors.controller_port)
    elif who == "controller at the agents' door":
        address = doors.controller(port=doors.agent_port)
    else:
        folder = tmp_path / "folder"
        if who == "stranger":  # a party of another lab with the same names, which knows this lab's broker
            Authority.create(tmp_path / "ca", LAB).issue("node", "n1")[0].folder.rename(folder)
        else:
            folder.mkdir()
        for kind in ("pem", "crl"):
            (folder / f"ca.{kind}").write_bytes((doors.authority.folder / f"broker-ca.{kind}").read_bytes())
        address = BrokerAddress("127.0.0.1", doors.agent_port, tls=True, tls_dir=folder if who == "stranger" else None)

    async def come_in() -> None:
        async with bus(address, "x") as opened:
            await opened.publish(topics.node_topic(LAB, "n1", "status"), b"the client was accepted")

    with pytest.raises(BusError, match=r"broker mqtts://127\.0\.0\.1") as refused:
        play(come_in())
    assert why in str(refused.value)


def test_a_broker_of_another_lab_is_not_believed(doors: Doors, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "ca", LAB)
    other.issue("controller", "alice")
    address = BrokerAddress(
        "127.0.0.1", doors.controller_port, tls=True, tls_dir=other.folder / "controllers" / "alice"
    )

    async def work() -> None:
        with pytest.raises(BusError, match="its certificate is not to be trusted"):
            async with bus(address, "x"):
                raise AssertionError("the client was accepted")

    play(work())


def test_older_tls_is_refused(doors: Doors) -> None:
    context = ssl.create_default_context(cafile=doors.authority.folder / "broker-ca.pem")
    folder = doors.authority.folder / "nodes" / "n1"
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def work() -> None:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", doors.agent_port, ssl=context)

    play(work())


def test_a_message_beyond_the_limit_ends_the_connection_and_nothing_else(doors: Doors) -> None:
    async def work() -> None:
        ear = Ear()
        async with bus(doors.controller(), "c") as controller, bus(doors.agent("n2"), "y") as honest:
            await controller.subscribe(topics.node_topic(LAB, topics.ANY, "event"), ear)
            async with bus(doors.agent("n1"), "x") as agent:
                big = asyncio.create_task(agent.publish(topics.node_topic(LAB, "n1", "event"), bytes(3 << 20)))
                await honest.publish(topics.node_topic(LAB, "n2", "event"), b"end")
                assert await ear.until(b"end") == []
                big.cancel()
                await asyncio.gather(big, return_exceptions=True)

    play(work())
