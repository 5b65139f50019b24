"""The uncompressed kernel of the guest image, which Xen starts faster than one that it has to unpack itself."""

from __future__ import annotations

import logging
import lzma
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

from testbed.host.guest_image import GuestImage
from testbed.host.whole_files import write_whole

_SETUP_SECTORS_AT, _MAGIC_AT, _PAYLOAD_AT = 0x1F1, 0x202, 0x248  # Linux, Documentation/arch/x86/boot.rst
_SECTOR_BYTES = 512
_UNPACKED_WITHIN_S = 120.0
_log = logging.getLogger(__name__)


def uncompressed(image: GuestImage) -> Path:
    """Return the kernel as an ELF file beside the image, made once; the image's own one where that cannot be done.

    LZ4 and Zstandard need the programs of those names.
    """
    made = image.folder / "vmlinux"
    if made.exists():
        return made
    try:
        write_whole(made, unpack_kernel(image.kernel.read_bytes()))
    except (OSError, ValueError, lzma.LZMAError, zlib.error, subprocess.SubprocessError) as error:
        _log.info("guests boot the compressed kernel, which takes Xen longer: %s", error)
        return image.kernel
    return made


def unpack_kernel(image: bytes) -> bytes:
    """Return the ELF file inside a bzImage; raises `ValueError`, and the errors of the decompressors."""
    if image[_MAGIC_AT : _MAGIC_AT + 4] != b"HdrS":
        raise ValueError("no bzImage: its header has no HdrS")
    offset, length = struct.unpack_from("<II", image, _PAYLOAD_AT)
    begin = ((image[_SETUP_SECTORS_AT] or 4) + 1) * _SECTOR_BYTES + offset
    payload = image[begin : begin + length]
    found = next((unpack for magic, unpack in _FORMATS.items() if payload.startswith(magic)), None)
    if found is None:
        raise ValueError(f"unknown compression of its kernel: it begins with {payload[:4].hex()}")
    elf = found(payload)
    if not elf.startswith(b"\x7fELF"):
        raise ValueError("its unpacked kernel is no ELF file")
    return elf


def _by(*program: str) -> Callable[[bytes], bytes]:
    def unpack(payload: bytes) -> bytes:
        path = shutil.which(program[0])
        if path is None:
            raise ValueError(f"{program[0]} is not installed")
        # the length of the unpacked kernel follows the packed one; some programs report that as damage
        done = subprocess.run(  # noqa: S603  # a fixed command line
            [path, *program[1:]], input=payload[:-4], capture_output=True, timeout=_UNPACKED_WITHIN_S, check=True
        )
        return done.stdout

    return unpack


def _inflate(payload: bytes) -> bytes:
    return zlib.decompressobj(wbits=31).decompress(payload)


def _unxz(payload: bytes) -> bytes:
    return lzma.LZMADecompressor().decompress(payload)


_FORMATS: dict[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": _inflate,
    b"\xfd7zXZ\x00": _unxz,
    b"\x02\x21\x4c\x18": _by("lz4", "-dc"),
    b"\x28\xb5\x2f\xfd": _by("zstd", "-dcq"),
}
