"""The playbook on real hosts over ssh: a second run changes nothing; then agents communicate over TLS."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.ansible.hosts import HostAt, Ssh, hosts, own_wheel, why_not
from support.live import HANG_S

from testbed.lab.remote.hosts import load_hosts

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOKS = ROOT / "ansible"
TAGS = "--tags=certificates,common,time,broker,storage,agent"  # roles that need neither systemd nor another repository
SECRETS = ("influxdb_token", "influxdb_password")  # every role requires its own, with any tags
_COUNT = re.compile(r"(\w+)=(\d+)")
Lab = tuple[Path, Ssh, list[HostAt]]

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    with hosts(folder, ("broker-1", "n1", "n2"), wheels) as (ssh, found):
        inventory = {
            "all": {
                "vars": {
                    **dict.fromkeys(SECRETS, "none"),
                    "dfrs_lab": "lab-1", "dfrs_certificates": str(folder / "certificates"),
                    "dfrs_controllers": ["alice"], "dfrs_hosts_file": str(folder / "hosts.toml"),
                    "ansible_user": "root", "ansible_ssh_private_key_file": str(ssh.identity),
                    "ansible_ssh_common_args": f"-o UserKnownHostsFile={ssh.known_hosts} -o IdentitiesOnly=yes",
                    "agent_package": str(own_wheel(wheels)),
                },
                "children": {
                    "head": {"hosts": {"broker-1": _reached(found[0])}},
                    "nodes": {
                        "vars": {"dfrs_driver": "process", "dfrs_cpus": 1.0, "dfrs_memory_mib": 512},
                        "hosts": {each.name: _reached(each) for each in found[1:]},
                    },
                },
            }
        }  # fmt: skip
        path = folder / "inventory.yml"
        path.write_text(yaml.safe_dump(inventory))
        yield path, ssh, found


def _reached(host: HostAt) -> dict[str, object]:
    return {"ansible_host": host.address, "ansible_port": host.port, "dfrs_address": host.address}


def play_words(inventory: Path, playbook: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a playbook, which may fail."""
    environment = {
        **os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"),
        "ANSIBLE_LOG_PATH": str(inventory.parent / "ansible.log"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    return subprocess.run(
        ["ansible-playbook", "-i", inventory, playbook, *words], cwd=PLAYBOOKS, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def play(inventory: Path, playbook: str, *words: str) -> dict[str, dict[str, int]]:
    """Run a playbook; return the counts of each host."""
    done = play_words(inventory, playbook, *words)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    _, _, recap = done.stdout.rpartition("PLAY RECAP")
    print(f"{playbook} {' '.join(words)}{recap}")  # noqa: T201  # pytest shows it with -rP, or if the test fails
    hosts = {line.split()[0]: dict(_COUNT.findall(line)) for line in recap.splitlines() if " ok=" in line}
    return {name: {what: int(count) for what, count in counts.items()} for name, counts in hosts.items()}


@pytest.fixture(scope="module")
def played(lab: Lab) -> dict[str, dict[str, int]]:
    """The changes of the first run of the playbook; before it, a run in check mode changes nothing on new machines."""
    told = play(lab[0], "site.yml", TAGS, "--check")
    assert all(told[host.name]["changed"] > 0 for host in lab[2])
    assert not any((host.root / "etc/dfrs-testbed").exists() for host in lab[2])
    return play(lab[0], "site.yml", TAGS)


def test_the_second_run_changes_nothing_nor_does_a_check(lab: Lab, played: dict[str, dict[str, int]]) -> None:
    inventory, _, found = lab
    assert all(played[host.name]["changed"] > 0 for host in found)
    for words in ((TAGS,), (TAGS, "--check")):
        again = play(inventory, "site.yml", *words)
        assert {name: counts["changed"] for name, counts in again.items()} == dict.fromkeys(again, 0)
    for host in found[1:]:
        key = host.root / "etc/dfrs-testbed/certificate/key.pem"
        assert key.stat().st_mode & 0o777 == 0o600
        assert (host.root / "opt/dfrs-testbed/venv/bin/node-agent").exists()
    machines = load_hosts(inventory.parent / "hosts.toml")
    assert [(each.name, each.address, each.cpus) for each in machines.hosts] == [
        (host.name, host.address, 1.0) for host in found[1:]
    ]


@contextlib.contextmanager
def services(found: list[HostAt], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the services in place of systemd, the agents as in their units; yield the head's broker."""
    words = [["/usr/sbin/mosquitto", "-c", "/etc/mosquitto/dfrs/mosquitto.conf"]]
    for host in found[1:]:
        unit = (host.root / "etc/systemd/system/dfrs-agent.service").read_text().replace("\\\n", " ")
        (start,) = [line.removeprefix("ExecStart=") for line in unit.splitlines() if line.startswith("ExecStart=")]
        words.append(start.split())
    with contextlib.ExitStack() as stack, log.open("ab") as sink:
        children = []
        for host, command in zip(found, words, strict=True):
            child = subprocess.Popen(["chroot", host.root, *command], stdout=sink, stderr=sink)
            stack.callback(child.wait, HANG_S)
            stack.callback(child.terminate)
            children.append(child)
        yield children[0]


def online(inventory: Path, found: list[HostAt], log: Path, wanted: tuple[str, ...]) -> None:
    """Ask the lab, as its controller, for its nodes, until these are the wanted ones."""
    environment = {**os.environ, "TESTBED_TLS_DIR": str(inventory.parent / "certificates/controllers/alice")}
    hangs_s = time.monotonic() + HANG_S
    while True:
        done = subprocess.run(
            [sys.executable, "-m", "testbed", "nodes", "--lab", "lab-1", "--json",
             "--broker", f"mqtts://{found[0].address}:8884"],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if tuple(node["node"] for node in json.loads(done.stdout or "[]") if node["online"]) == wanted:
            return
        assert time.monotonic() < hangs_s, done.stderr + log.read_text()[-3000:]


@pytest.mark.usefixtures("played")
def test_agents_meet_their_controller_and_certificates_are_rotated(lab: Lab, tmp_path: Path) -> None:
    inventory, _, found = lab
    log = tmp_path / "log"
    with services(found, log):
        online(inventory, found, log, ("n1", "n2"))
    paths = [host.root / "etc/dfrs-testbed/certificate/cert.pem" for host in found[1:]]
    before = [path.read_bytes() for path in paths]
    play(inventory, "rotate.yml")
    after = [path.read_bytes() for path in paths]
    assert all(old != new for old, new in zip(before, after, strict=True))
    with services(found, log) as broker:
        online(inventory, found, log, ("n1", "n2"))
        put_out(inventory, broker)
        online(inventory, found, log, ("n2",))
    with services(found, log):
        online(inventory, found, log, ("n2",))
    done = play_words(inventory, "site.yml", "--tags=certificates")
    assert done.returncode != 0
    assert "node n1: its certificate was revoked on" in done.stdout, "no playbook lets it in again by itself"


def put_out(inventory: Path, broker: subprocess.Popen[bytes]) -> None:
    """Revoke n1 by one command, over ssh, while its agent keeps running and tries to connect."""
    folder = inventory.parent
    machines = folder / "hosts.toml"
    text = machines.read_text().replace("[head]", f'[head]\nreload = ["kill", "-HUP", "{broker.pid}"]')
    text = f'known_hosts = "{folder / "known_hosts"}"\n' + text
    (folder / "reached.toml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "ca", "revoke", folder / "certificates", "node", "n1",
         "--hosts", folder / "reached.toml"], capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "head: the broker has the list, and read it" in done.stdout
    assert "n1: its connection was ended" in done.stdout
    assert "n2: has the list" in done.stdout
