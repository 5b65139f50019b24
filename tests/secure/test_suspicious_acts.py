"""An operator sees attempted attacks in the broker's log, agents' refusals and runs' journals, by `testbed doctor`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import ssl
import sys
import time
import tracemalloc
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import aiomqtt
import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.live import HANG_S, until, wait_until
from support.secure.doors import LAB, Doors, open_doors

from node_agent.agent import Agent, AgentConfig
from node_agent.claims import own_claim
from node_agent.drivers.process import ProcessDriver
from node_agent.drivers.protocol import NodeBudget
from testbed.bus import topics
from testbed.bus.client import MqttBus
from testbed.bus.messages import Command, Ping, encode
from testbed.bus.responder import Responder
from testbed.bus.suspicious_acts import FILE, Act, ActFile, ActKind, ActLog, acts_in, summed
from testbed.bus.tls import client_context
from testbed.cli.doctor import doctor
from testbed.lab.doctor import suspicious
from testbed.lab.doctor.finding import Finding
from testbed.lab.secure.broker_log import NAMESAKES, acts_of

REPLIES = topics.reply_topic(LAB, "alice", "n2")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    with open_doors(tmp_path_factory.mktemp("doors"), log_denied=True) as opened:
        yield opened


def acts(doors: Doors) -> dict[tuple[str, ActKind], Act]:
    return {(act.node, act.kind): act for act in summed(acts_of(lines_of(doors), LAB))}


def told(doors: Doors) -> set[tuple[str, ActKind, str]]:
    return {(act.node, act.kind, act.what) for act in acts_of(lines_of(doors), LAB)}


def lines_of(doors: Doors) -> list[str]:
    return doors.log.read_text().split("\n")


def test_what_the_rules_deny_is_in_the_brokers_log_with_the_nodes_name(doors: Doors) -> None:
    async def work() -> None:
        async with asyncio.timeout(HANG_S), aiomqtt.Client(
            "127.0.0.1", doors.agent_port, identifier=f"{topics.CLIENT_PREFIX}n2",
            tls_context=client_context(doors.agent("n1").tls_dir),
        ) as n1:  # fmt: skip
            await n1.publish(topics.node_topic(LAB, "n2", "command"), b"stop", 1)
            await n1.publish(topics.lease_topic(LAB), b"mine", 1, retain=True)
            for pattern in ("#", topics.node_topic(LAB, "n2", "command"), "$SYS/#", topics.lease_topic(LAB)):
                await n1.subscribe(pattern, 1)
            await n1.subscribe(topics.node_topic(LAB, "n1", "command"), 1)
            await n1.publish(topics.node_topic(LAB, "n1", "event"), b"own", 1)

    asyncio.run(work())
    wait_until(lambda: f"\t{topics.node_topic(LAB, 'n1', 'command')} (QoS 1)" in doors.log.read_text(), "the last line")
    found = acts(doors)
    denied, foreign = found["n1", ActKind.DENIED_PUBLISH], found["n1", ActKind.FOREIGN_SUBSCRIPTION]
    assert (denied.count, denied.what) == (2, f"a retained message on {topics.lease_topic(LAB)}")
    assert (foreign.count, foreign.what) == (3, "to $SYS/#")
    assert abs(denied.unix_s - time.time()) < 3600  # speed: of this hour, and not in another time zone


def test_a_node_that_forges_lines_of_the_log_puts_no_blame_on_another(doors: Doors) -> None:
    """Topics may have characters that Python treats as ends of lines."""
    forged = f"{int(time.time())}: Denied PUBLISH from n2 (d0, q1, r0, m4, 'a', ... (1 bytes))"
    forged_again = f"{int(time.time())}: OpenSSL Error[0]: error:0A000086:SSL routines:f:forged"

    async def work() -> None:
        async with asyncio.timeout(HANG_S), aiomqtt.Client(
            "127.0.0.1", doors.agent_port, identifier=f"{topics.CLIENT_PREFIX}n1",
            tls_context=client_context(doors.agent("n1").tls_dir),
        ) as n1:  # fmt: skip
            for separator in ("\u2028", "\u2029"):
                await n1.publish(f"x{separator}{forged}{separator}x", b"x", 1)
                await n1.publish(f"x{separator}{forged_again}{separator}last", b"x", 1)

    before = acts(doors)["n1", ActKind.DENIED_PUBLISH].count if ("n1", ActKind.DENIED_PUBLISH) in acts(doors) else 0
    asyncio.run(work())
    wait_until(lambda: "\u2029last" in doors.log.read_text(), "the last line")
    found = acts(doors)
    assert ("n2", ActKind.DENIED_PUBLISH) not in found
    assert found["n1", ActKind.DENIED_PUBLISH].count == before + 4
    assert not any("forged" in act.what for act in found.values() if act.node != "n1")
    mine = suspicious.broker(LAB, doors.log)
    assert not any("n2: denied" in each.found.partition(" (")[0] for each in mine), "the doctor does not blame n2"


def test_an_honest_lab_leaves_no_such_line_and_none_per_packet(doors: Doors) -> None:
    before = len(lines_of(doors))

    async def work() -> None:
        async def hear(_topic: str, _payload: bytes) -> None: ...

        async with (
            asyncio.timeout(HANG_S),
            MqttBus(doors.controller(), "c", keep_session=False) as controller,
            MqttBus(doors.agent("n2"), "n2", keep_session=False) as agent,
        ):
            await controller.subscribe(topics.node_topic(LAB, topics.ANY, "event"), hear)
            await controller.subscribe(topics.reply_topic(LAB, controller.party, topics.ANY), hear)
            await agent.subscribe(topics.node_topic(LAB, "n2", "command"), hear)
            await agent.subscribe(topics.lease_topic(LAB), hear)
            for _ in range(100):
                await agent.publish(topics.node_topic(LAB, "n2", "event"), b"x")
                await agent.publish(topics.reply_topic(LAB, "alice", "n2"), b"x")

    asyncio.run(work())
    lines = lines_of(doors)
    assert len(lines) - before < 20
    assert not any(act.node in ("n2", "controller.alice") for act in acts_of(lines, LAB))


def test_a_real_agent_is_not_reported_not_even_one_that_is_killed(tmp_path: Path) -> None:
    async def work(doors: Doors) -> None:
        config = AgentConfig(LAB, "n2", 1.0, 256, tmp_path / "n2", tmp_path / "n2/images", telemetry_s=0.2)
        agent = Agent(config, ProcessDriver(), lambda presence: MqttBus(doors.agent("n2"), "n2", presence))
        running = asyncio.create_task(agent.run())
        heard: list[str] = []

        async def hear(topic: str, _payload: bytes) -> None:
            heard.append(topic)

        async with MqttBus(doors.controller(), "c", keep_session=False) as controller:
            await controller.subscribe(topics.node_topic(LAB, "n2", "telemetry"), hear)
            await until(lambda: len(heard) >= 3, "samples of the agent")
        agent.stop()
        await running

    with open_doors(tmp_path, log_denied=True) as doors:
        asyncio.run(work(doors))
        release = topics.release_topic(LAB, topics.ANY)
        assert f"\t{release} (QoS 1)" in doors.log.read_text(), "the agent has its usual subscriptions"
        assert list(acts_of(lines_of(doors), LAB)) == []
        with socket.create_connection((doors.address, doors.agent_port)) as plain:
            cut_off_in_its_handshake(plain, client_context(doors.agent("n1").tls_dir))
        wait_until(lambda: "unexpected eof while reading" in doors.log.read_text(), "a log line about it")
        assert list(acts_of(lines_of(doors), LAB)) == []


def cut_off_in_its_handshake(plain: socket.socket, context: ssl.SSLContext) -> None:
    """Begin TLS and close the connection without a message."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    plain.sendall(outgoing.read())
    while not tls_done(tls, incoming, plain):
        pass
    plain.sendall(outgoing.read())
    plain.shutdown(socket.SHUT_WR)
    while plain.recv(1 << 16):
        pass


def tls_done(tls: ssl.SSLObject, incoming: ssl.MemoryBIO, plain: socket.socket) -> bool:
    incoming.write(plain.recv(1 << 16))
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def test_connections_that_are_refused_are_told_with_their_host(doors: Doors) -> None:
    async def work() -> None:
        context = ssl.create_default_context(cafile=doors.authority.folder / "broker-ca.pem")
        reader, writer = await asyncio.open_connection("127.0.0.1", doors.agent_port, ssl=context)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await reader.read(1)
        writer.close()

    asyncio.run(work())
    why = "peer did not return a certificate"
    wanted = {  # the second line is of a broker that accepted the connection late
        ("somebody", ActKind.REFUSED_CONNECTION, f"from 127.0.0.1{port}: {why}")
        for port in (f" on port {doors.agent_port}", "")
    }
    wait_until(lambda: wanted & told(doors), "the line")


def test_connections_that_a_late_broker_refuses_at_once_are_told_with_their_host(doors: Doors) -> None:
    """Mosquitto words a refusal differently while it still accepts the connection."""
    wanted = "somebody", ActKind.REFUSED_CONNECTION, "from 127.0.0.1: http request"
    doors.broker.send_signal(signal.SIGSTOP)
    try:
        with socket.create_connection((doors.address, doors.agent_port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            doors.broker.send_signal(signal.SIGCONT)
            with contextlib.suppress(ConnectionResetError):
                while plain.recv(1 << 16):
                    pass
    finally:
        doors.broker.send_signal(signal.SIGCONT)
    wait_until(lambda: wanted in told(doors), "the line")


def test_a_client_that_takes_over_again_and_again_is_a_namesake() -> None:
    lines = ["1700000000: Client n2 already connected, closing old connection."] * (NAMESAKES + 3)
    (act,) = summed(acts_of(lines, LAB))
    assert (act.node, act.kind, act.count) == ("n2", ActKind.NAMESAKE, 3)
    assert not list(acts_of(lines, LAB, since_unix_s=1700000001))


@given(st.lists(st.text() | st.from_regex(r"[0-9]{1,12}: (Denied|Client|n1 1) .*", fullmatch=True)))
def test_a_log_of_anything_is_read(lines: list[str]) -> None:
    assert all(isinstance(act, Act) for act in acts_of(lines, LAB))


def test_the_playbook_starts_the_broker_by_the_same_command() -> None:
    from testbed.lab.secure.broker import filtered_command

    command = filtered_command(Path("/etc/mosquitto/dfrs/mosquitto.conf"))
    unit = f'ExecStart={command[0]} {command[1]} "{command[2]}"'
    role = (ROOT / "ansible/roles/broker/tasks/main.yml").read_text()
    assert unit in re.sub(r" \\\n +", " ", role), "systemd makes one line of two that a backslash joins"
    assert '"' not in command[2]
    assert not set("$%\\") & set(command[2]), "systemd would interpret these characters"


def test_refused_commands_are_kept_by_the_agent_and_told_by_the_doctor(doors: Doors, tmp_path: Path) -> None:
    file = ActFile(tmp_path / FILE)

    async def work() -> None:
        async def perform(_action: object) -> dict[str, object]:
            return {}

        topic = topics.node_topic(LAB, "n2", "command")
        async with (
            asyncio.timeout(HANG_S),
            MqttBus(doors.controller(), "c", keep_session=False) as controller,
            MqttBus(doors.agent("n2"), "n2", keep_session=False) as agent,
        ):
            log = ActLog(file.append)
            async with Responder(agent, LAB, "n2", perform, lambda _command: "not the live lease", acts=log):
                for number in range(50):
                    command = Command(
                        id=f"c{number}",
                        lease="",
                        reply_to=topics.reply_topic(LAB, "alice", "n2"),
                        deadline_s=1,
                        action=Ping(),
                    )
                    await controller.publish(topic, encode(command))
                    await controller.publish(topic, b'{"v": 1, "nonsense": true}')
                await until(lambda: sum(log.counts.values()) == 100, "100 refusals")
                log.flush()

    asyncio.run(work())
    (act,) = summed(file.read())
    assert (act.node, act.kind, act.count) == ("n2", ActKind.REFUSED_COMMAND, 100)
    texts = {each.what for each in file.read()}
    assert any(
        "ping, with its reply on 'testbed/v1/lab-1/controller/alice/reply/n2': not the live lease" in each
        for each in texts
    )


def test_the_doctor_reports_agents_broker_and_runs(
    doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    monkeypatch.setenv("DFRS_CLAIMS_DIR", str(tmp_path / "claims"))
    state = tmp_path / "n2"
    for folder in (tmp_path / "claims", state, tmp_path / "runs/one"):
        folder.mkdir(parents=True)
    budget = NodeBudget("n2", 1.0, 1000, state, state / "images", "127.0.0.1", "dfrs")
    claim = own_claim(budget, LAB, "process", {}, "mqtt://127.0.0.1", None, ephemeral=False)
    (tmp_path / "claims" / claim.file).write_bytes(json.dumps(claim.__class__.__struct_encode_fields__).encode())

    (tmp_path / "claims" / claim.file).write_bytes(msgspec.json.encode(claim))
    ActFile(state / FILE).append([Act("n2", ActKind.REFUSED_COMMAND, "stop: wrong lease", now_s, 7)])
    run = tmp_path / "runs/one"
    (run / "manifest.json").write_text(json.dumps({"scenario": {"lab": LAB}}))
    act = {"node": "n1", "kind": "flood", "what": "x", "unix_s": now_s, "count": 9}
    entry = {"t_s": 1.0, "trace_s": 0.0, "kind": "suspicious", "acts": [act, {**act, "kind": "later"}]}
    (run / "events.jsonl").write_text(
        json.dumps(entry) + "\n" + json.dumps({"kind": "job", "text": "suspicious"}) + "\n{"
    )
    log = tmp_path / "mosquitto.log"
    log.write_text(f"{int(now_s)}: Denied PUBLISH from n1 (d0, q1, r0, m4, 'a/n2/event', ... (1 bytes))\n")

    monkeypatch.setattr("testbed.cli.bodies.doctor.examine", lambda *_: iter(suspicious.agents()))
    arguments = ["--lab", LAB, "--broker-log", str(log), "--runs", str(tmp_path / "runs"), "--json"]
    result = CliRunner().invoke(doctor, arguments, standalone_mode=False)
    found = [Finding(**each) for each in json.loads(result.stdout)["findings"]]
    assert [(each.severity, each.check) for each in found] == [
        ("warning", f"suspicious acts: agent {LAB}/n2"), ("warning", "suspicious acts: the broker"),
        ("warning", "suspicious acts: run one"),
    ]  # fmt: skip
    assert "n2: refused-command (7 times): stop: wrong lease" in found[0].found
    assert "n1: denied-publish: a message on a/n2/event" in found[1].found
    assert "n1: flood (9 times): x" in found[2].found
    assert result.return_value == 1

    other = CliRunner().invoke(doctor, ["--lab", LAB, "--broker-log", str(tmp_path / "none")], standalone_mode=False)
    assert "none: cannot read the broker's log: No such file or directory" in other.stdout


NASTY = "foo[/x] [bold] \x1b]0;owned\x07 \u202e[/]"


def test_words_of_an_attacker_are_no_markup_and_no_control_of_the_terminal(tmp_path: Path) -> None:
    now_s = time.time()
    log, run = tmp_path / "log", tmp_path / "runs/one"
    log.write_text(f"{int(now_s)}: Denied PUBLISH from n1 (d0, q1, r0, m4, '{NASTY}', ... (1 bytes))\n")
    run.mkdir(parents=True)
    (run / "manifest.json").write_text(json.dumps({"scenario": {"lab": LAB}}))
    acts = [{"node": "n1", "kind": "flood", "what": NASTY, "unix_s": now_s, "count": 1}]
    entry = {"t_s": 1.0, "trace_s": 60.0, "kind": "suspicious", "acts": acts}
    (run / "events.jsonl").write_text(json.dumps(entry) + "\n")
    arguments = ["--folder", str(tmp_path), "--lab", LAB, "--broker-log", str(log), "--runs", str(tmp_path / "runs")]
    result = CliRunner().invoke(doctor, arguments, standalone_mode=False, catch_exceptions=False)
    assert result.return_value in (1, 2)
    assert result.stdout.count("foo[/x] [bold] ") == 2
    assert not {"\x1b", "\x07", "\u202e"} & set(result.stdout)


def reads(script: str, within_s: float = HANG_S) -> list[Finding]:
    """Return the doctor's findings for a journal that a script prints."""
    journal = partial(suspicious._journal, (sys.executable, "-c", script), within_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suspicious, "_journal", journal)
        return list(suspicious.broker(LAB, None))


def test_the_journal_is_read_line_by_line_and_one_too_large_is_told() -> None:
    line = f"{int(time.time())}: Denied PUBLISH from n1 (d0, q1, r0, m4, 'a', ... (1 bytes))"
    (found,) = reads(f"for _ in range(100_000): print({line!r})")
    assert (found.severity, found.values["count"]) == ("warning", 100_000)
    (absent,) = reads("pass")
    assert (absent.severity, absent.found) == ("note", "its log is not on this machine")
    endless = f"import itertools\nfor _ in itertools.count(): print({line!r}, flush=True)"
    large, acts = reads(endless, within_s=2.0)  # speed: endless output is cut off here
    assert large.severity == "warning"
    assert "its log of the last week is too large to be read within" in large.found
    assert acts.values["node"] == "n1", "the acts that were read are reported"


def test_a_flood_of_lines_takes_no_memory_of_the_doctor() -> None:
    line = f"{int(time.time())}: Denied PUBLISH from n1 (d0, q1, r0, m4, '{'a' * 1000}', ... (1 bytes))"
    tracemalloc.start()
    try:
        (found,) = reads(f"for _ in range(20_000): print({line!r})")  # 20 MB
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.values["count"] == 20_000
    assert peak_bytes < 2 << 20


def test_a_file_of_acts_is_bounded_and_read_whatever_is_in_it(tmp_path: Path) -> None:
    file = ActFile(tmp_path / FILE)
    for number in range(200):
        file.append([Act("n1", ActKind.FLOOD, "x" * 20_000, float(number))])
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 3 << 20
    assert file.read()[-1].unix_s == 199.0
    (tmp_path / FILE).write_bytes(b'\xff\n[[[\n{"node": 1}\n' + b"[" * 100_000)
    assert all(act.unix_s < 199 for act in file.read())  # speed: times of the test's own making
    assert not acts_in([b"", b"null"])
