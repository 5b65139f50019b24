"""The archive of the guest's first file system: the same bytes for the same tree, and as cpio itself reads it."""

from __future__ import annotations

import shutil
import stat
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.guests import cpio
from testbed.errors import TestbedError

NAMES = st.lists(st.text("abc.-", min_size=1, max_size=9).filter(lambda n: n not in {".", ".."}), unique=True)


def _unpack(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Read an archive as the format's description has it."""
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
