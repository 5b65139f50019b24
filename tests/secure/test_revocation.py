"""A revoked node: the broker and other agents refuse its certificates, and accept all others."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from support.live import HANG_S, until, wait_until
from support.secure.doors import CONTROLLERS, LAB, Doors, open_doors

from testbed.bus import topics
from testbed.bus.client import MqttBus
from testbed.bus.messages import NodeStatus, decode, encode
from testbed.bus.protocol import BusError, Presence
from testbed.bus.suspicious_acts import SOMEBODY, ActKind
from testbed.bus.tls import client_context, server_context
from testbed.cli.ca import ca
from testbed.errors import UserError
from testbed.lab.secure import broker as rules
from testbed.lab.secure.authority import Authority
from testbed.lab.secure.broker_log import acts_of
from testbed.lab.secure.farewell import say_farewell
from testbed.lab.secure.revocation import revoked

NODES = {"n1": "127.0.0.1", "n2": "127.0.0.1", "n3": "127.0.0.1"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.create(tmp_path / "ca", LAB)
    made.issue("broker", hosts=["127.0.0.1"])
    for name, address in NODES.items():
        made.issue("node", name, hosts=[address])
    made.issue("controller", "alice")
    return made


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    with open_doors(tmp_path, nodes=NODES, log_denied=True) as opened:
        yield opened


def serial(folder: Path) -> int:
    return x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes()).serial_number


def openssl_says(authority: Authority, cert: Path) -> str:
    """Return openssl's verdict on an agent's certificate, by the broker's revocation list."""
    broker = authority.folder / "broker"
    done = subprocess.run(
        ["openssl", "verify", "-crl_check", "-CAfile", broker / "agents-ca.pem", "-CRLfile", broker / "agents-ca.crl",
         cert], capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_every_certificate_that_a_node_ever_got_is_revoked_and_no_other(authority: Authority, tmp_path: Path) -> None:
    folder = authority.folder / "nodes/n1"
    first = tmp_path / "first.pem"
    first.write_bytes((folder / "cert.pem").read_bytes())
    authority.issue("node", "n1", hosts=["127.0.0.1"], renew_before_days=1000)
    assert first.read_bytes() != (folder / "cert.pem").read_bytes()
    done = authority.revoke("node", "n1")
    assert (done.new, done.before) == (2, 0)
    for cert in (first, folder / "cert.pem"):
        assert "certificate revoked" in openssl_says(authority, cert)
    assert openssl_says(authority, authority.folder / "nodes/n2/cert.pem").endswith(": OK\n")
    lists = [authority.folder / part for part in ("agents-ca.crl", "broker/agents-ca.crl", "nodes/n2/peers.crl")]
    assert {path.read_bytes() for path in lists} == {lists[0].read_bytes()}
    assert all(path.stat().st_mode & 0o077 == 0 for path in lists)
    assert revoked(authority.folder / "controllers-ca.crl") == {}
    assert authority.let_in("node") == ["n2", "n3"]


def test_again_it_changes_nothing(authority: Authority) -> None:
    authority.revoke("node", "n1")
    before = (authority.folder / "agents-ca.crl").read_bytes()
    done = authority.revoke("node", "n1")
    assert (done.new, done.before, done.written) == (0, 1, ())
    assert (authority.folder / "agents-ca.crl").read_bytes() == before
    (authority.folder / "broker/agents-ca.crl").unlink()
    assert authority.revoke("node", "n1").written == (authority.folder / "broker/agents-ca.crl",)


def test_only_a_new_certificate_lets_it_in_again(authority: Authority) -> None:
    authority.revoke("node", "n1")
    for days in (30.0, 1000.0):
        with pytest.raises(UserError, match=r"node n1: its certificate was revoked on .*: expected --readmit"):
            authority.issue("node", "n1", hosts=["127.0.0.1"], renew_before_days=days)
    cert = authority.folder / "nodes/n1/cert.pem"
    assert "certificate revoked" in openssl_says(authority, cert)
    _, made = authority.issue("node", "n1", hosts=["127.0.0.1"], readmit=True)
    assert made
    assert openssl_says(authority, cert).endswith(": OK\n")
    assert authority.issue("node", "n1", hosts=["127.0.0.1"])[1] is False
    assert (authority.revoke("node", "n1").new, openssl_says(authority, cert).endswith(": OK\n")) == (1, False)


def test_a_folder_that_was_removed_does_not_let_it_in_again(authority: Authority) -> None:
    authority.revoke("node", "n1")
    for path in (authority.folder / "nodes/n1").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="node n1: its certificate was revoked on"):
        authority.issue("node", "n1", hosts=["127.0.0.1"])


def test_lists_of_one_second_follow_one_another(authority: Authority) -> None:
    path = authority.folder / "agents-ca.crl"
    since = []
    for name in NODES:
        authority.revoke("node", name)
        since.append(x509.load_pem_x509_crl(path.read_bytes()).last_update_utc)
    assert since == sorted(set(since)), "of two lists of the same second, OpenSSL keeps the older one"
    assert len(revoked(path)) == len(NODES)


def test_a_lab_of_before_gets_its_lists(authority: Authority) -> None:
    old = serial(authority.folder / "nodes/n1")
    for path in [*authority.folder.rglob("*.crl"), authority.folder / "issued.jsonl"]:
        path.unlink()
    again = Authority(authority.folder)
    again.lists()
    assert openssl_says(again, authority.folder / "nodes/n1/cert.pem").endswith(": OK\n")
    again.issue("node", "n1", hosts=["127.0.0.1"], renew_before_days=1000)
    assert again.revoke("node", "n1").new == 2, "including its previous certificate"
    assert old in revoked(authority.folder / "agents-ca.crl")


def test_who_has_no_certificate_cannot_be_revoked(authority: Authority) -> None:
    with pytest.raises(UserError, match=r"node n9: no certificate of this name was issued: expected one of n1, n2, n3"):
        authority.revoke("node", "n9")
    (authority.folder / "issued.jsonl").write_text('{"party": "node"}\n')
    with pytest.raises(UserError, match=r"issued\.jsonl:1: expected an entry of `testbed ca issue`"):
        authority.revoke("node", "n1")


def test_the_command_says_what_it_did_and_where_the_list_must_be(authority: Authority, tmp_path: Path) -> None:
    def call(*words: str) -> Result:
        return CliRunner().invoke(ca, [*words], standalone_mode=False, catch_exceptions=False)

    folder, absent = str(authority.folder), str(tmp_path / "hosts.toml")
    first = call("revoke", folder, "node", "n1", "--hosts", absent)
    assert first.return_value == 1, "no machine has the list yet"
    assert first.output.splitlines()[0] == "node n1: revoked, 1 certificate"
    for words in ("agents-ca.crl: written", "systemctl reload mosquitto", "nodes/NODE/*.crl", "ansible-playbook"):
        assert words in first.output
    again = call("revoke", folder, "node", "n1", "--hosts", absent)
    assert again.output.splitlines()[0] == "node n1: was revoked already"
    told = json.loads(call("revoke", folder, "node", "n1", "--hosts", absent, "--json").output)
    assert (told["new"], told["revoked"], told["written"]) == (0, 1, [])
    assert "node n1: revoked" in call("list", folder).output
    out = tmp_path / "out"
    call("broker-files", folder, "--out", str(out))
    assert "user n1" not in (out / "agents.acl").read_text()
    assert (out / "mosquitto.conf").read_text().count("crlfile ") == 2


def put_out(doors: Doors, name: str) -> None:
    """Revoke a node at a running broker, as the command does on the broker's machine."""
    doors.authority.revoke("node", name)
    doors.rules.write_text(rules.agents_acl(LAB, doors.authority.let_in("node"), CONTROLLERS))
    doors.broker.send_signal(signal.SIGHUP)


async def comes_in(doors: Doors, name: str) -> bool:
    try:
        async with MqttBus(doors.agent(name), f"probe-{name}", keep_session=False):
            return True
    except BusError as error:
        if "was revoked" not in str(error):
            raise
        return False


async def until_let_in(doors: Doors, name: str, *, let_in: bool) -> None:
    """Poll until the broker has read its lists and rules, which it does not report."""
    while await comes_in(doors, name) is not let_in:
        pass


def seen(doors: Doors) -> set[tuple[str, ActKind, str]]:
    """Return the suspicious acts in the broker's log."""
    return {(act.node, act.kind, act.what) for act in acts_of(doors.log.read_text().split("\n"), LAB)}


def test_a_revoked_node_is_out_at_its_next_connection_and_the_others_go_on(doors: Doors) -> None:
    async def work() -> None:
        heard: list[tuple[str, bytes]] = []

        async def hear(topic: str, payload: bytes) -> None:
            heard.append((topic, payload))

        async with (
            asyncio.timeout(HANG_S),
            MqttBus(doors.controller(), "alice", keep_session=False) as controller,
            MqttBus(doors.agent("n2"), "n2", keep_session=False) as honest,
        ):
            await controller.subscribe(topics.node_topic(LAB, topics.ANY, "event"), hear)
            assert await comes_in(doors, "n1")
            put_out(doors, "n1")
            await until_let_in(doors, "n1", let_in=False)
            for _ in range(3):
                assert not await comes_in(doors, "n1")
                assert await comes_in(doors, "n2")
                assert await comes_in(doors, "n3")
            await honest.publish(topics.node_topic(LAB, "n2", "event"), b"still here")
            await until(lambda: (topics.node_topic(LAB, "n2", "event"), b"still here") in heard, "n2's event")
            put_out(doors, "n3")  # a second list in the same second
            await until_let_in(doors, "n3", let_in=False)
            assert await comes_in(doors, "n2")
            doors.authority.issue("node", "n1", hosts=["127.0.0.1"], readmit=True)
            doors.rules.write_text(rules.agents_acl(LAB, doors.authority.let_in("node"), CONTROLLERS))
            doors.broker.send_signal(signal.SIGHUP)
            await until_let_in(doors, "n1", let_in=True)

    asyncio.run(work())
    lines = {  # the second line is of a broker that accepted the connection late
        (SOMEBODY, ActKind.REFUSED_CONNECTION, f"from 127.0.0.1{port}: certificate verify failed")
        for port in (f" on port {doors.agent_port}", "")
    }
    wait_until(lambda: lines & seen(doors), "a log line about the act")


def test_a_connection_of_before_says_and_hears_nothing_more(doors: Doors) -> None:
    """Another connection in its name would end its own, so n3 shows whether the broker has read the list."""

    async def work() -> None:
        heard: list[bytes] = []
        told: list[bytes] = []

        async def hear(topic: str, payload: bytes) -> None:
            heard.append(payload)

        async def hear_as_thief(topic: str, payload: bytes) -> None:
            told.append(payload)

        async with (
            asyncio.timeout(HANG_S),
            MqttBus(doors.controller(), "alice", keep_session=False) as controller,
            MqttBus(doors.agent("n1"), "n1", keep_session=False) as thief,
        ):
            kept = thief._client
            await controller.subscribe(topics.node_topic(LAB, topics.ANY, "event"), hear)
            await thief.subscribe(topics.lease_topic(LAB), hear_as_thief)
            await thief.publish(topics.node_topic(LAB, "n1", "event"), b"before")
            await until(lambda: b"before" in heard, "its event")
            await controller.publish(topics.lease_topic(LAB), b"no secret")
            await until(lambda: b"no secret" in told, "the lease")
            doors.authority.revoke("node", "n1")
            put_out(doors, "n3")
            await until_let_in(doors, "n3", let_in=False)
            await thief.publish(topics.node_topic(LAB, "n1", "event"), b"after")
            await controller.publish(topics.lease_topic(LAB), b"secret")
            async with MqttBus(doors.agent("n2"), "n2", keep_session=False) as honest:
                await honest.subscribe(topics.lease_topic(LAB), hear_as_thief)
                await controller.publish(topics.lease_topic(LAB), b"for n2")
                await until(lambda: b"for n2" in told, "the lease at n2")
                await honest.publish(topics.node_topic(LAB, "n2", "event"), b"end")
            await until(lambda: b"end" in heard, "the last event")
            assert thief.connected.is_set()
            assert thief._client is kept, "the attempt used its earlier connection"
            assert (heard, told) == ([b"before", b"end"], [b"no secret", b"for n2"])

    asyncio.run(work())
    line = f"a message on {topics.node_topic(LAB, 'n1', 'event')}"
    wait_until(lambda: ("n1", ActKind.DENIED_PUBLISH, line) in seen(doors), "a log line about the act")


@pytest.mark.parametrize("parted_before", [False, True])
def test_the_lab_is_told_also_where_the_rules_name_the_node_no_more(doors: Doors, *, parted_before: bool) -> None:
    """As after a first command that reached the broker's machine, but was killed before it reached the broker."""

    async def work() -> None:
        told: list[NodeStatus] = []
        heard: list[bytes] = []

        async def hear(topic: str, payload: bytes) -> None:
            told.append(decode(NodeStatus, payload, topic))

        async def hear_as_thief(topic: str, payload: bytes) -> None:
            heard.append(payload)

        topic = topics.node_topic(LAB, "n1", "status")
        there = encode(NodeStatus(node="n1", online=True))
        async with (
            asyncio.timeout(HANG_S),
            MqttBus(doors.controller(), "alice", keep_session=False) as controller,
            MqttBus(doors.agent("n1"), "n1", Presence(topic, lambda: there, there, there), keep_session=False) as thief,
        ):
            await controller.subscribe(topic, hear)
            await thief.subscribe(topics.lease_topic(LAB), hear_as_thief)
            await until(lambda: told and told[-1].online, "its presence")
            doors.authority.revoke("node", "n1")
            put_out(doors, "n3")
            await until_let_in(doors, "n3", let_in=False)
            if parted_before:
                doors.authority.stand_in("n1", doors.authority.folder.parent / "stand-in")
                doors.authority.revoke("node", "n1")
            doors.rules.write_text(rules.agents_acl(LAB, doors.authority.let_in("node"), CONTROLLERS, "n1"))
            doors.broker.send_signal(signal.SIGHUP)
            url = f"mqtts://{doors.address}:{doors.agent_port}"
            assert await asyncio.to_thread(say_farewell, doors.authority, url, "n1") == ""
            await until(lambda: told[-1].reason == "its certificate was revoked", "word of that")
            await until(lambda: not thief.connected.is_set(), "the end of its connection")
            assert doors.authority.revoke("node", "n1").new == 1
            assert heard == []

    asyncio.run(work())


def test_the_connection_that_a_revoked_node_has_is_ended_and_the_lab_is_told(doors: Doors) -> None:
    async def work() -> None:
        told: list[NodeStatus] = []

        async def hear(topic: str, payload: bytes) -> None:
            told.append(decode(NodeStatus, payload, topic))

        topic = topics.node_topic(LAB, "n1", "status")
        there = encode(NodeStatus(node="n1", online=True))
        presence = Presence(topic, lambda: there, there, there)
        async with (
            asyncio.timeout(HANG_S),
            MqttBus(doors.controller(), "alice", keep_session=False) as controller,
            MqttBus(doors.agent("n2"), "n2", keep_session=False) as honest,
            MqttBus(doors.agent("n1"), "n1", presence, keep_session=False) as thief,
        ):
            kept = honest._client
            await controller.subscribe(topic, hear)
            await until(lambda: told and told[-1].online, "its presence")
            doors.authority.revoke("node", "n1")
            doors.broker.send_signal(signal.SIGHUP)  # its rules still name the node
            url = f"mqtts://{doors.address}:{doors.agent_port}"
            assert await asyncio.to_thread(say_farewell, doors.authority, url, "n1") == ""
            await until(lambda: not thief.connected.is_set(), "the end of its connection")
            await until(lambda: told[-1].reason == "its certificate was revoked", "word of that")
            assert doors.authority.revoke("node", "n1").new == 1, "the one used to disconnect it"
            put_out(doors, "n1")
            await until_let_in(doors, "n1", let_in=False)
            assert honest._client is kept

    asyncio.run(work())


def test_a_broker_that_cannot_be_reached_for_a_farewell_is_told(authority: Authority) -> None:
    assert "connection refused" in say_farewell(authority, "mqtts://127.0.0.1:9", "n1")
    assert "expected mqtts://" in say_farewell(authority, "mqtt://127.0.0.1:9", "n1")
    assert "no such file" in say_farewell(authority, "mqtts://127.0.0.1:9", "n9")


def test_a_tls_session_of_before_is_not_resumed(doors: Doors) -> None:
    folder = doors.authority.folder / "nodes/n1"
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")

    def talk(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
        """Connect by MQTT 3.1.1 and return the broker's CONNACK, empty if it closes the connection."""
        name = b"dfrs.probe"
        body = b"\x00\x04MQTT\x04\x02\x00\x3c" + len(name).to_bytes(2) + name
        with (
            socket.create_connection(("127.0.0.1", doors.agent_port), HANG_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as wrapped,
        ):
            try:
                wrapped.sendall(b"\x10" + bytes([len(body)]) + body)
                return wrapped.recv(4), wrapped.session
            except (ssl.SSLError, ConnectionError):
                return b"", wrapped.session

    greeting, session = talk(None)
    assert greeting == b"\x20\x02\x00\x00"
    put_out(doors, "n1")
    wait_until(lambda: talk(None)[0] == b"", "a broker that has read the list")
    assert talk(session)[0] == b""


def test_agents_refuse_a_revoked_node_without_a_restart(authority: Authority) -> None:
    """Test with the TLS contexts of agents' image servers, and of their clients."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def work() -> None:
        nodes = authority.folder / "nodes"
        contexts = {name: client_context(nodes / name, "peers.pem") for name in ("n1", "n3")}
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=server_context(nodes / "n2"))
        port = server.sockets[0].getsockname()[1]

        async def answers(name: str) -> bool:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=contexts[name])
                writer.write(b"?\n")
                answer = await reader.readline()
            except (ssl.SSLError, ConnectionError):
                return False
            writer.close()
            return answer == b"?\n"

        async with asyncio.timeout(HANG_S), server:
            assert await answers("n1")
            assert await answers("n3")
            authority.revoke("node", "n1")
            assert not await answers("n1")
            assert await answers("n3")
            authority.revoke("node", "n2")
            assert not await answers("n3"), "no image is fetched from a revoked node"

    asyncio.run(work())


def test_an_image_server_gives_out_no_session_that_could_be_resumed(authority: Authority) -> None:
    assert server_context(authority.folder / "nodes/n2").num_tickets == 0


@pytest.mark.parametrize("spoil", [lambda path: path.write_text("no list"), lambda path: path.write_bytes(b"\xff")])
def test_a_broken_list_is_told_and_the_one_before_goes_on_counting(
    authority: Authority, spoil: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    folder = authority.folder / "nodes/n2"
    context = server_context(folder)
    spoil(folder / "peers.crl")
    with pytest.raises(UserError, match=r"nodes/n2/peers\.crl: expected a revocation list of `testbed ca`"):
        server_context(folder)
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    assert "peers.crl: cannot be read, the previous list stays in force" in caplog.text
    assert context.verify_flags & ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
