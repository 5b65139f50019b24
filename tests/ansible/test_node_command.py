"""`testbed node` and other commands over ssh, on two real hosts with an sshd each."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.ansible.hosts import HostAt, Ssh, hosts, own_wheel, why_not
from support.live import HANG_S, wait_until

from testbed.bus.mosquitto import find_mosquitto, mosquitto_broker
from testbed.errors import UserError
from testbed.host.process_identity import start_ticks
from testbed.lab.remote.hosts import check_hosts, load_hosts
from testbed.testing.accuracy import Accuracy, Window

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]


@dataclass
class Lab:
    """Two hosts, and commands in a folder with their hosts file."""

    folder: Path
    ssh: Ssh
    hosts: list[HostAt]
    broker: str

    def run(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "testbed", *words], cwd=self.folder, capture_output=True, text=True, check=False,
            timeout=HANG_S,
        )  # fmt: skip
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout if code == 0 or not done.stderr else done.stdout + done.stderr

    def add(self, host: HostAt, package: Path, *words: str, code: int = 0) -> str:
        return self.run(
            "node", "add", host.name, f"root@{host.address}", "--port", str(host.port), "--lab", "remote", "--broker",
            self.broker, "--cpus", "1", "--memory-mib", "256", "--service", "script", "--package", str(package),
            "--known-hosts", str(self.ssh.known_hosts), "--identity", str(self.ssh.identity), *words, code=code,
        )  # fmt: skip

    def agent_pid(self, host: HostAt) -> int:
        return int((host.root / "opt/dfrs-testbed/agent.pid").read_text())


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("remote")
    program = find_mosquitto()
    assert program is not None
    ends = asyncio.Event()

    async def serve(ready: asyncio.Future[str]) -> None:
        async with mosquitto_broker(program, folder / "broker") as address:
            ready.set_result(address.url)
            await ends.wait()

    with asyncio.Runner() as runner, hosts(folder, ("n1", "n2"), wheels) as (ssh, found):
        loop = runner.get_loop()
        ready = loop.create_future()
        serving = loop.create_task(serve(ready))
        url = loop.run_until_complete(ready)
        lab = Lab(folder, ssh, found, url)
        for host in found:
            said = lab.add(host, own_wheel(wheels))
            assert f"{host.name}: restarted" in said
        yield lab
        for host in found:
            subprocess.run(["chroot", host.root, "/opt/dfrs-testbed/agent.sh", "stop"], check=True, timeout=HANG_S)
        loop.call_soon(ends.set)
        loop.run_until_complete(serving)


def test_machines_that_were_added_are_in_the_file_and_in_the_lab(lab: Lab) -> None:
    written = load_hosts(lab.folder / "hosts.toml")
    assert [host.name for host in written.hosts] == ["n1", "n2"]
    assert written.lab == "remote"
    nodes = json.loads(lab.run("nodes", "--lab", "remote", "--broker", lab.broker, "--json"))
    assert [(node["node"], node["online"]) for node in nodes] == [("n1", True), ("n2", True)]
    assert lab.run("node", "logs", "n1", "--lines", "3").startswith("n1: ")


def test_agents_are_restarted_side_by_side(lab: Lab) -> None:
    before = [lab.agent_pid(host) for host in lab.hosts]
    assert sorted(lab.run("node", "restart").split()) == ["n1:", "n2:", "restarted", "restarted"]
    after = [lab.agent_pid(host) for host in lab.hosts]
    assert not set(before) & set(after)
    assert all(start_ticks(pid) is not None for pid in after)


def test_an_agent_that_ends_at_once_is_told_with_its_last_words(lab: Lab) -> None:
    script = lab.hosts[0].root / "opt/dfrs-testbed/agent.sh"
    kept = script.read_text()
    subprocess.run(["chroot", lab.hosts[0].root, "/opt/dfrs-testbed/agent.sh", "stop"], check=True, timeout=HANG_S)
    script.write_text(kept.replace("--driver process", "--driver unknown"))
    said = lab.run("node", "restart", "n1", code=1)
    assert "driver 'unknown': expected one of" in said
    script.write_text(kept)
    (script.parent / "agent.pid").write_text(f"{os.getpid()}\n")  # the id of another process
    (script.parent / "agent.pid.began").write_text("1\n")
    assert lab.run("node", "restart", "n1") == "n1: restarted\n"
    assert lab.agent_pid(lab.hosts[0]) != os.getpid()


def test_a_guest_image_is_pushed_whole_and_again(lab: Lab) -> None:
    folder = lab.folder / "0123abcd"
    folder.mkdir()
    for name, content in (("vmlinuz", b"k" * 3_000_000), ("initramfs", b"i"), ("manifest.json", b"{}")):
        (folder / name).write_bytes(content)
    for _ in range(2):
        assert sorted(lab.run("node", "push-image", "--folder", str(folder)).splitlines()) == [
            "n1: 3 files, 2 MiB", "n2: 3 files, 2 MiB",
        ]  # fmt: skip
    for host in lab.hosts:
        current = host.root / "var/cache/dfrs-testbed/guest-image/current"
        assert current.readlink() == Path("0123abcd")
        for name in ("vmlinuz", "initramfs", "manifest.json"):
            assert (current / name).read_bytes() == (folder / name).read_bytes()
    (folder / "initramfs").unlink()
    assert "no guest image, as initramfs is not there: testbed image build" in lab.run(
        "node", "push-image", "--folder", str(folder), code=2
    )


def test_a_whole_lab_is_examined(lab: Lab, accuracy: Accuracy) -> None:
    window = Window()
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "doctor", "--hosts", "hosts.toml", "--broker", lab.broker, "--json"],
        cwd=lab.folder, capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip
    assert done.returncode in {0, 1, 2}, done.stderr
    found = json.loads(done.stdout)["findings"]
    by_check = {(each.get("node", ""), each["check"]): each for each in found}
    for name in ("n1", "n2"):
        clock = by_check[name, "clock against ours"]  # it is the same clock
        accuracy.check(f"{name}: seconds ahead of our clock", clock["values"]["ahead_s"], -0.5, 0.5, window)
        accuracy.check(f"{name}: its clock is well", clock["severity"] == "ok", 1, 1, window)
        assert (name, "kernel") in by_check
    for one, other in (("n1", "n2"), ("n2", "n1")):
        network = by_check["", f"network {one} to {other}"]
        assert network["values"]["mib_per_s"] > 0
        accuracy.check(f"MiB/s from {one} to {other}", network["values"]["mib_per_s"], 10, float("inf"), window)
        accuracy.check(f"the network from {one} to {other} is well", network["severity"] == "ok", 1, 1, window)
    assert by_check["", "testbed on all machines"]["severity"] == "ok"
    assert by_check["", "MTU of all machines"]["found"].startswith("65536")
    assert by_check["", "broker"]["severity"] == "ok"


def test_each_machine_is_examined_by_its_own_doctor(lab: Lab) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "node", "exec-check", "n1", "--json"], cwd=lab.folder, capture_output=True,
        text=True, check=False, timeout=HANG_S,
    )  # fmt: skip
    (told,) = json.loads(done.stdout)
    assert told["node"] == "n1"
    assert {each["check"] for each in told["value"]["findings"]} >= {"kernel", "memory", "leftovers of agents"}


def test_what_a_killed_agent_left_there_is_cleaned_up_from_here(lab: Lab) -> None:
    host = lab.hosts[1]
    image = host.root / "opt/dfrs-testbed/images/job-1-0.img"
    image.write_bytes(b"saved")
    lab.run("node", "restart", "n2")
    # an agent removes useless files when it starts; the command does not wait until the agent works
    wait_until(lambda: not image.exists(), f"the end of {image}")
    image.write_bytes(b"saved")
    subprocess.run(["kill", "-9", str(lab.agent_pid(host))], check=True)
    said = lab.run("cleanup", "n2", "--only", "agents", "--dry-run", "--force")
    assert "n2: would remove: image /opt/dfrs-testbed/images/job-1-0.img of agent remote/n2" in said
    assert image.exists()
    lab.run("cleanup", "n2", "--only", "agents", "--force")
    assert not image.exists()
    assert "n2: nothing is left of dead runs" in lab.run("cleanup", "n2", "--only", "agents")
    lab.run("node", "restart", "n2")


def test_one_that_cannot_be_reached_stops_no_other(lab: Lab) -> None:
    text = (lab.folder / "hosts.toml").read_text()
    (lab.folder / "some.toml").write_text(text.replace(f"port = {lab.hosts[0].port}", "port = 9"))
    said = lab.run("node", "logs", "--hosts", "some.toml", code=1)
    assert "n1: ssh root@127.0.77.10" in said
    assert "n2: " in said


def test_a_key_that_is_not_known_is_refused(lab: Lab) -> None:
    (lab.folder / "none").write_text("")
    text = (lab.folder / "hosts.toml").read_text()
    (lab.folder / "unknown.toml").write_text(text.replace(str(lab.ssh.known_hosts), str(lab.folder / "none")))
    said = lab.run("node", "logs", "n1", "--hosts", "unknown.toml", code=1)
    assert "its key is not known: compare it by another way, then ssh-keyscan" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ssh": "root@-oProxyCommand=sh"}, "hosts.0.ssh"),
        ({"ssh": "root@host;reboot"}, "hosts.0.ssh"),
        ({"home": "/opt/a b"}, "hosts.0.home"),
        ({"name": "../n1"}, "hosts.0.name"),
        ({"cpus": 0}, "hosts.0.cpus"),
        ({"memory": 5}, "hosts.0.memory"),
        ({"options": {"bridge": "a b"}}, "hosts.0.options.bridge"),
    ],
)
def test_a_machine_that_makes_no_sense_is_told(change: dict[str, object], words: str) -> None:
    host = {"name": "n1", "ssh": "root@h", "address": "h", "cpus": 1.0, "memory_mib": 1, **change}
    with pytest.raises(UserError, match=words):
        check_hosts({"lab": "l", "broker": "mqtts://b", "hosts": [host]}, Path("hosts.toml"))
