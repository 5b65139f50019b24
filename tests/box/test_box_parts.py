"""Names, settings, and the order in which a lab is made and removed."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from testbed.cli import lab as command
from testbed.errors import RunError, UserError
from testbed.lab.box import control_group as control_group_module
from testbed.lab.box import partition as partition_module
from testbed.lab.box.commands import CommandError, run
from testbed.lab.box.control_group import ControlGroup, control_groups
from testbed.lab.box.order import make_in_order, remove_in_order
from testbed.lab.box.partition import Hierarchies, Partition, hierarchies
from testbed.lab.box.services import arguments
from testbed.lab.boxes import spec_of
from testbed.scenario.schema import check_scenario, load_scenario

ROOT = Path(__file__).parents[2]
SCENARIO = {
    "name": "box", "lab": "x", "policy": "FCFS", "workload": {}, "box": {},
    "nodes": [{"name": "a", "driver": "libvirt", "cpus": 0.8}, {"name": "b", "driver": "process"}],
}  # fmt: skip


def scenario(**changes):
    return check_scenario({**SCENARIO, **changes}, Path("box.toml"))


class FakePart:
    """A part of a lab that is a set of names; it can fail, and records the existing names at each attempt."""

    def __init__(self, name, world, breaks=False):
        self.name = name
        self.world = world
        self.breaks = breaks
        self.tries = []

    def there(self):
        return self.name in self.world

    def make(self):
        self.tries.append(set(self.world))
        if self.breaks:
            raise RunError(f"{self.name}: broken")
        self.world.add(self.name)

    def remove(self):
        self.tries.append(set(self.world))
        if self.breaks:
            raise OSError("busy")
        if self.name not in self.world:
            return []
        self.world.discard(self.name)
        return [self.name]


class Book:
    def __init__(self, world):
        self.world = world
        self.intended = []
        self.done = []

    def intend(self, part):
        assert part not in self.world  # the intent comes first
        self.intended.append(part)

    def made(self, part):
        assert part in self.world
        self.done.append(part)


LAYERS = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(
    lambda sizes: [[f"{layer}.{number}" for number in range(size)] for layer, size in enumerate(sizes)]
)


@given(LAYERS, st.data())
def test_a_half_made_lab_is_taken_down_whole_the_last_layer_first(layers, data):
    names = [name for layer in layers for name in layer]
    done = data.draw(st.sets(st.sampled_from(names)))
    broken = data.draw(st.sets(st.sampled_from(names), max_size=2))
    world = set(done)
    parts = {name: FakePart(name, world, name in broken) for name in names}
    said = []
    outcome = remove_in_order([[parts[name] for name in layer] for layer in layers], said.append)
    assert world == done & broken
    assert sorted(outcome.removed) == sorted(done - broken)
    assert sorted(outcome.failures) == sorted(f"{name}: busy" for name in broken)
    assert sorted(said) == sorted(f"removed {name}" for name in done - broken)
    for number, layer in enumerate(layers):
        later = {name for after in layers[number + 1 :] for name in after}
        for name in layer:
            (seen,) = parts[name].tries  # one attempt each, after the layers above, except for failed parts
            assert seen & later <= broken


@given(LAYERS, st.data())
def test_making_makes_only_what_is_missing_and_stops_at_the_first_layer_that_breaks(layers, data):
    names = [name for layer in layers for name in layer]
    world = set(data.draw(st.sets(st.sampled_from(names))))
    broken = data.draw(st.sets(st.sampled_from(names), max_size=1)) - world
    before = set(world)
    parts = {name: FakePart(name, world, name in broken) for name in names}
    book = Book(world)
    plan = [[parts[name] for name in layer] for layer in layers]
    if broken:
        with pytest.raises(RunError, match="broken"):
            make_in_order(plan, book, lambda _line: None)
        (name,) = broken
        last = next(number for number, layer in enumerate(layers) if name in layer)
        assert not any(parts[later].tries for layer in layers[last + 1 :] for later in layer)
        assert name in book.intended
        assert name not in book.done
    else:
        assert sorted(make_in_order(plan, book, lambda _line: None)) == sorted(set(names) - before)
        assert world == set(names)
        assert sorted(book.done) == sorted(names)
        assert make_in_order(plan, book, lambda _line: None) == []  # a second time there is nothing to do
    assert set(book.intended) == {name for name in names if parts[name].tries}
    assert not set(book.intended) & before


V1 = """\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime shared:4 - cgroup cgroup rw,cpuset
"""
V2 = "41 31 0:38 / {} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_control_groups_of_every_kind_are_recognised():
    assert hierarchies(V1).kind == "v1"
    assert [str(root) for root in hierarchies(V1).roots] == ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpuset"]
    both = hierarchies(V1 + V2.format("/sys/fs/cgroup/unified"))
    assert both.kind == "hybrid"
    assert str(both.roots[-1]) == "/sys/fs/cgroup/unified"
    only = hierarchies(V2.format("/sys/fs/cgroup"))
    assert only.kind == "v2"
    assert [str(root) for root in only.roots] == ["/sys/fs/cgroup"]
    with pytest.raises(UserError, match="no cpuset controller"):
        hierarchies(V1.splitlines()[0] + "\n" + V2.format("/sys/fs/cgroup/unified"))
    with pytest.raises(UserError, match="no cpu, cpuacct, cpuset controller"):
        hierarchies("")


def test_a_capacity_on_version_2_is_a_quota_a_weight_and_controllers_for_the_guests(tmp_path, monkeypatch):
    monkeypatch.setattr(partition_module, "here", lambda: Hierarchies({}, tmp_path))
    spec = spec_of(scenario())
    capacity = Partition(spec, spec.nodes[0])
    assert not capacity.there()
    capacity.make()
    assert capacity.there()
    folder = tmp_path / "dfrs-x-a.partition"
    assert (folder / "cpu.max").read_text() == "88000 100000"
    assert int((folder / "cpu.weight").read_text()) > 100
    for level in (tmp_path, folder):
        assert (level / "cgroup.subtree_control").read_text() == "+cpu +cpuset"
    (folder / "cpu.max").write_text("max 100000")  # another program has changed it
    assert not capacity.there()


@pytest.mark.parametrize(("groups", "file", "most"), [("v1", "cpu.shares", "262144"), ("v2", "cpu.weight", "10000")])
def test_the_group_of_a_labs_own_processes_has_the_greatest_weight(groups, file, most, tmp_path, monkeypatch):
    roots = Hierarchies({"cpu": tmp_path, "cpuset": tmp_path} if groups == "v1" else {}, tmp_path)
    monkeypatch.setattr(control_group_module, "here", lambda: roots)
    own = ControlGroup("x")
    assert (own.there(), control_groups()) == (False, [])
    own.make()
    assert own.there()
    assert (tmp_path / "dfrs-x-lab.control" / file).read_text() == most
    assert control_groups() == ["dfrs-x-lab.control"]
    (tmp_path / "dfrs-x-lab.control" / file).write_text("100")  # another program has changed it
    assert not own.there()


def test_a_box_has_an_address_and_a_capacity_for_each_node():
    spec = spec_of(scenario(box={"guest_network": "172.16.0.0/12", "emulator_headroom_frac": 0.25}))
    assert [node.address for node in spec.nodes] == ["172.31.255.1/12", "172.31.255.2/12"]
    assert [node.has_hypervisor for node in spec.nodes] == [True, False]
    assert Partition(spec, spec.nodes[0]).quota_us == 100_000
    assert spec.nodes[0].full_name == "dfrs-x-a"


def test_the_guests_of_a_node_have_the_cpus_of_its_cpu_set():
    nodes = [
        {"name": "a", "driver": "libvirt", "cpu_set": [0, 2]}, {"name": "b", "cpu_set": [1]}, {"name": "c"},
        {"name": "d", "driver": "libvirt"},
    ]  # fmt: skip
    spec = spec_of(check_scenario({**SCENARIO, "nodes": nodes}, Path("x")))
    of = {node.name: arguments(node) for node in spec.nodes}
    assert "pin=0,2" in of["a"]
    assert "--cpu-set" not in of["a"]  # libvirt starts its guests
    assert of["b"][of["b"].index("--cpu-set") + 1] == "1"
    assert not [word for name in "cd" for word in of[name] if word == "--cpu-set" or word.startswith("pin")]
    nested = [{"name": "a", "driver": "xen", "cpu_set": [0]}]
    with pytest.raises(UserError, match=r"node a: cpu_set = \[0\]: expected none, as a node with driver xen is"):
        spec_of(check_scenario({**SCENARIO, "nodes": nested}, Path("x")))


@given(
    st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True), st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
)
def test_names_that_pass_fit_the_kernel(lab, node):
    wanted = {**SCENARIO, "lab": lab, "nodes": [{"name": node, "driver": "libvirt"}]}
    if len(f"dfrs-{lab}-{node}") > 60 or node in {"fabric", "broker"}:
        with pytest.raises(UserError):
            spec_of(check_scenario(wanted, Path("box.toml")))
        return
    (made,) = spec_of(check_scenario(wanted, Path("box.toml"))).nodes
    assert len(str(made.socket)) < 100
    assert len(made.full_name) <= 64
    assert ipaddress.IPv4Interface(made.address).network == ipaddress.IPv4Network("10.77.0.0/16")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"box": {"guest_network": "8.8.0.0/16"}}, r"box\.guest_network = '8\.8\.0\.0/16': expected a private IPv4"),
        ({"box": {"guest_network": "127.0.0.0/16"}}, "expected a private IPv4"),
        ({"box": {"guest_network": "10.77.1.1/16"}}, "has host bits set"),
        ({"box": {"guest_network": "10.77.0.0/24"}}, "from /8 to /20"),
        ({"box": {"link_mbit": 10}}, "unknown key box.link_mbit; nearest: link_mbit_per_s"),
        ({"broker": {"address": "mqtt://h"}}, r"a \[box\] brings its own broker"),
        ({"nodes": [{"name": "a", "spawn": True}]}, "without spawn = true"),
        ({"nodes": [{"name": "fabric"}]}, "a node named fabric"),
        ({"nodes": [{"name": "a" * 60}]}, "expected 60 at most"),
        ({"box": None}, r"it has no \[box\] table"),
    ],
)
def test_what_cannot_be_made_is_refused_with_one_line(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        spec_of(scenario(**changes))
    assert "\n" not in str(caught.value)


def test_the_run_spawns_no_agents_for_a_box():
    assert not any(node.spawn for node in scenario().nodes)
    assert all(node.spawn for node in scenario(box=None).nodes)


def test_the_scenario_of_the_box_is_whole():
    chosen = load_scenario(ROOT / "scenarios" / "kvm-two-nodes.toml")
    spec = spec_of(chosen)
    assert {node.driver for node in spec.nodes} == {"libvirt"}
    from testbed.scenario.jobs import load_jobs

    jobs = load_jobs(chosen, ROOT / "scenarios" / "kvm-two-nodes.toml")
    assert len(jobs) >= 12
    assert sum(job.tasks == len(spec.nodes) for job in jobs) >= 3
    assert min(job.mem_req_frac for job in jobs) * min(node.memory_mib for node in spec.nodes) >= 128


def test_a_program_that_fails_or_hangs_is_told_with_what_it_said():
    with pytest.raises(CommandError, match=r"^sh -c .*: exit code 3: the last$"):
        run("sh", "-c", "echo first >&2; echo the last >&2; exit 3")
    with pytest.raises(CommandError, match=r"^sleep infinity: no end after 0\.1 s$"):
        run("sleep", "infinity", timeout_s=0.1)  # speed: what is tested; it never ends by itself
    with pytest.raises(UserError, match="no-such-program: no such program"):
        run("no-such-program")


def test_a_lab_is_described_by_a_file_without_name_policy_and_workload(tmp_path):
    file = tmp_path / "two.toml"
    file.write_text('[[nodes]]\nname = "a"\ncpus = 0.5\nmemory_mib = 320\n')
    result = CliRunner().invoke(command.lab, ["up", str(file)])
    assert str(result.exception) == "scenario two: it has no [box] table, so there is no lab to make"


@pytest.mark.parametrize("arguments", [["up", str(ROOT / "scenarios" / "kvm-two-nodes.toml")], ["down"], ["status"]])
def test_who_is_not_root_is_told_so(monkeypatch, arguments):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    result = CliRunner().invoke(command.lab, arguments)
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(f"testbed lab {arguments[0]}: needs root")
