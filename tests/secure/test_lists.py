"""Distribution of revocation lists to the machines of a lab: the lists of each, and unreachable machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import tomli_w
from click.testing import CliRunner, Result

from testbed.cli.ca import ca
from testbed.errors import UserError
from testbed.lab.remote import everywhere as ways
from testbed.lab.remote.hosts import Head, Host, Hosts, load_hosts
from testbed.lab.remote.shell import RemoteError
from testbed.lab.secure.authority import Authority
from testbed.lab.secure.revocation import revoked


class Machines:
    """Machines that are folders: uploads become files below a machine's root, commands are recorded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.away: set[str] = set()
        self.ran: list[tuple[str, ...]] = []
        self.farewells: list[tuple[str, str, bool]] = []
        self.why_not = ""
        self.killed = False
        self.deaf: set[str] = set()  # machines whose libvirtd does not read a list

    def everywhere(
        self, hosts: Hosts, chosen: list[Host], act: Callable[[Any], str], done: object = None
    ) -> list[ways.Outcome[str]]:
        found = []
        for host in chosen:
            try:
                if host.name in self.away:
                    raise RemoteError(host.name, f"ssh {host.ssh}", "connection refused")
                found.append(ways.Outcome(host, act(Machine(self, host))))
            except RemoteError as error:
                found.append(ways.Outcome(host, None, str(error)))
        return found

    def say_farewell(self, authority: Authority, broker: str, name: str) -> str:
        """Record the party to disconnect, and whether the broker then had the list, and only rules to disconnect."""
        listed = bool(revoked(self.path("head", "/etc/mosquitto/dfrs/certificates/agents-ca.crl")))
        rules = self.path("head", "/etc/mosquitto/dfrs/agents.acl").read_text()
        own = [line for line in rules.splitlines() if f"node/{name}/" in line]
        self.farewells.append((broker, name, listed and own == [f"topic write testbed/v1/lab-1/node/{name}/status"]))
        authority.stand_in(name, self.folder / "stand-in")
        if self.killed:
            raise KeyboardInterrupt
        return self.why_not

    def path(self, host: str, target: str) -> Path:
        path = self.folder / host / target.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class Machine:
    def __init__(self, machines: Machines, host: Host) -> None:
        self.machines, self.host = machines, host

    def run(self, *words: str, within_s: float = 0) -> str:
        self.machines.ran.append((self.host.name, *words))
        if words[0] == "sh" and self.host.name in self.machines.deaf:
            raise RemoteError(self.host.name, "sh", "exit code 1: libvirtd: it has not read its list: Base64")
        return self.machines.path(self.host.name, words[1]).read_text() if words[0] == "cat" else ""

    def put(self, source: Path, target: str, mode: int = 0o644) -> None:
        self.machines.path(self.host.name, target).write_bytes(source.read_bytes())

    def write(self, text: str, target: str, mode: int = 0o644) -> bool:
        self.machines.path(self.host.name, target).write_text(text)
        return True


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    made = Machines(tmp_path / "machines")
    monkeypatch.setattr("testbed.cli.bodies.revoked.everywhere", made.everywhere)
    monkeypatch.setattr("testbed.cli.bodies.revoked.say_farewell", made.say_farewell)
    made.path("head", "/etc/mosquitto/dfrs/mosquitto.conf").write_text("crlfile x\n")
    return made


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.create(tmp_path / "ca", "lab-1")
    made.issue("broker", hosts=["127.0.0.1"])
    for name in ("n1", "n2", "n3"):
        made.issue("node", name)
    return made


def hosts_file(tmp_path: Path, **more: object) -> Path:
    machines = [{"name": name, "ssh": f"root@{name}", "address": name, "cpus": 1.0, "memory_mib": 1}
                for name in ("n1", "n2", "n3", "of-no-certificate")]  # fmt: skip
    path = tmp_path / "hosts.toml"
    path.write_text(tomli_w.dumps({"lab": "lab-1", "broker": "mqtts://b", "hosts": machines, **more}))
    return path


def revoke(authority: Authority, path: Path, *words: str) -> Result:
    command = ["revoke", str(authority.folder), "node", "n1", "--hosts", str(path), *words]
    return CliRunner().invoke(ca, command, standalone_mode=False, catch_exceptions=False)


def refused(authority: Authority, path: Path, *words: str) -> tuple[str, str]:
    """Revoke n1, expect a user error, and return the output and the line of the error."""
    command = ["revoke", str(authority.folder), "node", "n1", "--hosts", str(path), *words]
    done = CliRunner().invoke(ca, command, standalone_mode=False)
    assert isinstance(done.exception, UserError), done.output
    return done.output, str(done.exception)


def test_the_list_goes_to_the_broker_and_every_other_node(
    machines: Machines, authority: Authority, tmp_path: Path
) -> None:
    path = hosts_file(tmp_path, head={"ssh": "root@head"})
    done = revoke(authority, path)
    assert done.return_value == 0, done.output
    assert "head: the broker has the list, and read it" in done.output
    assert "until they have the list" not in done.output
    assert "n1: its connection was ended" in done.output
    assert machines.farewells == [("mqtts://b", "n1", True)]
    assert len(revoked(machines.path("head", "/etc/mosquitto/dfrs/certificates/agents-ca.crl"))) == 2, "and ours"
    rules = machines.path("head", "/etc/mosquitto/dfrs/agents.acl").read_text()
    assert ("user n1" in rules, "user n2" in rules) == (False, True)
    assert ("head", "systemctl", "reload", "mosquitto") in machines.ran
    for name in ("n2", "n3"):
        assert len(revoked(machines.path(name, "/opt/dfrs-testbed/certificate/peers.crl"))) == 2
    assert not (machines.folder / "n1").exists(), "revoked nodes get no files"
    revoke(authority, path)
    assert len(machines.farewells) == 1, "a node is disconnected only once"
    assert not (machines.folder / "of-no-certificate").exists()


def test_a_node_that_is_away_is_told_and_reached_by_calling_again(
    machines: Machines, authority: Authority, tmp_path: Path
) -> None:
    path = hosts_file(tmp_path, head={"ssh": "root@head"})
    machines.away.add("n3")
    done = revoke(authority, path)
    assert done.return_value == 1
    assert "not reached: n3: ssh root@n3: connection refused" in done.output
    assert "until they have the list" in done.output
    machines.away.clear()
    told = json.loads(revoke(authority, path, "--json").output)
    assert (told["new"], told["failed"]) == (0, [])
    assert "n3: has the list" in told["reached"]


def test_a_file_of_another_lab_is_refused_before_anything_is_sent(
    machines: Machines, authority: Authority, tmp_path: Path
) -> None:
    path = hosts_file(tmp_path, lab="lab-2", head={"ssh": "root@head"})
    before = sorted(machines.folder.rglob("*"))
    said, error = refused(authority, path)
    assert error == (
        f"{path}: lab = 'lab-2': expected 'lab-1', the lab of {authority.folder}/lab.json; nothing was sent"
    ), error
    assert said.splitlines()[0] == "node n1: revoked, 1 certificate", "the revocation is in force here, and is reported"
    assert "until they have the list" in said
    assert len(revoked(authority.folder / "agents-ca.crl")) == 1
    assert (machines.ran, machines.farewells, sorted(machines.folder.rglob("*"))) == ([], [], before)
    said, error = refused(authority, path, "--json")
    told = json.loads(said)
    assert (told["new"], told["revoked"], told["reached"], told["failed"]) == (0, 1, [], [error])


def test_a_file_that_cannot_be_read_hides_no_revocation(
    machines: Machines, authority: Authority, tmp_path: Path
) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text("lab = ")
    said, error = refused(authority, path)
    assert f"{path}: not a TOML file" in error
    assert said.splitlines()[0] == "node n1: revoked, 1 certificate"
    assert machines.ran == []


def test_without_a_file_the_exit_code_says_that_nothing_was_sent(
    machines: Machines, authority: Authority, tmp_path: Path
) -> None:
    absent = tmp_path / "hosts.toml"
    why = f"{absent}: no such file: no machine has the list from this command"
    for count in (1, 0):
        done = revoke(authority, absent)
        assert done.return_value == 1
        assert f"not reached: {why}" in done.output.splitlines()
        assert "until they have the list" in done.output
        told = json.loads(revoke(authority, absent, "--json").output)
        assert (told["reached"], told["failed"]) == ([], [why])
        assert authority.farewell_due("n1"), count
    assert machines.ran == []


def test_a_node_with_a_certificate_that_the_file_does_not_name_is_told(
    machines: Machines, authority: Authority, tmp_path: Path
) -> None:
    authority.issue("node", "n4")
    path = hosts_file(tmp_path, head={"ssh": "root@head"})
    done = revoke(authority, path)
    assert done.return_value == 1
    assert f"not reached: n4: {path} does not name it: expected its machine there, or the list by hand" in done.output
    assert "n3: has the list" in done.output


@pytest.mark.parametrize("first", ["away", "silent", "killed", "no file"])
def test_a_farewell_that_could_not_be_said_is_said_when_called_again(
    machines: Machines, authority: Authority, tmp_path: Path, first: str
) -> None:
    path = hosts_file(tmp_path, head={"ssh": "root@head"})
    if first == "away":
        machines.away.add("head")
    elif first == "silent":
        machines.why_not = "broker mqtts://b: no answer within 5 s"
    machines.killed = first == "killed"
    if first == "killed":
        with pytest.raises((KeyboardInterrupt, click.Abort)):
            revoke(authority, path)
        assert authority.let_in("node") == ["n2", "n3"]
    else:
        assert revoke(authority, tmp_path / "absent.toml" if first == "no file" else path).return_value == 1
    assert authority.farewell_due("n1")
    machines.away.clear()
    machines.why_not, machines.killed = "", False
    said = len(machines.farewells)
    done = revoke(authority, path)
    assert done.return_value == 0, done.output
    assert "n1: its connection was ended" in done.output
    assert machines.farewells[said:] == [("mqtts://b", "n1", True)]
    rules = machines.path("head", "/etc/mosquitto/dfrs/agents.acl").read_text()
    assert "n1" not in rules, "the temporary rules are removed"
    assert not authority.farewell_due("n1")
    issued = {json.loads(line)["serial"] for line in (authority.folder / "issued.jsonl").read_text().splitlines()
              if json.loads(line)["name"] == "n1"}  # fmt: skip
    listed = revoked(machines.path("head", "/etc/mosquitto/dfrs/certificates/agents-ca.crl"))
    assert {int(each, 16) for each in issued} == set(listed), "all certificates of that name, even temporary ones"
    again = revoke(authority, path)
    assert (again.return_value, len(machines.farewells)) == (0, said + 1)


def test_a_node_that_was_let_in_again_gets_no_farewell(
    machines: Machines, authority: Authority, tmp_path: Path
) -> None:
    assert revoke(authority, tmp_path / "absent.toml").return_value == 1
    authority.issue("node", "n1", readmit=True)
    assert not authority.farewell_due("n1")
    assert machines.farewells == []


def test_whoever_trusts_a_revoked_broker_is_named(machines: Machines, authority: Authority, tmp_path: Path) -> None:
    authority.issue("controller", "alice")
    path = hosts_file(tmp_path, head={"ssh": "root@head"})
    done = CliRunner().invoke(
        ca, ["revoke", str(authority.folder), "broker", "--hosts", str(path)], standalone_mode=False
    )
    assert done.return_value == 1
    where = authority.folder / "controllers/alice/ca.crl"
    assert f"not reached: controller alice: expected {where} beside its certificate" in done.output
    assert machines.farewells == []


def test_a_connection_that_cannot_be_ended_is_told(machines: Machines, authority: Authority, tmp_path: Path) -> None:
    machines.why_not = "broker mqtts://b: no answer within 5 s"
    done = revoke(authority, hosts_file(tmp_path, head={"ssh": "root@head"}))
    assert done.return_value == 1
    assert "the connection of n1 stays open, but cannot send or receive: broker mqtts://b: no answer" in done.output


def test_a_broker_of_before_and_a_file_without_head_are_told(
    machines: Machines, authority: Authority, tmp_path: Path
) -> None:
    machines.path("head", "/etc/mosquitto/dfrs/mosquitto.conf").write_text("listener 8883\n")
    done = revoke(authority, hosts_file(tmp_path, head={"ssh": "root@head"}))
    assert done.return_value == 1
    assert "it has no crlfile: write it by `testbed ca broker-files`" in done.output
    done = revoke(authority, hosts_file(tmp_path))
    assert done.return_value == 1
    assert "hosts.toml: it has no [head]: expected the broker's machine" in done.output


def test_a_hypervisor_that_does_not_read_its_list_is_a_failure_until_it_does(
    machines: Machines, authority: Authority, tmp_path: Path
) -> None:
    path = hosts_file(tmp_path, head={"ssh": "root@head"})
    machines.deaf.add("n2")
    for _ in range(2):
        done = revoke(authority, path)
        assert done.return_value == 1
        assert "not reached: n2: sh: exit code 1: libvirtd: it has not read its list: Base64" in done.output
    machines.deaf.clear()
    assert revoke(authority, path).return_value == 0
    asked = [words[5:] for host, *words in machines.ran if host == "n2"]
    assert set(map(tuple, asked)) == {("n2", "n3")}, "connections of all others are ended"


def test_a_head_is_read_and_kept_by_the_file(tmp_path: Path) -> None:
    path = hosts_file(tmp_path, head={"ssh": "root@head", "reload": ["kill", "-HUP", "7"]})
    assert load_hosts(path).head == Head(ssh="root@head", reload=("kill", "-HUP", "7"))
    with pytest.raises(UserError, match=r"head\.ssh = 'root@-oProxyCommand=x'"):
        load_hosts(hosts_file(tmp_path, head={"ssh": "root@-oProxyCommand=x"}))
