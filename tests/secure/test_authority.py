"""A lab's own certificates: the certificates of each party, their renewal, and refusals."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509

from testbed.bus.tls import client_context, server_context
from testbed.cli.ca import ca
from testbed.errors import UserError
from testbed.lab.secure.authority import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca", "lab-1")


def test_each_party_gets_what_it_needs_and_no_more(authority: Authority) -> None:
    broker, _ = authority.issue("broker", hosts=["head.example", "192.0.2.1"])
    node, _ = authority.issue("node", "n1", hosts=["192.0.2.11"])
    controller, _ = authority.issue("controller", "alice")
    assert {path.name for path in broker.folder.iterdir()} == {
        "cert.pem", "key.pem", "agents-ca.pem", "agents-ca.crl", "controllers-ca.pem", "controllers-ca.crl",
    }  # fmt: skip
    own = {"cert.pem", "key.pem", "ca.pem", "ca.crl"}
    assert {path.name for path in node.folder.iterdir()} == own | {"peers.pem", "peers.crl"}
    assert {path.name for path in controller.folder.iterdir()} == own
    names = [
        x509.load_pem_x509_certificate((held.folder / "cert.pem").read_bytes()).subject.rfc4514_string()
        for held in (broker, node, controller)
    ]
    assert names == ["CN=broker", "CN=n1", "CN=controller.alice"]
    for path in authority.folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, f"{path} is for its owner only"
    for held in (node, controller):
        assert isinstance(client_context(held.folder), ssl.SSLContext)
    assert server_context(node.folder).verify_mode == ssl.CERT_REQUIRED


def test_issuing_again_changes_nothing_until_the_end_nears_or_hosts_change(authority: Authority) -> None:
    first, made = authority.issue("node", "n1", hosts=["192.0.2.11"], days=60)
    assert made
    assert 59 < first.days_left <= 60
    cert = (first.folder / "cert.pem").read_bytes()
    again, made = authority.issue("node", "n1", hosts=["192.0.2.11"])
    assert not made
    assert again == first or again.days_left < first.days_left
    assert (first.folder / "cert.pem").read_bytes() == cert
    renewed, made = authority.issue("node", "n1", hosts=["192.0.2.11"], renew_before_days=90)
    assert made
    assert renewed.days_left > 300
    moved, made = authority.issue("node", "n1", hosts=["192.0.2.12"])
    assert made
    assert moved.hosts == ("192.0.2.12",)


def test_an_authority_is_one_labs(authority: Authority) -> None:
    assert Authority.create(authority.folder, "lab-1").lab == "lab-1"
    with pytest.raises(UserError, match="authority of lab lab-1, not of lab-2"):
        Authority.create(authority.folder, "lab-2")
    with pytest.raises(UserError, match="no authority of a lab is there; make one: testbed ca init"):
        Authority(authority.folder / "nowhere")


@pytest.mark.parametrize("name", ["../n1", "n1/..", "N1", "controller.x", ""])
def test_names_that_could_pass_for_others_are_refused(authority: Authority, name: str) -> None:
    with pytest.raises(UserError, match=r"node = .*: expected 1 to 63 of a-z"):
        authority.issue("node", name)
    assert list(authority.held()) == []


@pytest.mark.parametrize("host", ["", "a b", "-x", "http://x", "a" * 300])
def test_hosts_are_checked(authority: Authority, host: str) -> None:
    with pytest.raises(UserError, match=r"host = .*: expected a name or an address"):
        authority.issue("node", "n1", hosts=[host])


def test_a_broker_needs_a_host(authority: Authority) -> None:
    with pytest.raises(UserError, match="broker: expected at least one name or address"):
        authority.issue("broker")


def test_a_key_that_others_may_read_is_not_used(authority: Authority) -> None:
    held, _ = authority.issue("node", "n1")
    (held.folder / "key.pem").chmod(0o644)
    with pytest.raises(UserError, match="others may read it: expected chmod 600"):
        client_context(held.folder)
    with pytest.raises(UserError, match=r"ca\.pem: no such file"):
        client_context(held.folder / "nowhere")


def test_the_commands_of_the_help_text_work_and_are_idempotent(tmp_path: Path) -> None:
    folder, out = tmp_path / "certificates", tmp_path / "mosquitto"
    commands = [
        ["init", str(folder), "--lab", "lab-1"],
        ["issue", str(folder), "broker", "--host", "head.example"],
        ["issue", str(folder), "node", "n1", "--host", "192.0.2.11"],
        ["issue", str(folder), "controller", "alice"],
        ["broker-files", str(folder), "--out", str(out)],
        ["list", str(folder)],
    ]
    for told in (("created", "written"), ("exists already", "unchanged")):
        for command in commands:
            result = CliRunner().invoke(ca, command, standalone_mode=False, catch_exceptions=False)
            assert result.return_value == 0
            if command[0] != "list":
                assert any(word in result.output for word in told), result.output
    assert result.output.splitlines()[0].startswith("broker: 39")
    assert "user n1" in (out / "agents.acl").read_text()
    assert "user controller.alice" in (out / "controllers.acl").read_text()
    with pytest.raises(UserError, match="node: expected a name"):
        CliRunner().invoke(ca, ["issue", str(folder), "node"], standalone_mode=False, catch_exceptions=False)
