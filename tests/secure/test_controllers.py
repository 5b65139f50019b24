"""The rights of a controller towards others and agents: it can take the lab in its own name, and evict nobody."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.live import HANG_S, until, wait_until
from support.secure.doors import LAB, Doors, open_doors

from testbed.bus import topics
from testbed.bus.certificate import own_name
from testbed.bus.client import MqttBus
from testbed.bus.lease import LeaseGuard, new_token
from testbed.bus.messages import Lease, decode, encode
from testbed.bus.suspicious_acts import ActKind
from testbed.errors import UserError
from testbed.lab import lease as leases
from testbed.lab.lease import LeaseTakenError, hold_lease
from testbed.lab.secure.broker_log import acts_of

LEASE = topics.lease_topic(LAB)
RELEASES = topics.release_topic(LAB, topics.ANY)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with open_doors(tmp_path_factory.mktemp("doors"), log_denied=True) as opened:
        yield opened


def denied(doors: Doors) -> int:
    """Return how many messages of bob the broker has dropped, by its log."""
    acts = acts_of(doors.log.read_text().split("\n"), LAB)
    return sum(act.count for act in acts if (act.node, act.kind) == ("controller.bob", ActKind.DENIED_PUBLISH))


def play(work: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(HANG_S):
            await work

    asyncio.run(main())


class Follower:
    """An agent's view of the lease, received at the agents' listener."""

    def __init__(self) -> None:
        self.guard = LeaseGuard(asyncio.get_running_loop().time)
        self.last: Lease | None = None
        self.heard = 0

    async def __call__(self, topic: str, payload: bytes) -> None:
        self.heard += 1
        self.guard.hear(topic, payload)
        if topic == LEASE and payload:
            self.last = decode(Lease, payload)


@asynccontextmanager
async def follower(doors: Doors) -> AsyncIterator[Follower]:
    async with MqttBus(doors.agent("n2"), "n2", keep_session=False) as bus:
        follows = Follower()
        await bus.subscribe(RELEASES, follows)
        await bus.subscribe(LEASE, follows)
        yield follows


def test_a_controllers_name_is_read_from_its_certificate(doors: Doors, tmp_path: Path) -> None:
    assert own_name(doors.authority.folder / "controllers/bob") == "bob"
    assert own_name(doors.authority.folder / "nodes/n1") == ""
    assert own_name(tmp_path) == ""
    assert own_name(None) == ""


def test_nobody_ends_the_lease_of_another_in_a_third_name(doors: Doors) -> None:
    async def work() -> None:
        token = new_token()
        async with (
            follower(doors) as agent,
            MqttBus(doors.controller("alice"), "alice", keep_session=False) as alice,
            MqttBus(doors.controller("bob"), "bob", keep_session=False) as bob,
            hold_lease(alice, LAB, token, HANG_S),
        ):
            await until(lambda: agent.guard.allows(token), "the lease at the agent")
            assert agent.last is not None
            real = agent.last
            forged = msgspec.structs.replace(real, released=True, released_by="mallory")
            short = msgspec.structs.replace(real, ttl_s=1e-6, on_controller_loss="remove", holder="mallory")
            stolen = msgspec.structs.replace(real, released=True, token=real.digest)
            for record in (forged, short, stolen):
                await bob.publish(LEASE, encode(record), retain=True)
            await bob.publish(LEASE, b"", retain=True)
            await bob.publish(topics.release_topic(LAB, "alice"), encode(forged))  # the broker drops it
            seen = agent.heard
            await bob.publish(LEASE, b"end")
            await until(lambda: agent.heard > seen, "the last record")
            assert agent.guard.allows(token)
            assert agent.guard.released_by == ""

    before = denied(doors)
    play(work())
    wait_until(lambda: denied(doors) > before, "a line that names bob")


def test_who_takes_a_lab_is_named_by_the_broker(doors: Doors) -> None:
    async def work() -> None:
        token = new_token()
        taken = asyncio.Event()

        async def drive() -> None:
            async with (
                MqttBus(doors.controller("alice"), "alice", keep_session=False) as alice,
                hold_lease(alice, LAB, token, HANG_S),
            ):
                taken.set()
                await asyncio.Event().wait()

        async with follower(doors) as agent, MqttBus(doors.controller("bob"), "bob", keep_session=False) as bob:
            driving = asyncio.create_task(drive())
            await taken.wait()
            own = new_token()
            async with hold_lease(bob, LAB, own, HANG_S, force=True, party=own_name(bob.address.tls_dir)):
                with pytest.raises(LeaseTakenError, match=rf"^lab '{LAB}' was taken by bob \(.*@.*\): its guests"):
                    await driving
                await until(lambda: agent.guard.allows(own), "the other lease at the agent")
                assert agent.guard.released_by.startswith("bob (")

    play(work())


def test_a_lab_is_not_taken_in_the_name_of_another(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_ECHO_WITHIN_S", 1.0)  # dropped messages never arrive, with any timeout

    async def work() -> None:
        token = new_token()
        async with (
            MqttBus(doors.controller("alice"), "alice", keep_session=False) as alice,
            MqttBus(doors.controller("bob"), "bob", keep_session=False) as bob,
            hold_lease(alice, LAB, token, HANG_S),
            follower(doors) as agent,
        ):
            with pytest.raises(UserError, match="the broker did not take the lease"):
                async with hold_lease(bob, LAB, new_token(), HANG_S, force=True, party="alice"):
                    raise AssertionError("the lab was taken")
            await until(lambda: agent.guard.allows(token), "the lease at the agent")

    play(work())


def greeting(doors: Doors, folder: Path, port: int, client_id: bytes) -> bytes:
    """Connect by MQTT 3.1.1 with any client id; return the broker's CONNACK, empty if it closes the connection."""
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    body = b"\x00\x04MQTT\x04\x02\x00\x3c" + len(client_id).to_bytes(2) + client_id
    with (
        socket.create_connection((doors.address, port), HANG_S) as plain,
        context.wrap_socket(plain, server_hostname=doors.address) as wrapped,
    ):
        try:
            wrapped.sendall(b"\x10" + bytes([len(body)]) + body)
            return wrapped.recv(4)
        except (ssl.SSLError, ConnectionError):
            return b""


def test_no_controller_evicts_an_agent_by_its_client_id(doors: Doors) -> None:
    async def work() -> None:
        heard: list[bytes] = []

        async def hear(_topic: str, payload: bytes) -> None:
            heard.append(payload)

        bob = doors.authority.folder / "controllers/bob"
        async with (
            MqttBus(doors.agent("n2"), "agent-lab-1-n2", keep_session=False) as agent,
            MqttBus(doors.controller("alice"), "alice", keep_session=False) as alice,
        ):
            await agent.subscribe(topics.node_topic(LAB, "n2", "command"), hear)
            connection = agent._client
            assert connection is not None
            for claimed in (b"n2", b"n1", b"agent-lab-1-n2", b""):
                answer = await asyncio.to_thread(greeting, doors, bob, doors.controller_port, claimed)
                assert answer[3:] != b"\x00", f"let in as {claimed!r}"
            for claimed in (b"dfrs.n2", b"dfrs.agent-lab-1-n2"):
                answer = await asyncio.to_thread(greeting, doors, bob, doors.controller_port, claimed)
                assert answer == b"\x20\x02\x00\x00"
            await alice.publish(topics.node_topic(LAB, "n2", "command"), b"still there")
            await until(lambda: b"still there" in heard, "a command over the earlier connection")
            assert agent._client is connection

    play(work())
    refused = f"from {doors.address} on port {doors.controller_port}: not authorised"
    wait_until(lambda: refused in {act.what for act in acts_of(doors.log.read_text().split("\n"), LAB)}, "a log line")


def test_no_agent_evicts_a_controller_by_its_client_id(doors: Doors) -> None:
    async def work() -> None:
        n1 = doors.authority.folder / "nodes/n1"
        async with MqttBus(doors.controller("alice"), "alice", keep_session=False) as alice:
            connection = alice._client
            assert connection is not None
            for claimed in (b"dfrs.alice", b"alice"):
                await asyncio.to_thread(greeting, doors, n1, doors.agent_port, claimed)
            await alice.publish(LEASE, b"")
            assert alice._client is connection

    play(work())
