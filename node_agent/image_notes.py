"""Notes of images: a small durable file beside each image, without which the image counts as partial.

A save writes a note of an image that it begins, and replaces it with the complete one once data and name of the image
are durable. So an image that a crash cut off is never taken for a complete one, whatever its size and name. The note
of a save in progress is for the successor of a killed agent. It is not synced, as it is void after a reboot.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

from node_agent.drivers.protocol import DriverError, ImageLostError, SaveReport
from testbed.bus.numbers import Bytes, Count, Seconds
from testbed.host.whole_files import write_whole

SUFFIX = ".json"
_VERSION = 1
_MOST_BYTES = 1 << 16  # size limit of a note; a typical note has 300 bytes
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ImageNote(msgspec.Struct, frozen=True, kw_only=True):
    """The note of an image. `digest` is empty until the image is complete.

    `bytes` is the size in the report of the save, `file_bytes` that of the file, which differ for simulated guests.
    `guest` is the saved guest, empty for an image that was fetched. `at` is the iteration at which the guest was saved,
    null where any point will do, `generation` the life of the guest that was saved, and `wall_ns` the Unix time at
    which the note was written. `boot` names the boot of the machine in which it was written: data that a killed agent
    has written are complete during that boot, and perhaps not after a reboot.
    """

    version: int = _VERSION
    guest: str = ""
    bytes: Bytes = 0
    file_bytes: Bytes = 0
    digest: str = ""
    generation: Count = 0
    at: Count | None = None
    run_on_s: Seconds = 0.0
    write_s: Seconds = 0.0
    sync_s: Seconds = 0.0
    wall_ns: Count = 0
    boot: str = ""

    @property
    def report(self) -> SaveReport:
        """The report of the save that wrote the image."""
        return SaveReport(self.bytes, self.digest, self.run_on_s, self.write_s, self.sync_s)


def note_path(image: Path) -> Path:
    """Return the file of an image's note."""
    return image.with_name(image.name + SUFFIX)


def read_note(image: Path) -> ImageNote | None:
    """Return the note of an image; None if it has none, or one that this version cannot read."""
    try:
        with note_path(image).open("rb") as file:
            note = msgspec.json.decode(file.read(_MOST_BYTES), type=ImageNote)
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return note if note.version == _VERSION else None


def complete_note(image: Path) -> ImageNote | None:
    """Return the note of a complete image of the noted size, else None."""
    note = read_note(image)
    if note is None or not note.digest:
        return None
    try:
        size = image.stat().st_size
    except OSError:
        return None
    return note if size == note.file_bytes else None


def begin_note(image: Path, begun: ImageNote, *, durable: bool = True) -> None:
    """Note that an image is about to be written; raises `DriverError`.

    A complete note of that name is removed first, durably: it must not come back beside another image.
    """
    begun, known = msgspec.structs.replace(begun, boot=_boot()), read_note(image)
    if known is not None and known.digest and known.guest not in ("", begun.guest):
        raise DriverError(f"image {image.name} is that of guest {known.guest}: expected one of {begun.guest}")
    with _named(image):
        if known is not None and known.digest:
            drop_note(image, durable=durable)
        if known != begun:  # a repeated save joins one that is in progress
            _write(image, begun, durable=False)


def finish_note(image: Path, note: ImageNote, *, durable: bool = True) -> ImageNote:
    """Write the note of an image that is complete, after its data and its name are durable; raises `DriverError`."""
    with _named(image):
        if durable:
            _sync(image)
            _sync(image.parent)
        note = msgspec.structs.replace(note, file_bytes=image.stat().st_size, boot=_boot())
        _write(image, note, durable=durable)
        if durable:
            _sync(image.parent)
    return note


def drop_note(image: Path, *, durable: bool = False) -> None:
    """Delete the note of an image: from then on the image is partial."""
    note_path(image).unlink(missing_ok=True)
    if durable:
        _sync(image.parent)


def is_recent(note: ImageNote) -> bool:
    """Whether the machine has not booted since the note was written."""
    return bool(note.boot) and note.boot == _boot()


def _write(image: Path, note: ImageNote, *, durable: bool) -> None:
    write_whole(note_path(image), msgspec.json.encode(note), mode=0o600, durable=durable)


@contextlib.contextmanager
def _named(image: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not image.exists():
            raise ImageLostError(f"image {image}: {error.strerror}") from error
        raise DriverError(f"image {image}: its note: {error.strerror or error}") from error


@cache
def _boot() -> str:
    """Return the id of this boot of the machine, empty where the kernel has none."""
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return ""


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
