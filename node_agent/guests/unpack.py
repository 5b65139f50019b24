"""Unpacks the guest image's programs (cpio "newc") on this machine, so that they can also run outside guests."""

from __future__ import annotations

import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from testbed.errors import TestbedError
from testbed.host.guest_image import GuestImage

_MAGIC = b"070701"
_HEADER_BYTES = 110
_TRAILER = "TRAILER!!!"
_FOLDERS = ("bin", "usr/bin", "usr/lib", "lib64")  # of programs and their libraries; no kernel modules, no devices
_NAME = "native"


def files(archive: bytes) -> Iterator[tuple[str, int, memoryview]]:
    """Yield name, mode and content of every entry; raises `TestbedError` if it is no such archive."""
    view, at = memoryview(archive), 0
    while True:
        head = bytes(view[at : at + _HEADER_BYTES])
        if len(head) < _HEADER_BYTES or head[: len(_MAGIC)] != _MAGIC:
            raise TestbedError(f"archive: at byte {at} is {head[:6]!r}: expected {_MAGIC!r}")
        try:
            fields = [int(head[6 + 8 * i : 14 + 8 * i], 16) for i in range(13)]
        except ValueError:
            raise TestbedError(f"archive: at byte {at} is no header of hexadecimal numbers") from None
        mode, size, name_size = fields[1], fields[6], fields[11]
        begin = at + _HEADER_BYTES + name_size
        begin += -begin % 4
        name = bytes(view[at + _HEADER_BYTES : at + _HEADER_BYTES + name_size - 1]).decode(errors="replace")
        if name == _TRAILER:
            return
        if begin + size > len(view):
            raise TestbedError(f"archive: {name} has {size} bytes: expected no more than {len(view) - begin}")
        yield name, mode, view[begin : begin + size]
        at = begin + size + -size % 4


def unpacked(image: GuestImage) -> Path:
    """Return the folder of the image's programs and libraries, beside the image; made once. Raises `OSError`."""
    place = image.folder / _NAME
    if place.is_dir():
        return place
    with tempfile.TemporaryDirectory(prefix=f"{_NAME}-", dir=image.folder) as scratch:
        ready = Path(scratch) / "ready"
        for name, mode, content in files(image.initramfs.read_bytes()):
            path = PurePosixPath(name)
            if stat.S_ISREG(mode) and str(path.parent) in _FOLDERS and path.name not in ("", ".", ".."):
                target = ready / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
                target.chmod(0o755)
        try:
            ready.rename(place)
        except OSError:  # another agent of this machine was faster
            if not place.is_dir():
                raise
            shutil.rmtree(ready)
    return place
