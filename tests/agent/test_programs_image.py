"""Checkpoint images: complete and correct, or refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node_agent.programs import image
from node_agent.programs.image import ImageError, ImageReader, write_image

PARTS = [b"state" * 1000, b"", bytes(range(256)) * 64]


def read(path: Path) -> tuple[dict, list[bytes]]:
    reader = ImageReader(path)
    parts = [bytearray(length) for length in reader.header["parts"]]
    reader.load([memoryview(part) for part in parts])
    return reader.header, [bytes(part) for part in parts]


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def write(path: Path, parts: list[bytes] = PARTS) -> image.Written:
    return write_image(path, {"iteration": 5}, [memoryview(part) for part in parts])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(parts=st.lists(st.binary(max_size=300), max_size=4), chunk=st.integers(1, 64))
def test_what_was_written_is_read(tmp_path, parts, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image, "_CHUNK", chunk)
        patch.setattr(image, "_SYNC_EVERY", 3 * chunk)
        written = write(tmp_path / "a.img", parts)
        header, found = read(tmp_path / "a.img")
    assert header["iteration"] == 5
    assert found == parts
    whole = (tmp_path / "a.img").read_bytes()
    assert written.bytes == len(whole)
    assert written.digest == xxhash.xxh3_128(whole).hexdigest()
    assert names(tmp_path) == ["a.img"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_one_flipped_bit_anywhere_is_noticed(tmp_path, data):
    path = tmp_path / "a.img"
    write(path)
    whole = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(whole)
    with pytest.raises(ImageError, match=str(path)):
        read(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(data=st.data())
def test_an_image_of_another_length_is_refused(tmp_path, data):
    path = tmp_path / "a.img"
    written = write(path)
    cut = data.draw(st.integers(0, written.bytes + 5).filter(lambda length: length != written.bytes))
    path.write_bytes((path.read_bytes() + b"more!")[:cut])
    with pytest.raises(ImageError):
        read(path)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    real, left = os.write, [4000]

    def write_some(descriptor: int, data: bytes) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(descriptor, bytes(data[: left[0]]))
        left[0] -= count
        return count

    monkeypatch.setattr(os, "write", write_some)
    with pytest.raises(ImageError, match=r"a\.img: No space left on device"):
        write(tmp_path / "a.img")
    assert names(tmp_path) == []


def test_too_little_room_is_told_before_a_byte_is_written(tmp_path, monkeypatch):
    class Disk:
        f_bavail, f_frsize = 3, 4096

    monkeypatch.setattr(os, "statvfs", lambda _path: Disk)
    with pytest.raises(ImageError, match=r"0\.0 MiB to write, 0\.0 MiB free"):
        write(tmp_path / "a.img")
    assert names(tmp_path) == []


def test_a_failed_save_keeps_the_image_that_was_there(tmp_path, monkeypatch):
    write(tmp_path / "a.img")
    before = (tmp_path / "a.img").read_bytes()

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ImageError, match="Input/output error"):
        write(tmp_path / "a.img", [b"other"])
    assert names(tmp_path) == ["a.img"]
    assert (tmp_path / "a.img").read_bytes() == before


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(image, "FORMAT", 2)
    write(tmp_path / "a.img")
    monkeypatch.undo()
    with pytest.raises(ImageError, match="format 2; this program reads 1"):
        ImageReader(tmp_path / "a.img")
