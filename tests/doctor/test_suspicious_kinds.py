"""Each kind of suspicious act that agents, the broker and controllers log is a finding of `testbed doctor --lab`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from node_agent.claims import own_claim
from node_agent.drivers.protocol import NodeBudget
from testbed.bus import topics
from testbed.bus.suspicious_acts import FILE, MEANINGS, Act, ActFile, ActKind, plain
from testbed.cli.doctor import doctor
from testbed.lab.doctor import suspicious
from testbed.lab.secure.broker_log import NAMESAKES

LAB = "lab-1"
HELLO = "New client connected from 127.0.0.1:5 as n1 (p5, c1, k60, u'n1')."
TAKES = "Client n1 already connected, closing old connection."
BROKER = {  # lines as Mosquitto writes them, and the act and party of each
    ActKind.DENIED_PUBLISH: (["Denied PUBLISH from n1 (d0, q1, r0, m4, 'a/n2/event', ... (1 bytes))"], "n1"),
    ActKind.FOREIGN_SUBSCRIPTION: (["Received SUBSCRIBE from n1", "\t# (QoS 1)"], "n1"),
    ActKind.NAMESAKE: ([TAKES] * (NAMESAKES + 1), "n1"),
    ActKind.FLOOD: (["Client n1 disconnected due to oversize packet."], "n1"),
    ActKind.REFUSED_CONNECTION: (
        ["New connection from 192.0.2.9:5 on port 8883.", "OpenSSL Error[0]: error:0A000086:SSL routines::bad"],
        "somebody",
    ),
}


def findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str = "") -> list[str]:
    """Return the doctor's findings about the lab, without those about this machine."""
    monkeypatch.setattr("testbed.cli.bodies.doctor.examine", lambda *_: iter(suspicious.agents()))
    (tmp_path / "log").write_text(log)
    arguments = ["--lab", LAB, "--broker-log", str(tmp_path / "log"), "--runs", str(tmp_path / "runs"), "--json"]
    result = CliRunner().invoke(doctor, arguments, standalone_mode=False, catch_exceptions=False)
    found = json.loads(result.stdout)["findings"]
    return [each["found"] for each in found if each["severity"] == "warning"]


@pytest.fixture(autouse=True)
def claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "claims"
    folder.mkdir()
    monkeypatch.setenv("DFRS_CLAIMS_DIR", str(folder))
    return folder


@pytest.mark.parametrize("kind", BROKER)
def test_what_the_broker_logs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: ActKind) -> None:
    lines, who = BROKER[kind]
    log = "".join(f"{int(time.time())}: {line}\n" for line in (HELLO, *lines))
    (told,) = findings(tmp_path, monkeypatch, log)
    assert told.startswith(f"{who}: {kind.value}")
    assert MEANINGS[kind] in told


def test_a_client_id_that_is_not_let_in_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    came = "New connection from 192.0.2.9:5 on port 8884."
    lines = (came, "Client <unknown> disconnected, not authorised.", came, "Client n1 disconnected, not authorised.")
    told = findings(tmp_path, monkeypatch, "".join(f"{int(time.time())}: {line}\n" for line in lines))
    assert sorted(each.partition(" (")[0] for each in told) == [
        "n1: refused-connection: not authorised",
        "somebody: refused-connection: from 192.0.2.9 on port 8884: not authorised",
    ]


@pytest.mark.parametrize("kind", ActKind)
def test_what_an_agent_logs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claims: Path, kind: ActKind
) -> None:
    state = tmp_path / "n2"
    state.mkdir()
    budget = NodeBudget("n2", 1.0, 1000, state, state / "images", "127.0.0.1", "dfrs")
    claim = own_claim(budget, LAB, "process", {}, "mqtt://127.0.0.1", None, ephemeral=False)
    (claims / claim.file).write_bytes(msgspec.json.encode(claim))
    ActFile(state / FILE).append([Act("n2", kind, "x", time.time(), 3)])
    (told,) = findings(tmp_path, monkeypatch)
    assert told.startswith(f"n2: {kind.value} (3 times): x ({MEANINGS[kind]})")


@pytest.mark.parametrize("kind", ActKind)
def test_what_a_controller_logs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: ActKind) -> None:
    run = tmp_path / "runs/one"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text(json.dumps({"scenario": {"lab": LAB}}))
    entry = {"kind": "suspicious", "t_s": 1.0, "trace_s": 1.0, "acts": plain([Act("n1", kind, "x", time.time(), 2)])}
    (run / "events.jsonl").write_text(json.dumps(entry) + "\n")
    (told,) = findings(tmp_path, monkeypatch)
    assert told.startswith(f"n1: {kind.value} (2 times): x ({MEANINGS[kind]})")


def test_an_honest_subscription_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (HELLO, "Received SUBSCRIBE from n1", f"\t{topics.node_topic(LAB, 'n1', 'command')} (QoS 1)")
    assert findings(tmp_path, monkeypatch, "".join(f"{int(time.time())}: {line}\n" for line in lines)) == []
