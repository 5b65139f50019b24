"""Images of whole containers from an attacker: they give processes no rights, and reach no other program."""

from __future__ import annotations

import io
import os
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.containers.container_images import PLAIN, SPEC, core, field, packed, written

from node_agent.drivers.containers.carried import check_mounts, check_rights, may_be_carried, mounts_of
from node_agent.drivers.containers.frozen import unpack
from node_agent.drivers.containers.likeness import Likeness, Rights, check_like, likeness_of
from node_agent.drivers.protocol import DriverError


def image(tmp_path: Path, files: dict[str, bytes]) -> Path:
    path = packed(tmp_path)
    with tarfile.open(path, "a") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def test_a_process_without_rights_is_laid_out(tmp_path: Path) -> None:
    files = {
        "core-1.img": core(),
        "core-7.img": core(field(14, os.getgid()), field(18, 1), field(15, b"docker-default")),
    }
    unpack(image(tmp_path, files), SPEC, PLAIN, tmp_path / "out")
    assert (tmp_path / "out" / "core-7.img").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (field(11, 1 << 21), "capabilities .*: expected 0"),
        (field(11, struct.pack("BB", 0, 1)), "capabilities .*: expected 0"),  # both in one field
        (field(12, 0xFFFFFFFF), "capabilities"),
        (field(10, 1), "capabilities"),
        (field(9, 1), "capabilities"),
        (field(3, 4242), "user \\[4242\\]: expected"),
        (field(8, 4242), "group \\[4242\\]: expected"),
        (field(14, 4242), "group \\[4242\\]: expected"),
        (field(15, b"unconfined"), "security profile b'unconfined'"),
        (field(18, 0), "no_new_privs"),
        (field(19, 1), "rights of an unknown kind"),
    ],
)
def test_a_process_with_rights_is_refused(tmp_path: Path, more: bytes, words: str) -> None:
    path = image(tmp_path, {"core-1.img": core(), "core-9.img": core(more)})
    with pytest.raises(DriverError, match=words) as refused:
        unpack(path, SPEC, PLAIN, tmp_path / "out")
    assert "core-9.img" in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 12, core()[:-1], core() + b"x", core(creds=b""), b"\0" * 5000, core(creds=b"\xff" * 30),
     struct.pack("<III", 0x54564319, 0x55053847, 4) + field(1, 1) + b"\0\0"],
)  # fmt: skip
def test_what_is_no_process_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DriverError, match=r"core-1\.img"):
        unpack(image(tmp_path, {"core-1.img": content}), SPEC, PLAIN, tmp_path / "out")


@given(st.binary(max_size=300))
def test_no_core_is_an_exception(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    folder = tmp_path_factory.mktemp("core")
    for content in (junk, struct.pack("<III", 0x54564319, 0x55053847, len(junk)) + junk):
        (folder / "core-1.img").write_bytes(content)
        with pytest.raises(DriverError):
            check_rights(folder)


@pytest.mark.parametrize(
    "name",
    ["creds-1.img", "userns-9.img", "autofs-1.img", "binfmt-misc.img", "apparmor.img", "bpfmap-file.img",
     "tunfile.img", "x.so", "parent", "inner/core-1.img", "parent/pages-1.img", "action-scripts", "core-1.img.img"],
)  # fmt: skip
def test_files_that_no_container_of_ours_has_are_refused(tmp_path: Path, name: str) -> None:
    assert not may_be_carried(name)
    with pytest.raises(DriverError, match="which no container of ours has"):
        unpack(image(tmp_path, {name: b"x"}), SPEC, PLAIN, tmp_path / "out")


@pytest.mark.parametrize(
    "name",
    ["inventory.img", "core-1.img", "pages-12.img", "pagemap-shmem-77.img", "tmpfs-dev-90.tar.gz.img",
     "mountpoints-12.img", "ipcns-shm-11.img", "ghost-file-1f.img", "descriptors.json", "config.json",
     "criu.work/dump.log", "stats-dump.img"],
)  # fmt: skip
def test_files_of_a_container_of_ours_are_laid_out(name: str) -> None:
    assert may_be_carried(name)


@pytest.mark.parametrize(
    "name",
    ["iptables-9.img", "ip6tables-9.img", "nftables-9.img", "route-9.img", "route6-9.img", "rule-9.img", "netdev-9.img",
     "netns-9.img", "netns-ct-9.img", "ifaddr-9.img"],
)  # fmt: skip
def test_no_other_program_is_fed_with_files_of_a_network(tmp_path: Path, name: str) -> None:
    unpack(
        image(tmp_path, {name: b"*nat\n-A PREROUTING -j ACCEPT\n", "core-1.img": core()}),
        SPEC,
        PLAIN,
        tmp_path / "o",
    )
    assert not (tmp_path / "o" / name).exists()
    assert (tmp_path / "o" / "core-1.img").exists()


# --- mounts

PROC, SYSFS, TMPFS, DEVTMPFS, CGROUP, OVERLAY = 1, 2, 5, 3, 12, 17
READ_ONLY, NO_DEVICES = 1, 4
CONTAINER = "0123456789abcdef" * 4


def mount(place: str, kind: int, flags: int = 0, root: str = "/", *more: bytes) -> bytes:
    return (
        field(1, kind) + field(2, 700) + field(3, 61) + field(4, 699) + field(5, flags) + field(6, root.encode())
        + field(7, place.encode()) + field(8, b"source") + field(9, b"options") + b"".join(more)
    )  # fmt: skip


def mounts(*entries: bytes) -> bytes:
    return struct.pack("<II", 0x54564319, 0x55563928) + b"".join(struct.pack("<I", len(e)) + e for e in entries)


OWN = (
    mount("./", OVERLAY, READ_ONLY), mount("./proc", PROC), mount("./proc/sys", PROC, READ_ONLY | 0x200000, "/sys"),
    mount("./sys/fs/cgroup/cpu", CGROUP, READ_ONLY, f"/docker/{CONTAINER}"), mount("./tmp", TMPFS, NO_DEVICES),
    mount("./usr", 0, READ_ONLY, "/usr", field(13, 1), field(18, b"/usr")),
    mount("./dfrs", 0, 0, "/var/lib/node", field(13, 1), field(18, b"/dfrs")),
    mount("./dev", TMPFS, 0, "/", field(2, 61), field(8, b"tmpfs"), field(9, b"size=64m")),
    mount("./dev/shm", TMPFS, 0, "/", field(2, 62), field(4, 61), field(8, b"tmpfs"), field(9, b"size=64m")),
)  # fmt: skip


def table(folder: Path, *entries: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mountpoints-12.img").write_bytes(mounts(*entries))
    return folder


def test_a_container_of_another_node_has_the_mounts_of_ours(tmp_path: Path) -> None:
    own = mounts_of(table(tmp_path / "own", *OWN))
    other = [entry.replace(CONTAINER.encode(), CONTAINER[::-1].encode()) for entry in OWN]
    check_mounts(table(tmp_path / "other", *reversed(other)), own)
    files = {"core-1.img": core(), "mountpoints-12.img": mounts(*other)}
    unpack(image(tmp_path, files), SPEC, replace(PLAIN, mounts=own), tmp_path / "out")


@pytest.mark.parametrize(
    "change",
    [
        lambda entries: [*entries, mount("./dev", DEVTMPFS)],
        lambda entries: [*entries, mount("./mnt", OVERLAY, 0, "/", field(14, b"overlay"))],
        lambda entries: [*entries, entries[1]],
        lambda entries: [entry for entry in entries if b"/sys" not in entry or b"cgroup" in entry],  # /proc/sys is open
        lambda entries: [mount("./proc/sys", PROC, 0, "/sys") if b"./proc/sys" in e else e for e in entries],
        lambda entries: [mount("./sys/fs/cgroup/cpu", CGROUP, READ_ONLY) if b"cgroup" in e else e for e in entries],
        lambda entries: [mount("./tmp", TMPFS) if b"./tmp" in e else e for e in entries],
        lambda entries: [mount("./usr", 0, READ_ONLY, "/") if b"./usr" in e else e for e in entries],
        lambda entries: entries[:0],
        # CRIU mounts what the engine has for the key, here without read-only
        lambda entries: [e.replace(field(18, b"/dfrs"), field(18, b"/usr")) for e in entries],
        lambda entries: [e.replace(field(18, b"/usr"), b"") for e in entries],
        lambda entries: [e.replace(field(9, b"size=64m"), field(9, b"size=9G")) for e in entries],
        lambda entries: [e.replace(field(8, b"tmpfs"), field(8, b"/dev/sda")) for e in entries],
        lambda entries: [e.replace(field(4, 61), field(4, 62)) for e in entries],  # below another mount
        lambda entries: [e + field(10, 7) if b"/dfrs" in e else e for e in entries],  # shared with other mounts
    ],
)
def test_other_mounts_are_refused(tmp_path: Path, change) -> None:
    own = mounts_of(table(tmp_path / "own", *OWN))
    with pytest.raises(DriverError, match="an image's mounts: "):
        check_mounts(table(tmp_path / "other", *change(list(OWN))), own)


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * 40, mounts(OWN[0])[:-1], mounts(mount("./x", TMPFS, 0, "/", field(12, 1))), mounts(field(7, 3)),
     mounts(field(1, b"x"))],
)  # fmt: skip
def test_what_are_no_mounts_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mountpoints-12.img").write_bytes(content)
    with pytest.raises(DriverError, match="which are no mounts of CRIU's"):
        mounts_of(tmp_path)


# --- limits of processes, and their control groups


LIMITED = Likeness(rights=frozenset({Rights(b"docker-default", 1, 0, 0)}))


@pytest.mark.parametrize("more", [(), (field(18, 1),), (field(15, b"docker-default"),), (field(18, 1), field(15, b""))])
def test_a_process_that_is_less_limited_than_ours_is_refused(tmp_path: Path, more: tuple[bytes, ...]) -> None:
    (tmp_path / "core-1.img").write_bytes(core(field(18, 1), field(15, b"docker-default")))
    assert likeness_of(tmp_path) == LIMITED
    check_like(tmp_path, LIMITED)
    (tmp_path / "core-2.img").write_bytes(core(*more))
    with pytest.raises(DriverError, match=r"a thread with Rights.*: expected Rights"):
        check_like(tmp_path, LIMITED)


def test_system_calls_are_filtered_as_ours_are(tmp_path: Path) -> None:
    (tmp_path / "core-1.img").write_bytes(core())
    written(tmp_path, 0x64413049, "seccomp.img", field(1, field(1, b"program")))
    own = likeness_of(tmp_path)
    assert own.filters == {b"program"}
    check_like(tmp_path, own)
    for other in (field(1, field(1, b"allow")), field(1, field(1, b"program")) + field(1, field(1, b"allow")), b""):
        written(tmp_path, 0x64413049, "seccomp.img", other)
        with pytest.raises(DriverError, match="filters of system calls"):
            check_like(tmp_path, own)


def groups(*properties: bytes, name: bytes = b"/docker/1", inner: bytes = b"", member: bytes = b"/docker/1") -> bytes:
    directory = field(1, name) + inner + b"".join(field(3, field(1, each) + field(2, b"1")) for each in properties)
    one_set = field(1, 1) + field(2, field(1, b"cpu") + field(2, member))
    return field(1, one_set) + field(2, field(1, b"cpu") + field(2, directory))


def test_control_groups_of_a_container_of_ours_are_laid_out(tmp_path: Path) -> None:
    own = likeness_of(written(tmp_path, 0x59383330, "cgroup.img", groups(b"cpu.shares", b"cpu.cfs_quota_us")))
    assert own.properties == {"cpu.shares", "cpu.cfs_quota_us"}
    check_like(written(tmp_path, 0x59383330, "cgroup.img", groups(b"cpu.shares")), own)
    written(tmp_path, 0x59383330, "cgroup.img", groups(b"devices.allow"))
    with pytest.raises(DriverError, match=r"sets 'devices\.allow' of a control group"):
        check_like(tmp_path, own)


@pytest.mark.parametrize(
    "record",
    [groups(b"../../../etc/cron.d/x"), groups(b"/etc/passwd"), groups(b"x"), groups(b"a.b/c"), groups(b""),
     groups(name=b"../../etc"), groups(name=b"/docker/../../x"), groups(member=b"/../x"), groups(name=b"a\0b"),
     groups(inner=field(2, field(1, b"../x"))), groups(inner=field(2, b"\xff"))],
)  # fmt: skip
def test_control_groups_that_lead_elsewhere_are_refused(tmp_path: Path, record: bytes) -> None:
    """CRIU appends both names to a path of its own, and creates, owns and writes the result, as root."""
    written(tmp_path, 0x59383330, "cgroup.img", record)
    with pytest.raises(DriverError, match="an image holds what CRIU does not write"):
        check_like(tmp_path, PLAIN)
