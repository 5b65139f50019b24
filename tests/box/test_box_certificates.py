"""Settings of a box's hypervisors for live migrations, and the certificates by which they authenticate each other."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from testbed.errors import UserError
from testbed.lab.box import certificates as certificates_module
from testbed.lab.box import spec as spec_module
from testbed.lab.box.certificates import Certificates
from testbed.lab.box.hypervisor import Libvirtd, daemon_settings, driver_settings
from testbed.lab.box.plan import layers_of
from testbed.lab.box.services import arguments
from testbed.lab.box.spec import BoxSpec
from testbed.lab.box.state import BoxState, Journal
from testbed.lab.boxes import spec_of
from testbed.lab.secure.authority import Authority
from testbed.lab.secure.hypervisor import FILES
from testbed.scenario.schema import check_scenario

LENSES = Path("/usr/share/augeas/lenses")


def box(**migration: object) -> BoxSpec:
    table = {
        "name": "box", "lab": "x", "policy": "FCFS", "workload": {}, "box": {}, "migration": migration,
        "nodes": [{"name": "a", "driver": "libvirt"}, {"name": "b", "driver": "libvirt"}, {"name": "c"}],
    }  # fmt: skip
    return spec_of(check_scenario(table, Path("box.toml")))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(spec_module, "RUN_ROOT", tmp_path / "run")
    return tmp_path / "run"


def journal(spec: BoxSpec) -> Journal:
    return Journal(BoxState(spec, "", 1))


def test_by_default_a_daemon_listens_by_tls_alone_to_the_other_nodes() -> None:
    spec = box()
    first = spec.nodes[0]
    settings = daemon_settings(first, Libvirtd(first, journal(spec))._others)
    assert (settings["listen_tls"], settings["listen_tcp"], settings["listen_addr"]) == (1, 0, "10.77.255.1")
    assert (settings["tls_no_verify_certificate"], settings["tls_no_sanity_certificate"]) == (0, 0)
    assert settings["tls_allowed_dn_list"] == ["CN=b"]  # without itself, and without a node that has no hypervisor
    assert "auth_tcp" not in settings
    told = driver_settings(first)
    assert (told["migrate_tls_force"], told["migrate_tls_x509_verify"]) == (1, 1)
    assert told["migrate_tls_x509_cert_dir"] == "/etc/pki/qemu"
    assert told["migration_host"] == told["migration_address"] == "10.77.255.1"
    assert "migration=tls" in arguments(first)


def test_plain_tcp_only_where_the_scenario_asks_for_it() -> None:
    spec = box(transport="tcp")
    first = spec.nodes[0]
    settings = daemon_settings(first, ["b"])
    assert (settings["listen_tls"], settings["listen_tcp"], settings["auth_tcp"]) == (0, 1, "none")
    assert not any(key.startswith("migrate_tls") for key in driver_settings(first))
    assert "migration=tcp" in arguments(first)
    assert not [part for layer in layers_of(spec, journal(spec)) for part in layer if isinstance(part, Certificates)]
    assert box() != spec  # so a lab that is up with one setting does not match the other


@pytest.mark.skipif(not LENSES.is_dir(), reason="augeas' lenses of libvirt's files are not installed")
@pytest.mark.parametrize("migration", [{}, {"transport": "tcp"}])
def test_libvirt_knows_every_key_with_the_type_that_it_is_given(migration: dict[str, object]) -> None:
    node = box(**migration).nodes[0]
    kinds = {"bool": int, "int": int, "str": str, "str_array": list}
    for lens, settings in (
        ("libvirtd.aug", daemon_settings(node, ["b"])), ("libvirtd_qemu.aug", driver_settings(node))
    ):  # fmt: skip
        known = dict(re.findall(r'(\w+)_entry\s+"(\w+)"', (LENSES / lens).read_text()))
        types = {key: kind for kind, key in re.findall(r'(\w+)_entry\s+"(\w+)"', (LENSES / lens).read_text())}
        assert known
        for key, value in settings.items():
            assert isinstance(value, kinds[types[key]]), f"{lens}: {key} = {value!r}: expected {types[key]}"


def test_each_node_gets_its_own_certificate_where_libvirt_and_qemu_look_for_it(root: Path) -> None:
    spec = box()
    part = Certificates(spec)
    assert part in [each for layer in layers_of(spec, journal(spec)) for each in layer]
    assert not part.there()
    part.make()
    assert part.there()
    authority = Authority(root / "x" / "certificates")
    assert {held.name: held.hosts for held in authority.held()} == {"a": ("10.77.255.1",), "b": ("10.77.255.2",)}
    for node in spec.nodes[:2]:
        for place, source in FILES.items():
            path = node.pki_dir / place
            assert path.read_bytes() == (authority.folder / "nodes" / node.name / source).read_bytes()
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not spec.nodes[2].pki_dir.exists()
    one, two = ((node.pki_dir / "libvirt/private/serverkey.pem").read_bytes() for node in spec.nodes[:2])
    assert one != two
    before = {node.name: (node.pki_dir / "libvirt/servercert.pem").read_bytes() for node in spec.nodes[:2]}
    part.make()  # a repeat changes nothing
    assert before == {n.name: (n.pki_dir / "libvirt/servercert.pem").read_bytes() for n in spec.nodes[:2]}
    (spec.nodes[1].pki_dir / "qemu/client-cert.pem").unlink()
    assert not part.there()
    part.make()
    assert part.there()
    assert part.remove() == ["certificates x"]
    assert part.remove() == []


def test_without_the_extra_there_is_one_clear_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del root
    monkeypatch.setitem(__import__("sys").modules, "testbed.lab.secure.authority", None)
    with pytest.raises(UserError, match=r"lab x: .*expected the extra `secure` .*transport = \"tcp\"") as refused:
        Certificates(box()).make()
    assert "\n" not in str(refused.value)
    assert certificates_module.__doc__
