"""The libvirt driver's parts that need no hypervisor: frames, XML, connections, control groups, silences."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live import HANG_S

from node_agent.drivers.protocol import DriverError
from node_agent.guests.wire import MAX_FRAME_BYTES, Frame, Reader, WireError, encode
from testbed.bus.messages import GuestSpec, ProgramSpec

pytest.importorskip("libvirt", reason="libvirt-python is not installed: pip install 'dfrs-testbed[libvirt]'")

from node_agent.drivers.caps.mounts import mount_points
from node_agent.drivers.virt.domain import Machine, Place, channel_path, domain_xml, mac_of, moved_xml, owner_of
from node_agent.drivers.virt.groups import VcpuGroups, vcpu_groups
from node_agent.drivers.virt.hypervisor import Hypervisor
from node_agent.drivers.virt.recovery import Silence

SPEC = GuestSpec(
    guest="dfrs-ab12-j3-t1", run="ab12", job=3, task=1, cpu_cores=0.5, memory_mib=200, address="10.77.1.5/16",
    lease="host:7/0123456789ab",
    program=ProgramSpec(name="patterns", work_units=9, units_per_iteration=3, seed=5, workers=2, rank=1, ranks=2),
)  # fmt: skip
MACHINE = Machine("qemu", Path("/k/vmlinuz"), Path("/k/initramfs"))
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(["vmG1", "G1 ", "G1"])
names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)


# --- frames


@given(st.text("abcdef", min_size=1, max_size=8), st.lists(st.tuples(names, text), max_size=8), st.binary(max_size=20))
def test_frames_survive_the_wire_whatever_stands_before_them(kind: str, fields: list[tuple[str, str]], dirt: bytes):
    frame = encode(kind, fields)
    assert frame.endswith(b"\n")
    assert frame.count(b"\n") == 1
    reader = Reader()
    found = reader.feed(dirt.replace(b"\n", b"") + b"\n" + frame)
    assert found[-1].kind == kind
    assert [(name, value) for name, values in found[-1].fields.items() for value in values] == sorted(
        fields, key=lambda pair: list(found[-1].fields).index(pair[0])
    )


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=6), st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_frames_do_not_depend_on_how_they_are_cut(values: list[int], cuts: list[int]):
    stream = b"".join(encode("beat", [("units", value)]) for value in values)
    reader, frames, at = Reader(), [], 0
    for cut in [*cuts, len(stream)]:
        frames += reader.feed(stream[at : at + cut])
        at += cut
    assert [frame.count("units") for frame in frames] == values
    assert reader.skipped == 0


def test_a_cut_frame_costs_only_itself():
    whole = encode("beat", [("units", 7)])
    for cut in range(1, len(whole) - 1):
        for stream in (whole[cut:] + whole, whole[:-cut] + whole):
            frames = Reader().feed(stream)
            assert [frame.count("units") for frame in frames] == [7]


def test_a_changed_byte_is_noticed():
    whole = encode("done", [("units", 7)])
    for at in range(len(whole) - 1):
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        if changed[at : at + 1] != b"\n":
            assert Reader().feed(changed) == []


def test_memory_of_a_reader_stays_bounded():
    reader = Reader()
    for _ in range(100):
        assert reader.feed(b"x" * MAX_FRAME_BYTES) == []
    assert reader.feed(b"\n" + encode("beat"))[0].kind == "beat"
    assert reader.skipped >= 1


@pytest.mark.parametrize(("kind", "fields"), [("Run", []), ("run", [("a b", 1)]), ("run", [("arg", "x" * 20000)])])
def test_what_is_no_message_is_not_written(kind: str, fields: list[tuple[str, object]]):
    with pytest.raises(WireError):
        encode(kind, fields)


@pytest.mark.parametrize("value", ["", "-1", "1.5", "1e3", "x", "9" * 30, "٣", str(2**63)])
def test_a_count_is_a_count(value: str):
    frame = Frame("beat", {"units": (value,)})
    with pytest.raises(WireError, match="units"):
        frame.count("units")


def test_a_field_that_is_needed_once_comes_once():
    frame = Frame("out", {"text": ("a", "b"), "n": ("nan",), "m": ("1e16",), "least": ("-1e15",)})
    assert frame.number("least") == -1e15
    for call in (lambda: frame.text("text"), lambda: frame.text("none"), lambda: frame.number("n"),
                 lambda: frame.number("m")):  # fmt: skip
        with pytest.raises(WireError):
            call()


# --- domains


def test_a_domain_says_whose_it_is_and_what_it_has():
    xml = domain_xml(SPEC, "alpha", MACHINE, Place("/dfrs-l-alpha", "dfrs0"))
    root = ET.fromstring(xml)  # noqa: S314  # our own
    assert owner_of(xml) == {
        "guest": SPEC.guest, "run": "ab12", "job": "3", "task": "1", "node": "alpha", "address": "10.77.1.5/16",
        "lease": "host:7/0123456789ab",
    }  # fmt: skip
    assert root.findtext("memory") == "200"
    assert root.findtext("vcpu") == "2"
    assert root.findtext("resource/partition") == "/dfrs-l-alpha"
    assert root.find("devices/interface/mac").attrib["address"] == mac_of(SPEC.address) == "52:54:0a:4d:01:05"
    assert "dfrs.ip=10.77.1.5/16" in root.findtext("os/cmdline").split()
    assert root.find("devices/disk") is None
    with pytest.raises(DriverError, match="channel"):
        channel_path(xml)  # only a running domain has a socket


def test_a_moved_domain_differs_only_in_what_belongs_to_the_node():
    here, there = Place("/dfrs-l-alpha", "dfrs0"), Place("/dfrs-l-beta", "br7")
    moved = moved_xml(domain_xml(SPEC, "alpha", MACHINE, here), "beta", there)
    assert ET.canonicalize(moved, strip_text=True) != ""
    wanted = domain_xml(SPEC, "beta", MACHINE, there)

    def parts(xml: str) -> list[tuple[str, str | None, list[tuple[str, str]]]]:
        return sorted((e.tag, e.text, sorted(e.attrib.items())) for e in ET.fromstring(xml).iter())  # noqa: S314  # our own

    assert parts(moved) == parts(wanted)


def test_a_guest_that_migrates_keeps_its_cap():
    capped = domain_xml(SPEC, "alpha", MACHINE, Place("", "")).replace(
        "</domain>", "<cputune><period>100000</period><quota>20000</quota></cputune></domain>"
    )
    moved = ET.fromstring(moved_xml(capped, "beta", Place("", "")))  # noqa: S314  # our own
    assert moved.findtext("cputune/quota") == "20000"


def test_the_domain_of_somebody_else_is_nobody_s():
    assert owner_of("<domain><name>web</name></domain>") == {}


def test_the_socket_is_read_from_the_running_domain():
    xml = (
        "<domain><devices><channel type='unix'><source mode='bind' path='/a/other'/><target type='virtio' name='x'/>"
        "</channel><channel type='unix'><source mode='bind' path='/a/ctl'/><target type='virtio' name='dfrs.ctl'/>"
        "</channel></devices></domain>"
    )
    assert channel_path(xml) == Path("/a/ctl")


# --- the connection to libvirt


class Silent:
    """A listener that ignores all events."""

    def unexpected(self, *_arguments: object) -> None:
        raise AssertionError

    domain_stopped = domain_arrived = domain_departs = job_completed = connection_back = unexpected


class HangsUpBadly:
    """A connection whose close fails, or never returns."""

    def __init__(self, hangs: threading.Event | None) -> None:
        self._hangs = hangs

    def close(self) -> None:
        if self._hangs is None:
            raise RuntimeError("broken")
        self._hangs.wait(HANG_S)


def test_threads_of_a_connection_that_never_came_about_are_let_go():
    async def main() -> None:
        hypervisor = Hypervisor("nonsense:///x", Silent())
        with pytest.raises(DriverError, match="libvirt at nonsense"):
            await hypervisor.open(HANG_S)
        await hypervisor.close()
        await hypervisor.close()  # a second close is no error
        with pytest.raises(RuntimeError, match="after shutdown"):
            await hypervisor.in_thread(lambda: None)

    asyncio.run(main())


@pytest.mark.parametrize("hangs", [False, True])
def test_threads_are_let_go_whatever_hanging_up_comes_to(monkeypatch: pytest.MonkeyPatch, hangs: bool):
    monkeypatch.setattr("node_agent.drivers.virt.hypervisor.HANG_UP_WITHIN_S", 0.05 if hangs else HANG_S)
    over = threading.Event() if hangs else None

    async def main() -> None:
        hypervisor = Hypervisor("nonsense:///x", Silent())
        hypervisor._connection = HangsUpBadly(over)
        with contextlib.nullcontext() if hangs else pytest.raises(RuntimeError, match="broken"):
            await hypervisor.close()
        with pytest.raises(RuntimeError, match="after shutdown"):
            await hypervisor.in_thread(lambda: None)
        if over is not None:
            over.set()

    asyncio.run(main())


# --- control groups


def test_groups_of_version_1_and_2_are_read(tmp_path: Path):
    one = [tmp_path / "v1" / name for name in ("vcpu0", "vcpu1")]
    for folder, quota, time_ns in zip(one, (25000, 50000), (10**9, 2 * 10**9), strict=True):
        folder.mkdir(parents=True)
        (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
        (folder / "schedstat").write_text(f"{time_ns} 17 3\n")
    groups = VcpuGroups(1, tuple(one), tuple(folder / "schedstat" for folder in one))
    assert groups.cap_cores() == pytest.approx(0.75)
    assert groups.cpu_s() == pytest.approx(3.0)
    (one[1] / "cpu.cfs_quota_us").write_text("-1\n")
    assert groups.cap_cores() is None
    two = tmp_path / "v2"
    two.mkdir()
    (two / "cpu.max").write_text("30000 100000\n")
    groups = VcpuGroups(1, (two,), ())
    assert groups.cap_cores() == pytest.approx(0.3)
    (two / "cpu.max").write_text("max 100000\n")
    assert groups.cap_cores() is None
    two.rename(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        groups.cap_cores()


def test_mounts_of_both_versions_are_told_apart():
    both = mount_points(
        "30 23 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "29 23 0:25 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "31 23 0:27 /inner /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
        "40 35 0:26 / /srv/container/sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "41 35 0:27 / /srv/container/sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    assert both == {
        "cpu": ("/", Path("/sys/fs/cgroup/cpu,cpuacct")),
        "": ("/inner", Path("/sys/fs/cgroup/unified")),
    }


def test_a_guest_without_a_process_is_named(tmp_path: Path):
    with pytest.raises(DriverError, match=r"x\.pid"):
        vcpu_groups(tmp_path / "x.pid")


# --- a guest that falls silent


def test_a_silence_counts_once_it_is_confirmed():
    silence = Silence(100.0)
    assert silence.sample(160.0, 60.0) == 0.0
    assert silence.sample(161.0, 60.0) == 0.0
    assert silence.sample(165.0, 60.0) == 0.0
    assert silence.sample(166.0, 60.0) == 66.0


def test_an_agent_that_stood_still_reads_what_its_guests_sent_before_it_gives_them_up():
    silence = Silence(100.0)
    assert silence.sample(1000.0, 60.0) == 0.0
    silence.heard(1000.1)  # data that waited to be read
    assert silence.sample(1010.0, 60.0) == 0.0
    assert silence.sample(1070.0, 60.0) == 0.0  # detected only now
    assert silence.sample(1075.0, 60.0) == pytest.approx(74.9)
