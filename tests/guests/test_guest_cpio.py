"""The archive of the guest's initramfs: the same bytes for the same tree, in the format that cpio reads."""

from __future__ import annotations

import shutil
import stat
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.guests.unpack import files as files_of
from node_agent.guests.unpack import unpacked
from testbed.errors import TestbedError
from testbed.host.guest_image import GuestImage
from testbed.lab.guest_image import cpio

NAMES = st.lists(st.text("abc.-", min_size=1, max_size=9).filter(lambda n: n not in {".", ".."}), unique=True)


def _unpack(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Read an archive according to the description of the format."""
    found, at = {}, 0
    while True:
        assert data[at : at + 6] == b"070701"
        _, mode, uid, gid, _, mtime, size, *_, name_size, _ = (int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13))  # fmt: skip  # noqa: E501
        name = data[at + 110 : at + 110 + name_size - 1].decode()
        begin = at + -(-(110 + name_size) // 4) * 4
        if name == "TRAILER!!!":
            return found
        assert (uid, gid, mtime) == (0, 0, 0)
        found[name] = (mode, data[begin : begin + size])
        at = begin + -(-size // 4) * 4


@given(NAMES, st.data())
def test_an_archive_holds_its_files_whatever_their_order_was(names, data):
    files = {name: data.draw(st.binary(max_size=30)) for name in names}
    entries = [cpio.folder("d"), *(cpio.file(f"d/{name}", content) for name, content in files.items())]
    packed = cpio.archive(entries)
    assert cpio.archive(data.draw(st.permutations(entries))) == packed
    assert len(packed) % 512 == 0
    read = {name: bytes(content) for name, mode, content in files_of(packed) if stat.S_ISREG(mode)}
    assert read == {f"d/{name}": content for name, content in files.items()}
    found = _unpack(packed)
    assert found.pop("d") == (stat.S_IFDIR | 0o755, b"")
    assert found == {f"d/{name}": (stat.S_IFREG | 0o644, content) for name, content in files.items()}


@pytest.mark.skipif(shutil.which("cpio") is None, reason="cpio is not installed")
def test_cpio_lists_what_was_packed():
    entries = [
        cpio.folder("dev"), cpio.device("dev/null", 1, 3, 0o666), cpio.link("sh", "busybox"),
        cpio.file("init", b"#!/bin/sh\n", 0o755),
    ]  # fmt: skip
    listed = subprocess.run(["cpio", "-tv", "--quiet"], input=cpio.archive(entries), capture_output=True, check=True)
    lines = {line.split()[0]: line.split() for line in listed.stdout.decode().splitlines()}
    assert lines["crw-rw-rw-"][2:6] == ["root", "root", "1,", "3"]
    assert lines["lrwxrwxrwx"][-3:] == ["sh", "->", "busybox"]
    assert lines["-rwxr-xr-x"][4] == "10"


@pytest.mark.parametrize("name", ["", "/a", "a/", "a/../b", "nowhere/a", "twice", "TRAILER!!!"])
def test_a_name_that_makes_no_sense_is_refused(name):
    with pytest.raises(TestbedError, match="archive: "):
        cpio.archive([cpio.folder("twice"), cpio.file(name, b"")])


@pytest.mark.parametrize("spoil", [lambda data: data[:200], lambda data: b"x" + data[1:], lambda data: data[:0]])
def test_what_is_no_archive_is_told(spoil):
    packed = cpio.archive([cpio.file("a", bytes(1000))])
    with pytest.raises(TestbedError, match="archive: "):
        list(files_of(spoil(packed)))


def test_an_image_is_unpacked_once_and_only_its_programs(tmp_path):
    entries = [
        *(cpio.folder(name) for name in ("bin", "usr", "usr/lib", "lib", "lib/modules", "dev")),
        cpio.file("bin/eatcpu", b"program", 0o755), cpio.link("bin/sh", "busybox"), cpio.file("init", b"first"),
        cpio.file("usr/lib/libmpi.so.12", b"library"), cpio.file("lib/modules/virtio.ko", b"module"),
        cpio.device("dev/null", 1, 3),
    ]  # fmt: skip
    (tmp_path / "initramfs").write_bytes(cpio.archive(entries))
    image = GuestImage(tmp_path, tmp_path / "vmlinuz", tmp_path / "initramfs", "key", 128, {})
    place = unpacked(image)
    found = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert found == {"bin/eatcpu": b"program", "usr/lib/libmpi.so.12": b"library"}
    assert (place / "bin/eatcpu").stat().st_mode & 0o777 == 0o755
    (tmp_path / "initramfs").unlink()
    assert unpacked(image) == place
    assert {path.name for path in tmp_path.iterdir()} == {"native"}
