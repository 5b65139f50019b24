"""A real nested Xen node: made, looked at, killed, repaired, and gone. Its agent drives nothing: the lab is tested."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed.box.network import namespaces
from testbed.box.processes import identify, marked, wait_until
from testbed.box.spec import lab_dir, store_dir
from testbed.box.state import find
from testbed.box.sweep import leftovers
from testbed.box.xen.dom0 import Dom0
from testbed.box.xen.recipe import check_tools
from testbed.errors import UserError


def _missing():
    if os.geteuid() != 0:
        return "a lab in a box needs root"
    try:
        check_tools()
    except UserError as error:
        return str(error)
    return ""


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(_missing()), reason=_missing())]

SCENARIO = """
name = "xen-test"
lab = "{lab}"
policy = "FCFS"
[workload.lublin]
nodes = 2
jobs = 3
seed = 1
[box]
guest_network = "10.214.0.0/16"
[[nodes]]
name = "a"
driver = "xen"
cpus = 0.5
memory_mib = 256
"""
COMMAND = Path(__file__).with_name("box_command.py")
_UP_WITHIN_S = 900  # the first time the image is built, and the machine boots


class Lab:
    def __init__(self, name, place):
        self.name = name
        self.file = place / "xen.toml"
        self.file.write_text(SCENARIO.format(lab=name))

    def start(self, *arguments):
        return subprocess.Popen(
            [sys.executable, str(COMMAND), "lab", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments, code=0):
        with self.start(*arguments) as child:
            out, said = child.communicate(timeout=_UP_WITHIN_S)
        assert child.returncode == code, said
        return out, said

    def up(self):
        out, _ = self.run("up", str(self.file), "--json")
        return json.loads(out)

    def status(self, code=0):
        out, _ = self.run("status", self.name, "--json", code=code)
        return json.loads(out)[0]

    @property
    def node(self):
        return find(self.name).nodes[0]

    def assert_gone(self):
        name = f"dfrs-{self.name}-"
        assert marked(self.name) == []
        assert [found for found in namespaces() if found.startswith(name)] == []
        assert not lab_dir(self.name).exists()
        assert not store_dir(self.name).exists()
        assert leftovers(self.name) == []
        links = subprocess.check_output(["ip", "-json", "link", "show"], text=True)
        assert "xen0" not in [link["ifname"] for link in json.loads(links)]


@pytest.fixture
def lab(tmp_path):
    made = Lab(f"xen{os.getpid()}", tmp_path)
    yield made
    made.run("down", made.name)
    made.assert_gone()


def _assert_it_is_a_node(lab, found):
    """It has its own name, address, clock and hypervisor, and reaches the other nodes' network."""
    dom0 = Dom0(lab.node)
    assert found["missing"] == []
    (node,) = found["nodes"]
    assert (node["libvirtd_answers"], node["agent_online"], node["socket"]) == (True, True, None)
    assert node["domains"] == []
    assert identify(node["machine_pid"]) is not None
    assert dom0.ask("hostname").strip() == f"dfrs-{lab.name}-a"
    assert "inet 10.214.255.1/16" in dom0.ask("ip address show dev xenbr0")
    xen = dom0.ask("xl info")
    assert "xen_scheduler          : credit\n" in xen
    before_s = time.time()
    there_s = float(dom0.ask("date +%s.%N"))
    assert before_s - 2 < there_s < time.time() + 2
    subprocess.run(
        ["ip", "-n", f"dfrs-{lab.name}-fabric", "address", "add", "10.214.255.200/16", "dev", "dfrs0"], check=True
    )
    subprocess.run(
        ["nsenter", f"--net=/run/netns/dfrs-{lab.name}-fabric", "ping", "-c", "1", "-w", "20", "10.214.255.1"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def test_a_nested_node_is_made_killed_repaired_and_removed(lab):
    first = lab.up()
    _assert_it_is_a_node(lab, first)
    assert {f"machine dfrs-{lab.name}-a", f"agent disk {lab.name}"} <= set(first["made"])
    dom0 = Dom0(lab.node)
    numbers = {dom0.ask("cat /proc/sys/kernel/random/uuid")}

    # the agent dies in the machine: the process outside ends with it, and only the agent is made again
    dom0.ask("kill -KILL $(cat /run/dfrs-agent.pid)")
    assert wait_until(lambda: identify(first["nodes"][0]["agent_pid"]) is None, 20)
    assert f"agent dfrs-{lab.name}-a" in lab.status(code=1)["missing"]
    again = lab.up()
    assert again["made"] == [f"agent dfrs-{lab.name}-a"]
    assert again["nodes"][0]["machine_pid"] == first["nodes"][0]["machine_pid"]

    # the process outside dies and leaves the agent running: there is one agent after the repair
    os.kill(again["nodes"][0]["agent_pid"], signal.SIGKILL)
    assert lab.up()["made"] == [f"agent dfrs-{lab.name}-a"]
    assert dom0.ask("pgrep -c -f '^python3 -m node_agent'").strip() == "1"

    os.kill(first["nodes"][0]["machine_pid"], signal.SIGKILL)
    assert wait_until(lambda: identify(first["nodes"][0]["machine_pid"]) is None, 20)
    broken = lab.status(code=1)
    assert f"machine dfrs-{lab.name}-a" in broken["missing"]
    assert broken["nodes"][0]["libvirtd_answers"] is False
    repaired = lab.up()
    assert sorted(repaired["made"]) == [f"agent dfrs-{lab.name}-a", f"machine dfrs-{lab.name}-a"]
    assert repaired["nodes"][0]["machine_pid"] != first["nodes"][0]["machine_pid"]
    assert repaired["missing"] == []
    numbers.add(dom0.ask("cat /proc/sys/kernel/random/uuid"))
    assert len(numbers) == 2  # although both went on from one state
    lab.run("down", lab.name)
    lab.assert_gone()


def test_a_nested_node_whose_maker_was_killed_leaves_nothing(lab):
    with lab.start("up", str(lab.file)) as child:
        assert wait_until(lambda: bool(marked(lab.name, "a", "machine")), _UP_WITHIN_S)
        child.kill()
        child.communicate(timeout=10)
    assert marked(lab.name, "a", "machine") != []
    lab.run("down", lab.name)
    lab.assert_gone()
