"""Properties of drivers that follow from their names, without an agent, and those that the facts of a node report."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.drivers.builtin import DOCKER, LIBVIRT, NULL, PROCESS, XEN, BuiltInDriver
from node_agent.drivers.make import make_driver
from testbed.bus.drivers import drivers, recorded_traits, traits_in, traits_of
from testbed.bus.messages import NodeFacts
from testbed.bus.traits import DriverTraits
from testbed.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
OLD_RUNS = {"processes": PROCESS, "kvm": LIBVIRT, "xen": XEN}  # archives, and the drivers of their guests
FACTS = NodeFacts(
    cpus=1, memory_mib=1, machine_cores=1, machine_memory_mib=1, cpu_model="", kernel="", driver="process",
    capabilities=(), versions={}, address="", image_port=1, image_free_mib=1,
)  # fmt: skip
traits = st.builds(
    DriverTraits, simulated=st.booleans(), runs_own_programs=st.booleans(), guests_are_children=st.booleans(),
    hypervisor=st.sampled_from(["", "qemu", "xen", "other"]), owns_machine=st.booleans(), extra=st.just(""),
)  # fmt: skip


def test_each_driver_of_this_package_is_found_with_its_traits() -> None:
    built_in = {"process": PROCESS, "null": NULL, "libvirt": LIBVIRT, "docker": DOCKER, "xen": XEN}
    assert {name: point.load() for name, point in drivers().items() if name in built_in} == built_in
    assert {name: traits_of(name) for name in built_in} == {name: each.traits for name, each in built_in.items()}


@pytest.mark.parametrize("name", ["process", "null"])  # the others need software that is not installed everywhere
def test_a_class_declares_what_its_entry_point_does(name: str) -> None:
    driver = make_driver(name)
    assert driver.name == name
    assert driver.traits == traits_of(name)


def test_traits_are_known_where_neither_libvirt_nor_docker_is_installed() -> None:
    code = (
        "import sys; sys.modules['libvirt'] = sys.modules['docker'] = None\n"
        "from testbed.bus.drivers import traits_of\n"
        "assert traits_of('xen').owns_machine and traits_of('docker').extra == 'docker'\n"
        "assert 'node_agent.drivers.protocol' not in sys.modules, 'no driver is imported for it'\n"
        "from node_agent.drivers.make import make_driver\n"
        "try: make_driver('libvirt')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "UserError driver 'libvirt': import of libvirt halted; None in sys.modules: "
        "expected pip install 'dfrs-testbed[libvirt]'\n"
    )


def test_a_plug_in_declares_its_traits_in_its_class(install_plugin: Callable[[str, str, str], Path]) -> None:
    code = (
        "from node_agent.drivers.process import ProcessDriver\n"
        "from testbed.bus.traits import DriverTraits\n"
        "class One(ProcessDriver): name = 'one'\n"
        "class Two(ProcessDriver):\n    name = 'two'\n    traits = DriverTraits(hypervisor='qemu')\n"
        "def three(): return One()\n"
    )
    points = "[testbed.drivers]\none = own_drivers:One\ntwo = own_drivers:Two\nthree = own_drivers:three\n"
    install_plugin("own_drivers", code, points + "four = not_there:Four\n")
    assert traits_of("one") == PROCESS.traits
    assert traits_of("two") == DriverTraits(hypervisor="qemu")
    assert traits_of("three") == traits_of("four") == traits_of("of-nobody") == DriverTraits()
    assert isinstance(drivers()["null"].load(), BuiltInDriver)
    with pytest.raises(UserError, match=r"driver 'four': .*not_there.*: expected the package that has it"):
        make_driver("four")


@given(traits)
def test_a_node_says_it_itself_and_agents_of_earlier_releases_by_their_drivers_name(declared: DriverTraits) -> None:
    told = msgspec.structs.replace(FACTS, traits=declared)
    assert traits_in(told) == declared
    assert traits_in(msgspec.json.decode(msgspec.json.encode(told), type=NodeFacts)) == declared
    assert recorded_traits(msgspec.to_builtins(told)) == declared
    old = {key: value for key, value in msgspec.to_builtins(told).items() if key not in {"traits", "guest_boot_s"}}
    assert traits_in(msgspec.convert(old, NodeFacts)) == recorded_traits(old) == PROCESS.traits


@pytest.mark.parametrize("bad", [None, 1, "x", {"simulated": "yes"}, []])
def test_a_manifest_that_somebody_changed_is_read_by_the_drivers_name(bad: object) -> None:
    assert recorded_traits({"driver": "null", "traits": bad}) == NULL.traits
    assert recorded_traits({"traits": bad}) == DriverTraits()


@pytest.mark.parametrize("name", OLD_RUNS)
def test_drivers_of_old_runs_have_traits(name: str) -> None:
    with tarfile.open(ROOT / f"tests/old_runs/{name}.tar.xz") as archive:
        (member,) = (each for each in archive.getmembers() if Path(each.name).name == "manifest.json")
        data = archive.extractfile(member)
        assert data is not None
        nodes = json.loads(data.read())["nodes"]
    assert nodes
    for facts in nodes.values():
        assert "traits" not in facts
        assert recorded_traits(facts) == OLD_RUNS[name].traits


def test_no_module_compares_the_name_of_a_driver() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/count-driver-names", "--json"], capture_output=True, text=True, check=False
    )
    assert json.loads(done.stdout) == {"modules_that_compare_the_name_of_a_driver": 0, "lines": {}}
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('if host.driver == "docker": pass', True),
        ('if "xen" != facts.get("driver"): pass', True),
        ('if node.driver in {"libvirt", "xen"}: pass', True),
        ('_ELSEWHERE = frozenset({"libvirt", "null"})\nok = host.driver not in _ELSEWHERE', True),
        ('_NULL = "null"\nok = driver == _NULL', True),
        ('OF = {"xen": "xen"}\nname = OF.get(node.driver, "qemu")', True),
        ('OF = {"xen": 1}\nname = OF[node.driver]', True),
        ('match driver:\n    case "process": pass', True),
        ('driver = "process"', False),
        ("if driver == other.driver: pass", False),
        ('if extra == "docker": pass', False),
        ('table = Table("node", "driver", "xen")', False),
        ('make_driver("null")', False),
    ],
)
def test_comparisons_are_found_however_they_are_written(source: str, found: bool) -> None:
    namespace: dict[str, object] = {"__file__": str(ROOT / "scripts/count-driver-names"), "__name__": "count"}
    exec(compile((ROOT / "scripts/count-driver-names").read_text(), "count", "exec"), namespace)  # noqa: S102  # our own
    comparisons, names = namespace["comparisons"], namespace["names"]
    assert bool(list(comparisons(source, names()))) is found
