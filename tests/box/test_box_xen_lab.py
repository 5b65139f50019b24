"""A real nested Xen node: made, inspected, killed, repaired, and removed. Its agent uses no hypervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from support.box.xen_lab import UP_WITHIN_S, XenLab, needs_xen
from support.live import HANG_S

from testbed.lab.box.processes import identify, marked, wait_until
from testbed.lab.box.xen.dom0 import Dom0

# speed: the readings around it bound it; a machine starts with this one's clock and is not synchronized afterwards
CLOCK_OFF_S = 2

pytestmark = [pytest.mark.slow, pytest.mark.xen, needs_xen]


@pytest.fixture
def lab(tmp_path):
    made = XenLab(f"xen{os.getpid()}", tmp_path)
    yield made
    made.end()


def _assert_it_is_a_node(lab, found):
    """The node has its own name, address, clock and hypervisor, and reaches the other nodes' network."""
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
    assert before_s - CLOCK_OFF_S < there_s < time.time() + CLOCK_OFF_S
    subprocess.run(
        ["ip", "-n", f"dfrs-{lab.name}-fabric", "address", "add", "10.214.255.200/16", "dev", "dfrs0"], check=True
    )
    hear = "import socket; print(socket.create_connection(('10.214.255.1', 22), 900).makefile().readline())"
    heard = subprocess.check_output(
        ["nsenter", f"--net=/run/netns/dfrs-{lab.name}-fabric", sys.executable, "-c", hear], text=True, timeout=HANG_S
    )
    assert heard.startswith("SSH-2.0-")


def test_a_nested_node_is_made_killed_repaired_and_removed(lab):
    first = lab.up()
    _assert_it_is_a_node(lab, first)
    assert {f"machine dfrs-{lab.name}-a", f"agent disk {lab.name}"} <= set(first["made"])
    dom0 = Dom0(lab.node)
    numbers = {dom0.ask("cat /proc/sys/kernel/random/uuid")}

    # the agent dies in the machine: the process outside ends with it, and only the agent is re-created
    dom0.ask("kill -KILL $(cat /run/dfrs-agent.pid)")
    assert wait_until(lambda: identify(first["nodes"][0]["agent_pid"]) is None, HANG_S)
    assert f"agent dfrs-{lab.name}-a" in lab.status(code=1)["missing"]
    again = lab.up()
    assert again["made"] == [f"agent dfrs-{lab.name}-a"]
    assert again["nodes"][0]["machine_pid"] == first["nodes"][0]["machine_pid"]

    # the process outside dies and leaves the agent running: there is one agent after the repair
    os.kill(again["nodes"][0]["agent_pid"], signal.SIGKILL)
    assert lab.up()["made"] == [f"agent dfrs-{lab.name}-a"]
    assert dom0.ask("pgrep -c -f '^python3 -m node_agent'").strip() == "1"

    os.kill(first["nodes"][0]["machine_pid"], signal.SIGKILL)
    assert wait_until(lambda: identify(first["nodes"][0]["machine_pid"]) is None, HANG_S)
    broken = lab.status(code=1)
    assert f"machine dfrs-{lab.name}-a" in broken["missing"]
    assert broken["nodes"][0]["libvirtd_answers"] is False
    repaired = lab.up()
    assert sorted(repaired["made"]) == [f"agent dfrs-{lab.name}-a", f"machine dfrs-{lab.name}-a"]
    assert repaired["nodes"][0]["machine_pid"] != first["nodes"][0]["machine_pid"]
    assert repaired["missing"] == []
    numbers.add(dom0.ask("cat /proc/sys/kernel/random/uuid"))
    assert len(numbers) == 2  # although both continued from the same state
    lab.end()


def test_a_nested_node_whose_maker_was_killed_leaves_nothing(lab):
    with lab.start("up", str(lab.file), cut_at="agent") as child:
        assert wait_until(lambda: bool(marked(lab.name, "a", "machine")), UP_WITHIN_S)
        child.kill()
        child.communicate(timeout=HANG_S)
    assert marked(lab.name, "a", "machine") != []
    lab.end()
