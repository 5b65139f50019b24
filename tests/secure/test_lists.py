"""Lists of revoked certificates on their way to the machines of a lab: who gets which, and who cannot be reached."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from click.testing import CliRunner, Result

from testbed.cli.ca import ca
from testbed.errors import UserError
from testbed.remote import everywhere as ways
from testbed.remote.hosts import Head, Host, Hosts, load_hosts
from testbed.remote.shell import RemoteError
from testbed.secure import farewell
from testbed.secure.authority import Authority
from testbed.secure.revocation import revoked


class Machines:
    """Machines that are folders: what is put on one is a file below its root, commands are noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.away: set[str] = set()
        self.ran: list[tuple[str, ...]] = []
        self.farewells: list[tuple[str, str, bool]] = []
        self.why_not = ""

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
        """Note who is to be parted, and whether the broker had the list and the rules of before by then."""
        listed = bool(revoked(self.path("head", "/etc/mosquitto/dfrs/certificates/agents-ca.crl")))
        ruled = self.path("head", "/etc/mosquitto/dfrs/agents.acl").exists()
        self.farewells.append((broker, name, listed and not ruled))
        authority.stand_in(name, self.folder / "stand-in")
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
        return self.machines.path(self.host.name, words[1]).read_text() if words[0] == "cat" else ""

    def put(self, source: Path, target: str, mode: int = 0o644) -> None:
        self.machines.path(self.host.name, target).write_bytes(source.read_bytes())

    def write(self, text: str, target: str, mode: int = 0o644) -> bool:
        self.machines.path(self.host.name, target).write_text(text)
        return True


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    made = Machines(tmp_path / "machines")
    monkeypatch.setattr(ways, "everywhere", made.everywhere)
    monkeypatch.setattr(farewell, "say_farewell", made.say_farewell)
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
    assert len(revoked(machines.path("head", "/etc/mosquitto/dfrs/certificates/agents-ca.crl"))) == 2, "also our own"
    rules = machines.path("head", "/etc/mosquitto/dfrs/agents.acl").read_text()
    assert ("user n1" in rules, "user n2" in rules) == (False, True)
    assert ("head", "systemctl", "reload", "mosquitto") in machines.ran
    for name in ("n2", "n3"):
        assert len(revoked(machines.path(name, "/opt/dfrs-testbed/certificate/peers.crl"))) == 2
    assert not (machines.folder / "n1").exists(), "who was put out is left alone"
    revoke(authority, path)
    assert len(machines.farewells) == 1, "again there is nobody to part"
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


def test_a_connection_that_cannot_be_ended_is_told(machines: Machines, authority: Authority, tmp_path: Path) -> None:
    machines.why_not = "broker mqtts://b: no answer within 5 s"
    done = revoke(authority, hosts_file(tmp_path, head={"ssh": "root@head"}))
    assert done.return_value == 1
    assert "the connection of n1 goes on, but says and hears nothing: broker mqtts://b: no answer" in done.output


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


def test_a_head_is_read_and_kept_by_the_file(tmp_path: Path) -> None:
    path = hosts_file(tmp_path, head={"ssh": "root@head", "reload": ["kill", "-HUP", "7"]})
    assert load_hosts(path).head == Head(ssh="root@head", reload=("kill", "-HUP", "7"))
    with pytest.raises(UserError, match=r"head\.ssh = 'root@-oProxyCommand=x'"):
        load_hosts(hosts_file(tmp_path, head={"ssh": "root@-oProxyCommand=x"}))


def test_hypervisors_that_trust_the_labs_agents_get_the_list_too(tmp_path: Path, authority: Authority) -> None:
    from testbed.remote.lists import _HYPERVISOR

    pki = tmp_path / "pki"
    for place in (pki / "CA", pki / "qemu"):
        place.mkdir(parents=True)
    node = authority.folder / "nodes/n2"
    (pki / "qemu/ca-cert.pem").write_bytes((node / "peers.pem").read_bytes())
    (pki / "CA/cacert.pem").write_text("another authority\n")
    script = _HYPERVISOR.replace("/etc/pki", str(pki))
    done = subprocess.run(["sh", "-ec", script, node], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, [f"{pki}/qemu/ca-crl.pem"]), done.stderr
    assert (pki / "qemu/ca-crl.pem").read_bytes() == (node / "peers.crl").read_bytes()
    assert not (pki / "CA/cacrl.pem").exists(), "a list of an authority that it does not trust shuts everybody out"
