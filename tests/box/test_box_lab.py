"""A real lab: namespaces, bridges, libvirtd, control groups, agents. Made, inspected, broken, repaired, and removed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.box.lab_command import LabCommand
from support.live import HANG_S

from testbed.lab.box.control_group import joined
from testbed.lab.box.network import namespaces
from testbed.lab.box.partition import here
from testbed.lab.box.processes import alive, identify, marked, wait_until
from testbed.lab.box.spec import lab_dir, store_dir
from testbed.lab.box.sweep import leftovers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="a lab in a box needs root"),
    pytest.mark.skipif(
        not all(
            shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
            for name in ("libvirtd", "virsh", "ip", "tc")
        ),
        reason="libvirtd, virsh, ip and tc are not all installed",
    ),
]

SCENARIO = """
name = "box-test"
lab = "{lab}"
policy = "FCFS"
[workload.lublin]
nodes = 2
jobs = 3
seed = 1
[box]
guest_network = "10.213.0.0/16"
link_mbit_per_s = 400
"""
NODE = """
[[nodes]]
name = "{name}"
driver = "{driver}"
cpus = {cpus}
memory_mib = 256
"""
DOMAIN = """
<domain type='qemu'><name>guest</name><memory unit='MiB'>32</memory><vcpu>1</vcpu>
<resource><partition>/dfrs-{lab}-{node}</partition></resource>
<cputune><period>100000</period><quota>30000</quota></cputune>
<os><type arch='x86_64' machine='pc'>hvm</type></os>
<devices><interface type='bridge'><source bridge='dfrs0'/></interface></devices></domain>
"""


class Lab(LabCommand):
    def __init__(self, name, place):
        super().__init__(name, place / "box.toml")
        self.write()

    def write(self, driver="libvirt", cpus=0.5):
        nodes = "".join(NODE.format(name=name, driver=driver, cpus=cpus) for name in "ab")
        self.file.write_text(SCENARIO.format(lab=self.name) + nodes)

    def virsh(self, node, *arguments):
        return subprocess.run(
            ["virsh", "-c", f"qemu+unix:///system?socket={lab_dir(self.name)}/{node}/run/libvirt-sock", *arguments],
            capture_output=True, text=True, timeout=HANG_S, check=True,
        ).stdout  # fmt: skip

    def from_a(self, uri, *arguments):
        """Connect to a hypervisor from the network of node a."""
        return subprocess.run(
            ["nsenter", f"--net=/run/netns/dfrs-{self.name}-a", "virsh", "-c", uri, *arguments],
            capture_output=True, text=True, timeout=HANG_S, check=False,
        )  # fmt: skip

    def from_a_to_b(self, *arguments):
        """Connect to node b's hypervisor as the libvirtd of node a does, by TLS with its certificate."""
        flat = self.file.parent / "pki"
        flat.mkdir(exist_ok=True)
        pki = lab_dir(self.name) / "a" / "pki"
        for place in ("CA/cacert.pem", "libvirt/clientcert.pem", "libvirt/private/clientkey.pem"):
            shutil.copy(pki / place, flat)
        done = self.from_a(f"qemu+tls://10.213.255.2/system?pkipath={flat}", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def assert_gone(self):
        name = f"dfrs-{self.name}-"
        assert marked(self.name) == []
        assert [found for found in namespaces() if found.startswith(name)] == []
        assert [folder for root in here().roots for folder in root.glob(f"{name}*")] == []
        assert not lab_dir(self.name).exists()
        assert not store_dir(self.name).exists()
        assert name not in Path("/proc/self/mountinfo").read_text()
        assert f"dfrs-testbed/{self.name}/" not in Path("/proc/self/mountinfo").read_text()
        assert leftovers(self.name) == []
        mine = f"/run/dfrs-testbed/{self.name}/"
        for process in [path for path in Path("/proc").iterdir() if path.name.isdecimal()]:
            try:
                assert mine not in (process / "mountinfo").read_text(), f"process {process.name} is in a node"
            except OSError:
                continue  # the process has ended


@pytest.fixture
def lab(tmp_path):
    made = Lab(f"pytest{os.getpid()}", tmp_path)
    yield made
    with made.start("down", made.name) as child:
        _, said = child.communicate(timeout=HANG_S)
    assert child.returncode == 0, said
    made.assert_gone()


def _links():
    return [link["ifname"] for link in json.loads(subprocess.check_output(["ip", "-json", "link", "show"]))]


def _assert_nodes_are_their_own(lab):
    """The nodes differ, and reach each other over limited links."""
    other = lab.from_a_to_b("capabilities")
    plain = lab.from_a("qemu+tcp://10.213.255.2/system", "version")
    assert plain.returncode != 0, "without TLS only if a scenario requests it"
    assert "Connection refused" in plain.stderr
    own = lab.virsh("a", "capabilities")
    uuids = [text[text.index("<uuid>") + 6 : text.index("</uuid>")] for text in (own, other)]
    assert len(set(uuids)) == 2
    for namespace, link in ((f"dfrs-{lab.name}-a", "up0"), (f"dfrs-{lab.name}-fabric", "n1")):
        limit = subprocess.check_output(["tc", "-n", namespace, "qdisc", "show", "dev", link], text=True)
        assert "rate 400Mbit" in limit


def _groups_of(pid):
    return {line.rpartition("/")[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()}


def _assert_its_processes_come_before_its_guests(lab, found):
    """The lab's own processes have more weight than a node's guests, so that commands do not wait for busy guests."""
    group = f"dfrs-{lab.name}-lab.control"
    pids = [found["broker_pid"], *(node[key] for node in found["nodes"] for key in ("libvirtd_pid", "agent_pid"))]
    assert [group in _groups_of(pid) for pid in pids] == [True] * len(pids)
    file = "cpu.weight" if here().kind == "v2" else "cpu.shares"
    weights = [int(next(root.glob(f"{name}/{file}")).read_text()) for root in here().roots[:1]
               for name in (group, f"dfrs-{lab.name}-a.partition")]  # fmt: skip
    assert weights[0] > weights[1]
    before = _groups_of("self")
    with joined(lab.name):
        assert group in _groups_of("self")
    assert _groups_of("self") == before


def _assert_a_cleanup_leaves(lab):
    """A lab that is up stays, even if its state is invisible, as from another root."""
    for hide in ("true", "mount -t tmpfs tmpfs /run/dfrs-testbed"):
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", f"{hide} && exec {sys.executable} -m testbed cleanup --only labs"],
            capture_output=True, text=True, check=False, timeout=HANG_S,
        )  # fmt: skip
        # while another lab is being made, that lab is kept and reported
        others = [line for line in done.stdout.splitlines() if line.endswith("is running on this machine")]
        assert (done.returncode, lab.name in done.stdout) == (1 if others else 0, False), done.stdout + done.stderr


def _assert_it_is_removed(lab):
    listed, _ = lab.run("down", lab.name, "--dry-run")
    assert "domain guest on a" in listed
    assert lab.status()["missing"] == []  # listing removes nothing
    with joined(lab.name):  # a controller outlives the lab
        _, said = lab.run("down", lab.name)
    assert "removed domain guest on a" in said
    lab.assert_gone()
    out, _ = lab.run("down", lab.name)
    assert "nothing to do" in out


def test_a_lab_is_made_used_repaired_and_removed(lab):
    links_before = _links()
    first = lab.up()
    assert first["missing"] == []
    assert first["phase"] == "up"
    assert first["cgroups"] == here().kind
    assert [node["address"] for node in first["nodes"]] == ["10.213.255.1/16", "10.213.255.2/16"]
    assert all(node["agent_online"] and node["libvirtd_answers"] for node in first["nodes"])
    assert _links() == links_before  # the machine's own network is as it was
    assert oct((lab_dir(lab.name) / "broker.url").stat().st_mode)[-3:] == "600"

    _assert_nodes_are_their_own(lab)
    _assert_its_processes_come_before_its_guests(lab, first)

    # a guest lives in the node's capacity, on its bridge, and outlives its daemon
    xml = lab.file.with_name("guest.xml")
    xml.write_text(DOMAIN.format(lab=lab.name, node="a"))
    lab.virsh("a", "create", str(xml))
    groups = here()
    capacity = groups.roots[0] / f"dfrs-{lab.name}-a.partition"
    assert list(capacity.rglob("*guest*"))
    quota = "cpu.max" if groups.kind == "v2" else "cpu.cfs_quota_us"
    assert (capacity / quota).read_text().split()[0] == "55000"  # half a core and a tenth of it
    assert lab.status()["nodes"][0]["domains"] == [{"name": "guest", "cap_cores": 0.3}]

    os.kill(first["nodes"][0]["libvirtd_pid"], signal.SIGKILL)
    assert wait_until(lambda: identify(first["nodes"][0]["libvirtd_pid"]) is None, HANG_S)
    broken = lab.status(code=1)
    assert f"libvirtd dfrs-{lab.name}-a" in broken["missing"]
    os.kill(first["nodes"][1]["agent_pid"], signal.SIGKILL)
    os.kill(first["broker_pid"], signal.SIGKILL)
    address = (lab_dir(lab.name) / "broker.url").read_text()
    repaired = lab.up()
    assert sorted(repaired["made"]) == [
        f"agent dfrs-{lab.name}-b", f"broker {lab.name}", f"libvirtd dfrs-{lab.name}-a",
    ]  # fmt: skip
    assert (lab_dir(lab.name) / "broker.url").read_text() == address  # so agents find the broker again
    assert repaired["missing"] == []
    assert repaired["nodes"][0]["domains"] == [{"name": "guest", "cap_cores": 0.3}]

    subprocess.run(["ip", "netns", "delete", f"dfrs-{lab.name}-b"], check=True, timeout=HANG_S)
    again = lab.up()
    assert sorted(again["made"]) == [
        f"libvirtd dfrs-{lab.name}-b", f"namespaces dfrs-{lab.name}-b", f"network dfrs-{lab.name}-b",
    ]  # fmt: skip
    assert "QEMU" in lab.from_a_to_b("version")

    _assert_a_cleanup_leaves(lab)
    second = lab.up()
    assert second["made"] == []
    assert [node["agent_pid"] for node in second["nodes"]] == [node["agent_pid"] for node in repaired["nodes"]]
    lab.write(cpus=0.6)
    _, said = lab.run("up", str(lab.file), code=2)
    assert f"lab {lab.name} is there already with other nodes" in said

    _assert_it_is_removed(lab)


def test_removal_needs_no_memory_and_takes_guests_whose_daemon_was_killed(lab):
    found = lab.up()
    xml = lab.file.with_name("guest.xml")
    xml.write_text(DOMAIN.format(lab=lab.name, node="b"))
    lab.virsh("b", "create", str(xml))
    os.kill(found["nodes"][1]["libvirtd_pid"], signal.SIGKILL)
    (lab_dir(lab.name) / "lab.json").write_text("{")
    assert lab.status(code=1)["phase"] == "unknown"
    lab.run("down", lab.name)
    lab.assert_gone()
    out, _ = lab.run("status", lab.name, "--json", code=1)
    assert json.loads(out) == []


@pytest.mark.parametrize("reached", ["broker", "network", "namespaces", "libvirtd"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_lab_whose_making_was_cut_off_leaves_nothing(lab, reached, how):
    def begun():
        try:
            things = json.loads((lab_dir(lab.name) / "lab.json").read_text())["things"]
        except (OSError, ValueError):
            return False
        return any(name.startswith(f"{reached} ") for name in things)

    with lab.start("up", str(lab.file), cut_at=reached) as child:
        assert wait_until(lambda: begun() or child.poll() is not None, HANG_S)
        assert child.poll() is None, child.communicate()
        child.send_signal(how)
        _, said = child.communicate(timeout=HANG_S)
    if how == signal.SIGTERM:
        assert child.returncode == 130, said
        assert "removing its parts" in said
    else:
        assert child.returncode == -signal.SIGKILL
        lab.run("down", str(lab.file))
    lab.assert_gone()


def test_a_cut_off_lab_is_completed_by_the_next_up(lab):
    lab.write(driver="process")
    with lab.start("up", str(lab.file), cut_at="agent") as child:
        assert wait_until(lambda: bool(marked(lab.name)), HANG_S)
        child.kill()
        child.communicate(timeout=HANG_S)
    assert lab.status(code=1)["phase"] == "making"
    found = lab.up()
    assert found["missing"] == []
    assert all(alive(process) for process in marked(lab.name))
