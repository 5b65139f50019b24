"""Nested Xen nodes: the parts of their images, their virtual machines, and refusals. Needs no devices."""

from __future__ import annotations

import itertools
import json
import math
import socket
import subprocess
import sys
import threading
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live import HANG_S

from testbed.errors import RunError, UserError
from testbed.lab.box import partition as partition_module
from testbed.lab.box import up
from testbed.lab.box.commands import CommandError
from testbed.lab.box.network import hardware_address
from testbed.lab.box.partition import Hierarchies, Partition
from testbed.lab.box.plan import layers_of
from testbed.lab.box.spec import NodeSpec
from testbed.lab.box.state import BoxState, Journal
from testbed.lab.box.xen import hardware, packages, recipe, saved
from testbed.lab.box.xen.agent import arguments, as_seen_inside
from testbed.lab.box.xen.agent_disk import ROOTS, closure
from testbed.lab.box.xen.dom0 import Dom0, read_guests
from testbed.lab.box.xen.hardware import TAP_FD, Files, Shape, command_line
from testbed.lab.box.xen.image import XenImage, build_key, current, remove_others
from testbed.lab.box.xen.monitor import Monitor
from testbed.lab.boxes import spec_of
from testbed.lab.guest_image.recipe_debian import Package
from testbed.scenario.jobs import load_jobs
from testbed.scenario.schema import check_scenario, load_scenario

ROOT = Path(__file__).parents[2]
NODE = NodeSpec("x", "a", 0.8, 1024, "xen", "10.77.255.1/16")
IMAGE = XenImage(Path("/cache/key"))
FILES = Files(Path("/n/disk"), Path("/n/agent.img"), Path("/n/monitor"), Path("/n/console.log"))
PACKAGES = [Package("xen", "1", "aa"), Package("python3", "3.11.2-1", "bb")]


def scenario(drivers=("xen", "xen"), **box):
    nodes = [{"name": name, "driver": driver} for name, driver in zip("abc", drivers, strict=False)]
    wanted = {"name": "box", "lab": "x", "policy": "FCFS", "workload": {}, "box": box, "nodes": nodes}
    return check_scenario(wanted, Path("box.toml"))


@pytest.fixture
def qemu(monkeypatch):
    """QEMU has a version that the test sets, at an arbitrary path."""
    monkeypatch.setattr(hardware, "program", lambda name: f"/bin/{name}")

    def set_version(text):
        monkeypatch.setattr(hardware, "run", lambda *_argv: f"QEMU {text}\nCopyright\n")

    set_version("7.2")
    return set_version


def test_a_node_is_a_machine_with_room_for_its_guests_and_for_dom0():
    shape = Shape.of(NODE, "credit", "tcg")
    assert shape.memory_mib >= NODE.memory_mib + 512
    assert shape.cpus == math.ceil(NODE.cpus) == 1
    assert Shape.of(NodeSpec("x", "a", 1.5, 1024, "xen", NODE.address), "credit", "tcg").cpus == 2


def test_the_machine_must_hold_what_nested_nodes_take_for_themselves(monkeypatch):
    spec = spec_of(scenario())
    for there_mib, fits in ((2 * (1024 + hardware.OWN_MIB), True), (2 * (1024 + hardware.OWN_MIB) - 1, False)):
        monkeypatch.setattr(up.psutil, "virtual_memory", lambda mib=there_mib: SimpleNamespace(total=mib << 20))
        if fits:
            up.check_machine(spec, lambda _line: None)
        else:
            with pytest.raises(UserError, match=r"its nodes take 3264 MiB together, this machine has 3263"):
                up.check_machine(spec, lambda _line: None)


def test_both_bridges_of_a_nested_node_have_an_address_of_their_own():
    # the outer machine would intercept an address that both have
    other = NodeSpec("x", "b", 0.8, 1024, "xen", "10.77.255.2/16")
    addresses = {hardware_address(node, inside=inside) for node in (NODE, other) for inside in (False, True)}
    assert len(addresses) == 4
    for address in addresses:
        assert int(address[:2], 16) & 0b11 == 0b10  # unicast, and locally administered


def test_a_saved_state_is_used_by_the_same_machine_only(qemu):
    base = Shape(1632, 1, "credit", "tcg")
    others = [
        Shape(1633, 1, "credit", "tcg"), Shape(1632, 2, "credit", "tcg"), Shape(1632, 1, "credit2", "tcg"),
        Shape(1632, 1, "credit", "kvm"),
    ]  # fmt: skip
    keys = {shape.key() for shape in (base, *others)}
    assert len(keys) == 5
    assert Shape(1632, 1, "credit", "tcg").key() == base.key()
    before = base.key()
    qemu("8.0")
    assert base.key() != before


def test_a_machine_begins_at_its_hypervisor_or_where_its_state_was_saved(qemu):
    shape = Shape(1632, 1, "credit2", "tcg")
    words = command_line(shape, IMAGE, FILES, 4022)
    after = dict(itertools.pairwise(words))
    assert words[0] == "/bin/qemu-system-x86_64"
    assert "-incoming" not in words
    assert after["-kernel"] == "/cache/key/xen"
    assert "sched=credit2" in after["-append"]
    assert after["-initrd"].startswith("/cache/key/vmlinuz ")
    assert after["-initrd"].endswith(",/cache/key/initramfs")
    assert after["-m"] == "1632"
    assert "user,id=outside,hostfwd=tcp:127.0.0.1:4022-:22" in words
    assert f"tap,id=guests,fd={TAP_FD}" in words
    assert any("readonly=on" in word and "/n/agent.img" in word for word in words)
    again = command_line(shape, IMAGE, FILES, 4022, Path("/cache/a state"))
    assert again == [*words, "-incoming", "exec:zstd -dcq '/cache/a state'"]


@given(st.integers(0, 1), st.sampled_from(["name", "version", "sha256"]), st.text(min_size=1, max_size=5))
def test_the_key_of_the_image_follows_its_packages(which, field, more):
    changed = [
        Package(**{"name": p.name, "version": p.version, "sha256": p.sha256} | ({field: getattr(p, field) + more}
                if number == which else {})) for number, p in enumerate(PACKAGES)
    ]  # fmt: skip
    assert build_key(changed, 1, []) != build_key(PACKAGES, 1, [])
    assert build_key(PACKAGES[::-1], 1, []) == build_key(PACKAGES, 1, [])


def test_the_key_of_the_image_follows_the_recipe_and_our_files(tmp_path):
    file = tmp_path / "init"
    file.write_text("one")
    key = build_key(PACKAGES, 1, [file])
    assert len(key) == 20
    assert build_key(PACKAGES, 2, [file]) != key
    file.write_text("two")
    assert build_key(PACKAGES, 1, [file]) != key


def test_without_an_image_who_makes_it_is_named(tmp_path):
    with pytest.raises(UserError, match="testbed lab up"):
        current(tmp_path)


def test_older_images_and_what_killed_builds_left_are_removed(tmp_path):
    for name in ("old", "building-new", "downloads", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "old" / "manifest.json").write_text("{}")
    (tmp_path / "lock").touch()
    (tmp_path / "current").symlink_to("old")
    (tmp_path / "current-77").symlink_to("old")
    (tmp_path / "new" / "manifest.json").write_text("{}")
    remove_others(tmp_path, "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "downloads", "lock", "new"]
    (tmp_path / "new" / "manifest.json").unlink()  # an incomplete image
    remove_others(tmp_path, "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "downloads", "lock"]


SHOWN = """Package: xen
Version: 4.17
SHA256: aa

Package: python3
Version: 3.11.2-1
Description: an interpreter
SHA256: bb
"""


def test_versions_come_from_the_package_lists(monkeypatch):
    monkeypatch.setattr(packages, "run", lambda *_argv, **_settings: SHOWN)
    found = packages.packages(("xen", "python3"))
    assert found["python3"] == Package("python3", "3.11.2-1", "bb")
    with pytest.raises(UserError, match=r"package libvirt-daemon: .*apt-get update"):
        packages.packages(("xen", "libvirt-daemon"))

    def fails(*argv, timeout_s):
        raise CommandError(argv, "exit code 100", "E: No packages found")

    monkeypatch.setattr(packages, "run", fails)
    with pytest.raises(UserError, match=r"E: No packages found: .*apt-get update"):
        packages.packages(("xen",))


def test_another_python_in_the_control_domain_is_refused():
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages.check_python(f"{own}.2-1+b1")
    for version in (f"{own}0.1-1", "3.5.3-1"):
        with pytest.raises(UserError, match=f"has Python {version}.* are for {own}") as caught:
            packages.check_python(version)
        assert "\n" not in str(caught.value)


def test_a_missing_tool_is_told_with_what_installs_it(monkeypatch):
    def program(name):
        if name == "mmdebstrap":
            raise UserError("no such program")
        return name

    monkeypatch.setattr(recipe, "program", program)
    with pytest.raises(UserError, match=r"no mmdebstrap here: .*\./scripts/debian-packages xen"):
        recipe.check_tools()


def test_the_script_installs_what_is_asked_for():
    script = (ROOT / "scripts" / "debian-packages").read_text()
    (line,) = [line for line in script.splitlines() if "xen | test)" in line and "packages+=" in line]
    for package in ("mmdebstrap", "zstd", "e2fsprogs", "qemu-utils", "openssh-client"):
        assert package in line


def test_kvm_is_tried_once_between_two_starts_of_the_computer(tmp_path, monkeypatch):
    device = tmp_path / "kvm"
    monkeypatch.setattr(saved, "_KVM", device)
    image = XenImage(tmp_path)
    assert saved.accelerators(image) == ("tcg",)
    device.touch()
    assert saved.accelerators(image) == ("kvm", "tcg")
    saved.note_no_kvm(image)
    assert saved.accelerators(image) == ("tcg",)
    (tmp_path / "no-kvm").write_text("another kernel, another boot")
    assert saved.accelerators(image) == ("kvm", "tcg")


def test_dom0_reaches_the_broker_of_this_machine_under_another_name():
    assert as_seen_inside("mqtt://lab:p%40ss@127.0.0.1:1883") == "insecure+mqtt://lab:p%40ss@10.0.2.2:1883"
    assert as_seen_inside("mqtt://127.0.0.1:1883") == "insecure+mqtt://10.0.2.2:1883"
    for url in ("mqtt://u:secret@192.0.2.1:1883", "mqtts://127.0.0.1:1883"):
        with pytest.raises(RunError, match=r"expected mqtt://127\.0\.0\.1") as caught:
            as_seen_inside(url)
        assert "secret" not in str(caught.value)


def test_the_agent_in_dom0_is_told_its_bridge_its_image_and_its_address():
    words = arguments(NODE)
    after = dict(itertools.pairwise(words))
    assert after["--driver"] == "xen"
    assert after["--address"] == "10.77.255.1"
    assert after["--telemetry-s"] == "5"
    assert {"bridge=xenbr0", "image=/opt/dfrs/guest-image", "--no-claim", "--broker-from-stdin"} <= set(words)


def test_guests_and_caps_are_read_from_what_virsh_says():
    told = (
        "domain Domain-0\nScheduler      : credit\nweight         : 2048\ncap            : 0\n\n"
        "domain dfrs-a-1\nScheduler      : credit\nweight         : 256\ncap            : 45\n\n"
        "domain dfrs-a-2\nScheduler      : credit\nweight         : 256\ncap            : 0\n\n"
        "domain gone\n"
    )
    assert read_guests(told) == [("dfrs-a-1", 0.45), ("dfrs-a-2", None), ("gone", None)]
    assert read_guests("domain Domain-0\n") == []


def test_a_node_that_was_never_made_is_told_and_not_a_traceback(monkeypatch, tmp_path):
    monkeypatch.setattr("testbed.lab.box.spec.RUN_ROOT", tmp_path)
    with pytest.raises(RunError, match=r"dom0 of a: .*port"):
        Dom0(NODE).command("true")
    assert not Dom0(NODE).answers()


def test_what_the_agent_imports_is_on_its_disk():
    code = (
        "import node_agent.cli, node_agent.agent, node_agent.drivers.make, node_agent.drivers.null, "
        "testbed.bus.client, testbed.bus.address, sys; print(*{name.split('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    owners = packages_distributions()
    needed = {owner.lower().replace("_", "-") for name in loaded for owner in owners.get(name, ())}
    bundled = {name.lower().replace("_", "-") for name in closure(ROOTS)}
    assert needed - {"setuptools", "dfrs-testbed"} <= bundled  # every interpreter here has setuptools
    assert {"paho-mqtt", "numpy"} <= bundled
    with pytest.raises(RunError, match="no-such-distribution is not installed"):
        closure(["no-such-distribution"])


@pytest.mark.parametrize(
    ("drivers", "box", "message"),
    [
        (("xen", "libvirt"), {}, "nodes with driver xen and with driver libvirt: expected one of them alone"),
        (("xen",), {"xen_scheduler": "rtds"}, r"box\.xen_scheduler = 'rtds'"),
    ],
)
def test_what_cannot_be_made_is_refused_with_one_line(drivers, box, message):
    with pytest.raises(UserError, match=message) as caught:
        spec_of(scenario(drivers, **box))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("driver", ["docker", "process", "null", "of-a-plug-in"])
def test_a_driver_without_virtual_machines_gets_no_libvirtd(driver):
    nested, plain = spec_of(scenario(("xen", driver))).nodes
    assert nested.is_nested
    assert (plain.has_hypervisor, plain.has_libvirtd) == (False, False)


def test_a_nested_node_has_a_machine_where_others_have_a_libvirtd():
    assert spec_of(scenario()).xen_scheduler == "credit"
    spec = spec_of(scenario(("xen", "process"), xen_scheduler="credit2"))
    assert spec.xen_scheduler == "credit2"
    nested, plain = spec.nodes
    assert (nested.is_nested, nested.has_hypervisor, nested.has_libvirtd) == (True, True, False)
    assert (plain.is_nested, plain.has_hypervisor, plain.has_libvirtd) == (False, False, False)
    names = [part.name for layer in layers_of(spec, Journal(BoxState(spec, "", 1))) for part in layer]
    assert [name for name in names if name.endswith("dfrs-x-a")] == [
        "network dfrs-x-a", "machine dfrs-x-a", "agent dfrs-x-a",
    ]  # fmt: skip
    assert [name for name in names if name.endswith("dfrs-x-b")] == [
        "network dfrs-x-b", "namespaces dfrs-x-b", "agent dfrs-x-b",
    ]  # fmt: skip
    assert {"agent disk x", "partition dfrs-x-a.partition"} <= set(names)
    libvirt = spec_of(scenario(("libvirt",)))
    others = [part.name for layer in layers_of(libvirt, Journal(BoxState(libvirt, "", 1))) for part in layer]
    assert not [name for name in others if name.startswith(("agent disk", "machine"))]


def test_a_nested_node_comes_before_foreign_load_but_has_no_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(partition_module, "here", lambda: Hierarchies({}, tmp_path))
    spec = spec_of(scenario())
    capacity = Partition(spec, spec.nodes[0])
    assert capacity.quota_us is None
    capacity.make()
    folder = tmp_path / "dfrs-x-a.partition"
    assert (folder / "cpu.max").read_text() == "max 100000"
    assert int((folder / "cpu.weight").read_text()) == 800
    (folder / "cpu.weight").write_text("100")  # another program has changed it
    assert not capacity.there()


def test_the_scenario_of_nested_nodes_is_whole():
    path = ROOT / "scenarios" / "xen-nested.toml"
    chosen = load_scenario(path)
    spec = spec_of(chosen)
    assert [node.driver for node in spec.nodes] == ["xen", "xen"]
    jobs = load_jobs(chosen, path)
    assert len(jobs) >= 8
    assert any(job.tasks == len(spec.nodes) for job in jobs)
    assert min(job.mem_req_frac for job in jobs) * min(node.memory_mib for node in spec.nodes) >= 128


class FakeQemu:
    """A monitor that answers each command as the test says, with an event before each answer."""

    def __init__(self, path, answers):
        self.asked = []
        self._answers = answers
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(1)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        connection, _ = self._server.accept()
        with connection, connection.makefile("rw") as lines:
            lines.write('{"QMP": {}}\n')
            lines.flush()
            for line in lines:
                asked = json.loads(line)
                self.asked.append(asked["execute"])
                answer = self._answers.get(asked["execute"], {"return": {}})
                if answer is None:
                    return
                lines.write(json.dumps({"event": "STOP"}) + "\n" + json.dumps(answer) + "\n")
                lines.flush()

    def close(self):
        self._thread.join(HANG_S)
        self._server.close()


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"query-migrate": {"return": {"status": "failed"}}}, "the state was not saved: failed"),
        ({"migrate": {"error": {"class": "GenericError", "desc": "no device"}}}, "migrate: no device"),
        ({"query-migrate": None}, "query-migrate: QEMU ended"),
    ],
)
def test_a_state_that_is_not_saved_is_an_error(tmp_path, answers, message):
    fake = FakeQemu(tmp_path / "monitor", answers)
    try:
        with pytest.raises(RunError, match=message), Monitor(tmp_path / "monitor") as monitor:
            monitor.save(tmp_path / "state")
    finally:
        fake.close()


def test_a_state_is_saved_when_it_is_said_and_its_file_is_there(tmp_path):
    fake = FakeQemu(tmp_path / "monitor", {"query-migrate": {"return": {"status": "completed"}},
                                           "query-status": {"return": {"status": "running"}}})  # fmt: skip
    writer = threading.Timer(0.3, (tmp_path / "state").touch)
    writer.start()
    try:
        with Monitor(tmp_path / "monitor") as monitor:
            assert monitor.status() == "running"
            monitor.save(tmp_path / "state")
            assert (tmp_path / "state").exists()
    finally:
        fake.close()
        writer.join()
    assert fake.asked[0] == "qmp_capabilities"
    assert fake.asked.count("query-migrate") > 1  # polled until the file existed
    with pytest.raises(RunError, match="monitor"):
        Monitor(tmp_path / "nobody")
