"""A saved guest is restored as this node's own domain, or not at all, with any content of its file."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agent.saved_domains import ATTACKS, COOKIE, EMULATOR, QEMU, SPEC, XEN, attacked, qemu_file

from node_agent.drivers.protocol import DriverError

pytest.importorskip("libvirt", reason="libvirt-python is not installed: pip install 'dfrs-testbed[libvirt]'")

import libvirt

from node_agent.drivers.virt.domain import Machine, Place, domain_xml, owner_of
from node_agent.drivers.virt.own_domain import check_same, own_again, parsed
from node_agent.drivers.virt.qemu import Qemu
from node_agent.drivers.virt.xen import Xen, _Guests

HERE = Place("/dfrs-l-beta", "br7")
MACHINE = Machine("qemu", Path("/k/beta/vmlinuz"), Path("/k/beta/initramfs"))


class Libvirt:
    """A connection that records restores; restoring is the only permitted operation on a file."""

    def __init__(self, emulator: str = EMULATOR) -> None:
        self.emulator = emulator
        self.restored: list[tuple[str, str | None, int]] = []

    def getDomainCapabilities(self, *_which: object) -> str:  # noqa: N802  # libvirt's name
        return f"<domainCapabilities><path>{self.emulator}</path><domain>qemu</domain></domainCapabilities>"

    def restoreFlags(self, file: str, xml: str | None, flags: int) -> None:  # noqa: N802  # libvirt's name
        self.restored.append((file, xml, flags))


def qemu() -> Qemu:
    platform = Qemu(HERE, "tcg", "")
    platform._machine = MACHINE
    return platform


@contextmanager
def written(xml: str, cookie: str = COOKIE) -> Iterator[Path]:
    """Yield a file that QEMU's driver could have written."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.img")
        path.write_bytes(qemu_file(xml, cookie))
        yield path


def restored(xml: str, spec=SPEC, platform: Qemu | None = None) -> str:
    """Restore a file with a domain on node beta; return the XML that libvirt received."""
    connection = Libvirt()
    with written(xml) as path:
        (platform or qemu()).restore(connection, path, spec, "beta")
    ((file, given_xml, flags),) = connection.restored
    assert (file, flags) == (str(path), libvirt.VIR_DOMAIN_SAVE_PAUSED)
    assert given_xml is not None
    return given_xml


def refused(xml: str, spec=SPEC, cookie: str = COOKIE) -> str:
    """Try the same; return the reason of the refusal, and assert that libvirt was not called."""
    connection = Libvirt()
    with written(xml, cookie) as path, pytest.raises(DriverError) as error:
        qemu().restore(connection, path, spec, "beta")
    assert connection.restored == []
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_guest_of_another_node_comes_back_in_this_node_s_place():
    root = ET.fromstring(restored(QEMU))  # noqa: S314  # checked
    assert root.findtext("resource/partition") == "/dfrs-l-beta"
    assert root.find("devices/interface/source").attrib == {"bridge": "br7"}
    assert root.findtext("os/kernel") == "/k/beta/vmlinuz"
    assert root.findtext("os/initrd") == "/k/beta/initramfs"
    assert root.findtext("devices/emulator") == EMULATOR
    owner = owner_of(ET.tostring(root, encoding="unicode"))
    assert (owner["node"], owner["lease"], owner["guest"]) == ("beta", SPEC.lease, SPEC.guest)
    assert root.find("devices/channel/source").attrib == {"mode": "bind"}  # libvirt chooses its path
    for left_out in ("cputune", "seclabel", "devices/interface/target", "devices/interface/alias"):
        assert root.find(left_out) is None
    # the hardware that the guest sees
    assert root.findtext("uuid") == "577ae7d9-35bf-48e0-a152-181ac112c09c"
    assert root.find("os/type").get("machine") == "pc-i440fx-7.2"
    assert root.find("devices/interface/address").get("slot") == "0x02"
    assert len(root.findall("resource")) == len(root.findall("metadata")) == 1


def test_a_pin_is_this_node_s():
    platform = qemu()
    platform._machine = Machine("qemu", MACHINE.kernel, MACHINE.initramfs, pin="0-3")
    for pinned in (QEMU, QEMU.replace("placement='static'", "placement='static' cpuset='7'")):
        vcpu = ET.fromstring(restored(pinned, platform=platform)).find("vcpu")  # noqa: S314  # checked
        assert vcpu.attrib == {"placement": "static", "cpuset": "0-3"}
        assert ET.fromstring(restored(pinned)).find("vcpu").attrib == {"placement": "static"}  # noqa: S314  # checked


def test_a_file_has_less_of_what_libvirt_adds_to_a_running_domain():
    less = re.sub(r"<(alias|target dev)[^>]*/>", "", QEMU)
    less = re.sub(r"(?s)<(seclabel|cputune|resource).*?</\1>", "", less).replace(" id='20'", "")
    less = re.sub(r" path='/var/lib[^']*'", "", less)
    assert ET.fromstring(restored(less)).findtext("resource/partition") == "/dfrs-l-beta"  # noqa: S314  # checked


def test_the_processor_under_kvm_is_the_host_s_or_the_model_that_it_was():
    platform = qemu()
    platform._machine = Machine("kvm", MACHINE.kernel, MACHINE.initramfs)
    kvm = QEMU.replace("type='qemu'", "type='kvm'")
    for form in (
        "<cpu mode='host-model' check='partial'/>",
        "<cpu mode='custom' match='exact'><model>EPYC</model></cpu>",
    ):
        assert restored(re.sub(r"(?s)<cpu .*</cpu>", form, kvm), platform=platform)


@pytest.mark.parametrize("name", ATTACKS)
def test_what_somebody_wrote_into_a_file_is_refused_before_libvirt_sees_it(name: str):
    why = refused(attacked(QEMU, name))
    assert "its domain" in why


def test_the_first_difference_is_named_with_what_would_be_right():
    assert refused(attacked(QEMU, "another-emulator")) == (
        "its domain has devices/emulator = '/opt/pwn.sh': expected nothing there"
    )
    swapped = QEMU.replace(f"<emulator>{EMULATOR}<", "<emulator>/opt/pwn.sh<")
    assert "devices/emulator = '/opt/pwn.sh'" in refused(swapped)
    assert refused(attacked(QEMU, "vcpus")) == "its domain has vcpu = '64': expected '2'"
    assert refused(attacked(QEMU, "disk")).startswith("its domain has devices/disk = ''")
    assert "commandline" in refused(attacked(QEMU, "commandline"))
    assert refused(QEMU.replace("<acpi/>", "")) == "its domain has no features/acpi = '', which our own has"
    without = re.sub(r"(?s)<interface.*?</interface>", "", QEMU)
    assert "its domain has no devices/interface" in refused(without)


@pytest.mark.parametrize("xml", ["", "rubbish", "<domain", "<domainsnapshot/>", "<domain/>", "<domain>" * 100])
def test_what_is_no_domain_is_refused(xml: str):
    assert "its domain" in refused(xml) or "expected a domain" in refused(xml)


def test_a_domain_beyond_all_measure_is_refused():
    assert "bytes: expected 65536 at most" in refused(QEMU.replace("utc", "u" * (1 << 17)))
    assert "1048576 at most" in refused(QEMU.replace("utc", "u" * (1 << 20)))
    assert "marks of elements" in refused(QEMU.replace("<acpi/>", "<acpi/>" * 2000))
    assert "16 deep" in refused(QEMU.replace("<acpi/>", "<acpi>" * 400 + "</acpi>" * 400))


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("<domain ", "<?xml version='1.0' encoding='UTF-7'?><domain ", "'<?'"),
        ("<devices>", "<?x y?><devices>", "'<?'"),
        ("<devices>", "<!-- x --><devices>", "'<!'"),
        ("<name>dfrs-ab12-j3-t1<", "<name><![CDATA[dfrs-ab12-j3-t1]]><", "'<!'"),
        ("lease=", "x='\u00e9' lease=", "ASCII"),
        ('node="alpha"', 'node="&#233;"', "ASCII"),
        (">204800</memory>", ">&#x662;04800</memory>", "ASCII"),
        ("</domain>", "</domain>\0<domain/>", "ASCII"),
        ("<devices>", "<devices>words", "devices = 'words'"),
        ("</devices>", "</devices>words", "has  = 'words'"),
    ],
)
def test_what_two_readers_could_read_in_two_ways_is_refused(before: str, after: str, words: str):
    assert words in refused(QEMU.replace(before, after, 1))


@pytest.mark.parametrize(
    "cookie",
    ["<cookie><disk/></cookie>", "<domain/>", "rubbish", "<cookie>words</cookie>", "<!DOCTYPE x><cookie/>",
     "<cookie><cpu><model>/opt/pwn.sh</model></cpu></cookie>", "<cookie><cpu/><emulator>/x</emulator></cookie>"],
)  # fmt: skip
def test_nothing_is_beside_a_domain_but_its_processor(cookie: str):
    refused(QEMU, cookie=cookie)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ((b"LibvirtQemudPart", 2, 9, 0, 0, 0), "not to its end"),
        ((b"LibvirtQemudSave", 1, 9, 0, 0, 0), "version 1: expected 2"),
        ((b"LibvirtQemudSave", 2 << 24, 9, 0, 0, 0), "version 33554432"),  # in the other byte order
        ((b"LibvirtQemudSave", 2, 9, 0, 1, 0), "format 1: expected 0"),  # libvirt would run gzip
        ((b"LibvirtQemudSave", 2, 4_000_000_000, 0, 0, 0), "4000000000 bytes: expected 1048576"),
        ((b"LibvirtQemudSave", 2, 9, 0, 0, 10), "10 of 9 bytes"),  # libvirt reads as many bytes as the difference
        ((b"LibvirtQemudSave", 2, 900, 0, 0, 0), "cut off after 9 of 900 bytes"),
    ],
)
def test_headers_that_libvirt_would_not_write_are_refused(tmp_path: Path, header: tuple[object, ...], words: str):
    path = tmp_path / "a.img"
    path.write_bytes(struct.pack("<16sIIIII56x", *header) + b"<domain/>")
    for act in (
        lambda: qemu().restore(Libvirt(), path, SPEC, "beta"),
        lambda: qemu().saved_guest(Libvirt(), path),
    ):
        with pytest.raises(DriverError, match=words):
            act()
    path.write_bytes(b"LibvirtQemudSave")
    with pytest.raises(DriverError, match="it cannot be read"):
        qemu().saved_guest(Libvirt(), path)


def test_whose_file_it_is_is_read_without_libvirt():
    with written(QEMU) as path:
        assert qemu().saved_guest(Libvirt(), path) == SPEC.guest


def test_a_guest_of_another_command_is_refused():
    for change in ({"memory_mib": 300}, {"guest": "dfrs-ab12-j4-t1"}, {"address": "10.77.1.6/16"}, {"address": ""}):
        refused(QEMU, msgspec.structs.replace(SPEC, **change))


@given(st.data())
def test_no_element_that_is_put_anywhere_changes_what_libvirt_gets(data):
    """An element with any name and text, below any element of the file, is refused or has no effect."""
    root = ET.fromstring(QEMU)  # noqa: S314  # our own
    parent = data.draw(st.sampled_from(list(root.iter())))
    names = ["disk", "source", "emulator", "arg", "filesystem", "alias", "cpu", "feature", "address", "boot", "target"]
    added = ET.SubElement(parent, data.draw(st.sampled_from(names)))
    added.text = data.draw(st.sampled_from(["", "/opt/pwn.sh", "/dev/sda", EMULATOR]))
    for name in data.draw(st.lists(st.sampled_from(["path", "dev", "file", "dir", "type", "name"]), unique=True)):
        added.set(name, data.draw(st.sampled_from(["/dev/sda", "/opt/pwn.sh", "file", "x"])))
    try:
        given_xml = restored(ET.tostring(root, encoding="unicode"))
    except DriverError:
        return
    assert "/opt/pwn.sh" not in given_xml
    assert "/dev/sda" not in given_xml


# --- Xen, whose files libvirt restores unchanged


def saved(tmp_path: Path, xml: str) -> Path:
    path = tmp_path / "a.img"
    text = xml.encode() + b"\0"
    path.write_bytes(struct.pack("<16sII40x", b"libvirt-xml\n \0 \r", 2, len(text)) + text + b"memory")
    return path


def xen(script: str = "") -> Xen:
    platform = Xen(Place(bridge="xenbr0"), "pv", script)
    platform._guests = _Guests(Path("/k/vmlinux"), Path("/k/initramfs"), "credit", 6.0)
    return platform


def xen_refuses(tmp_path: Path, xml: str, script: str = "") -> str:
    connection = Libvirt()
    with pytest.raises(DriverError) as error:
        xen(script).restore(connection, saved(tmp_path, xml), SPEC, "beta")
    assert connection.restored == []
    return str(error.value)


def test_xen_restores_a_file_of_a_like_node(tmp_path: Path):
    connection = Libvirt()
    image = saved(tmp_path, XEN)
    xen().restore(connection, image, SPEC, "beta")
    assert connection.restored == [(str(image), None, libvirt.VIR_DOMAIN_SAVE_PAUSED)]


@pytest.mark.parametrize("name", [name for name, (before, _) in ATTACKS.items() if before in XEN])
def test_xen_takes_nothing_that_somebody_wrote_into_a_file(tmp_path: Path, name: str):
    assert "its domain" in xen_refuses(tmp_path, attacked(XEN, name))


def test_xen_takes_no_other_place_as_it_cannot_be_changed(tmp_path: Path):
    assert "source@bridge = 'eth0'" in xen_refuses(tmp_path, XEN.replace("xenbr0", "eth0"))
    assert "os/kernel" in xen_refuses(tmp_path, XEN.replace("/k/vmlinux", "/opt/vmlinux"))
    assert "interface/script" in xen_refuses(tmp_path, XEN, "vif-quick")  # ours has one
    own = "<script path='vif-quick'/><source bridge"
    xen("vif-quick").restore(Libvirt(), saved(tmp_path, XEN.replace("<source bridge", own)), SPEC, "beta")
    evil = "<script path='/opt/pwn.sh'/><source bridge"
    assert "/opt/pwn.sh" in xen_refuses(tmp_path, XEN.replace("<source bridge", evil), "vif-quick")


def test_xen_reads_no_more_of_a_file_than_a_domain_can_have(tmp_path: Path):
    path = saved(tmp_path, XEN)
    path.write_bytes(struct.pack("<16sII40x", b"libvirt-xml\n \0 \r", 2, 4_000_000_000) + b"x")
    with pytest.raises(DriverError, match="its domain has 4000000000 bytes"):
        xen().restore(Libvirt(), path, SPEC, "beta")


def test_xen_takes_no_label_of_security(tmp_path: Path):
    label = "<seclabel type='dynamic' model='dac' relabel='yes'><label>+0:+0</label></seclabel></domain>"
    assert "seclabel" in xen_refuses(tmp_path, XEN.replace("</domain>", label))


# --- with libvirt's QEMU driver itself, in a separate process

NEEDS_QEMU = pytest.mark.skipif(not Path(EMULATOR).exists(), reason="QEMU is not installed")


def embedded(folder: Path, image: Path) -> str:
    argv = [sys.executable, "-m", "support.agent.embedded_libvirt", folder / "root", image]
    there = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([str(word) for word in argv], env=there, capture_output=True, text=True, check=False)
    if ended.returncode == 77:
        pytest.skip(ended.stdout)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@NEEDS_QEMU
@pytest.mark.parametrize("form", ["emulator", "bridges"])
def test_libvirt_runs_nothing_that_somebody_wrote_into_a_file(tmp_path: Path, form: str):
    """When libvirt reads these files, it runs the emulator of the first one, and allocates 96 GB for the second one."""
    mark, script = tmp_path / "mark", tmp_path / "x.sh"
    script.write_text(f'#!/bin/sh\ntouch {mark}\nexec {EMULATOR} "$@"\n')
    script.chmod(0o755)
    attack = {
        "emulator": (f"<emulator>{EMULATOR}<", f"<emulator>{script}<"),
        "bridges": ("<audio", "<controller type='pci' model='pci-bridge' index='1000000000'/><audio"),
    }[form]
    image = tmp_path / "a.img"
    image.write_bytes(qemu_file(QEMU.replace(*attack), COOKIE))
    said = embedded(tmp_path, image)
    assert not mark.exists()
    assert said.startswith("refused: its domain has devices")


# --- with libvirt's test driver, which reads and writes domains as the other drivers do, and runs nothing


@pytest.fixture
def rehearsed() -> object:
    connection = libvirt.open("test:///default")
    yield connection
    connection.close()


def as_test(xml: str) -> str:
    return re.sub(r"type=(['\"])qemu\1", "type='test'", xml, count=1)


def test_libvirt_reads_what_we_give_it_and_keeps_what_the_guest_sees(rehearsed: libvirt.virConnect):
    written = rehearsed.defineXML(as_test(restored(QEMU)).replace('machine="pc-i440fx-7.2"', "")).XMLDesc()
    again = ET.fromstring(written)  # noqa: S314  # libvirt's
    assert again.findtext("uuid") == "577ae7d9-35bf-48e0-a152-181ac112c09c"
    assert again.findtext("resource/partition") == "/dfrs-l-beta"
    assert again.find("devices/interface/source").get("bridge") == "br7"
    assert owner_of(written)["node"] == "beta"


def test_what_libvirt_makes_of_our_own_domain_is_the_same_domain(rehearsed: libvirt.virConnect, tmp_path: Path):
    own = parsed(as_test(domain_xml(SPEC, "beta", MACHINE, HERE)).replace(' machine="pc"', ""))
    domain = rehearsed.createXML(ET.tostring(own, encoding="unicode"))
    running = domain.XMLDesc().replace("testnet0", "vnet0")
    check_same(own, parsed(running), EMULATOR, elsewhere=True)
    image = str(tmp_path / "a.img")
    domain.save(image)
    found = parsed(rehearsed.saveImageGetXMLDesc(image, 0).replace("testnet0", "vnet0"))
    check_same(own, found, EMULATOR, elsewhere=True)
    assert parsed(rehearsed.createXML(own_again(own, found)).XMLDesc()).findtext("uuid") == found.findtext("uuid")
