"""The header of a file that libvirt saved: read here, before libvirt is given the file.

While libvirt reads a domain, it acts on its contents: it runs the emulator to query its features, and allocates the
given number of buses. Another node may have written the file, so its text is checked first.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node_agent.drivers.protocol import DriverError, SuspectError

MOST_BYTES = 1 << 16  # of a file's domain; one of ours has 3,000
_MOST_PADDED_BYTES = 1 << 20  # libvirt leaves 64 KiB free, so that the domain can be edited in its place
_XEN = struct.Struct("<16sII40x")  # libvirt, src/libxl/libxl_conf.h: magic, version, length of the XML
_XEN_MAGIC = b"libvirt-xml\n \0 \r"
# libvirt, src/qemu/qemu_saveimage.h: magic, version, length of both texts, was running, compression, where the second
# text begins
_QEMU = struct.Struct("<16sIIIII56x")
_QEMU_MAGIC = b"LibvirtQemudSave"
_QEMU_VERSION = 2


@dataclass(frozen=True, slots=True)
class QemuTexts:
    """The domain, and the text that libvirt's QEMU driver keeps beside it (`cookie`), empty if there is none."""

    domain: str
    cookie: str


def qemu_texts(image: Path) -> QemuTexts:
    """Return the texts in a file that libvirt's QEMU driver saved; raises `DriverError`."""
    (magic, version, length, _running, compression, cookie_at), data = _read(image, _QEMU)
    if magic != _QEMU_MAGIC:
        raise DriverError("it was not saved by libvirt from QEMU, or not to its end")
    if version != _QEMU_VERSION:
        raise SuspectError(f"its header has version {version}: expected {_QEMU_VERSION}")
    if compression:
        raise SuspectError(f"its memory has the format {compression}: expected 0, not compressed")
    if length > _MOST_PADDED_BYTES or cookie_at > length:
        raise SuspectError(f"its domain has {cookie_at} of {length} bytes: expected {_MOST_PADDED_BYTES} at most")
    if len(data) < length:
        raise DriverError(f"its domain is cut off after {len(data)} of {length} bytes")
    return QemuTexts(_text(data[: cookie_at or length]), _text(data[cookie_at:length]) if cookie_at else "")


def xen_text(image: Path) -> str:
    """Return the domain in a file that libvirt's Xen driver saved; raises `DriverError`."""
    (magic, _version, length), data = _read(image, _XEN)
    if magic != _XEN_MAGIC:
        raise DriverError("it was not saved by libvirt from Xen")
    if length > _MOST_PADDED_BYTES:
        raise SuspectError(f"its domain has {length} bytes: expected {_MOST_PADDED_BYTES} at most")
    if len(data) < length:
        raise DriverError(f"its domain is cut off after {len(data)} of {length} bytes")
    return _text(data[:length])


def _read(image: Path, header: struct.Struct) -> tuple[tuple[Any, ...], bytes]:
    """Return the fields of a header, and the following bytes as far as texts can reach."""
    try:
        with image.open("rb") as file:
            return header.unpack(file.read(header.size)), file.read(_MOST_PADDED_BYTES)
    except (OSError, struct.error) as error:
        raise DriverError(f"it cannot be read: {error}") from error


def _text(data: bytes) -> str:
    """Return a text that only zeros follow."""
    text = data.rstrip(b"\0")
    if len(text) > MOST_BYTES:
        raise SuspectError(f"its domain has {len(text)} bytes: expected {MOST_BYTES} at most")
    if not text.isascii() or b"\0" in text:
        raise SuspectError("its domain has bytes that are not of ASCII: libvirt writes none in a domain of ours")
    return text.decode("ascii")
