"""Images of whole containers: CRIU's files of their processes, in one file.

An image is a tar archive. Its first member, `dfrs-container.json`, names the guest; the others are CRIU's files. A
program's own checkpoint begins with `node_agent.programs.image.MAGIC`, so the two kinds can be told apart by the file.
"""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from node_agent.drivers.containers.carried import is_left_out, may_be_carried
from node_agent.drivers.containers.likeness import Likeness, check_like
from node_agent.drivers.protocol import DriverError, SuspectError
from node_agent.drivers.sealed import sync
from node_agent.programs.image import MAGIC
from testbed.bus.messages import GuestSpec, ProgramSpec
from testbed.errors import shown

_ABOUT = "dfrs-container.json"
_FORMAT = 1
_COPY_BYTES = 4 << 20
_MOST_ABOUT_BYTES = 64 << 10
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class About(msgspec.Struct, frozen=True):
    """The guest of an image; a restored program keeps its task, whatever a later command asks for."""

    format: int
    guest: str
    job: int
    task: int
    program: ProgramSpec
    memory_mib: int

    @classmethod
    def of(cls, spec: GuestSpec) -> About:
        """Return the first member of an image of that guest."""
        return cls(_FORMAT, spec.guest, spec.job, spec.task, spec.program, spec.memory_mib)


def is_frozen(image: Path) -> bool:
    """Return whether a file is the image of a whole container; raises `DriverError` if it cannot be read."""
    try:
        with image.open("rb") as file:
            return file.read(len(MAGIC)) != MAGIC
    except OSError as error:
        raise DriverError(f"image {image}: {error.strerror}") from error


@contextmanager
def scratch(image: Path) -> Iterator[Path]:
    """Yield a new folder beside an image, on the same disk, that is gone after the block; raises `DriverError`."""
    folder = image.with_name(f"{image.name}.criu")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise DriverError(f"image {image}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove from a folder of images the files of unfinished saves of killed agents."""
    for left in folder.glob("*.criu"):
        shutil.rmtree(left, ignore_errors=True)


def pack(folder: Path, spec: GuestSpec, image: Path) -> None:
    """Write CRIU's files to an image, which has its name once it is whole and durable; raises `DriverError`. Blocks."""
    image.unlink(missing_ok=True)  # of an earlier save of this guest
    partial = image.with_name(f"{image.name}.part")
    try:
        with tarfile.TarFile(partial, "w", copybufsize=_COPY_BYTES) as tar:
            about = msgspec.json.encode(About.of(spec))
            entry = tarfile.TarInfo(_ABOUT)
            entry.size = len(about)
            tar.addfile(entry, io.BytesIO(about))
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    tar.add(path, path.relative_to(folder).as_posix(), recursive=False)
                    path.unlink()  # so that at most one file exists twice on the disk
        partial.chmod(0o600)
        sync(partial)
        partial.replace(image)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DriverError(f"image {image}: {error.strerror or error}") from error


def unpack(image: Path, spec: GuestSpec, own: Likeness, folder: Path) -> None:
    """Extract CRIU's files into a new folder; raises `DriverError` unless the image is that guest's. Blocks.

    An image is refused unless its processes have our own user and no capability, and match a container of our `own`.
    """
    try:
        with tarfile.open(image, "r:") as tar:
            first = tar.next()
            plain = first is not None and first.name == _ABOUT and _is_plain(first)
            about = tar.extractfile(first) if first is not None and plain else None
            if first is None or about is None:
                raise DriverError(f"image {image}: expected a container's, which begins with {_ABOUT}")
            if first.size > _MOST_ABOUT_BYTES:
                raise SuspectError(
                    f"image {image}: its {_ABOUT} has {first.size} bytes: expected {_MOST_ABOUT_BYTES} at most"
                )
            found, wanted = msgspec.json.decode(about.read(), type=About), About.of(spec)
            if found != wanted:
                raise DriverError(f"image {image}: it is of {found}; expected {wanted}")
            left = image.stat().st_size
            while (entry := tar.next()) is not None:
                left -= entry.size
                if left < 0:
                    raise SuspectError(f"image {image}: its files are larger than it is: {shown(entry.name, 80)}")
                _lay(tar, entry, folder)
        check_like(folder, own)
    except (tarfile.TarError, msgspec.DecodeError) as error:
        raise DriverError(f"image {image}: {error}") from error
    except OSError as error:
        raise DriverError(f"image {image}: {error.strerror or error}") from error


def _is_plain(entry: tarfile.TarInfo) -> bool:
    """Whether a member is a file with all its bytes; a sparse file could claim any size."""
    return entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not entry.issparse()


def _lay(tar: tarfile.TarFile, entry: tarfile.TarInfo, folder: Path) -> None:
    """Extract one file; only regular files with plain names can be in an image, whatever an archive can hold."""
    parts = entry.name.split("/")
    if not _is_plain(entry) or not all(_FILE_NAME.fullmatch(part) for part in parts):
        raise DriverError(f"an image holds {entry.name!r}: expected files with plain names")
    if is_left_out(entry.name):
        return
    if not may_be_carried(entry.name):
        raise DriverError(f"an image holds {entry.name!r}, which no container of ours has")
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    source = tar.extractfile(entry)
    if source is None:
        raise DriverError(f"an image holds {entry.name!r}, which cannot be read")
    with source, path.open("xb") as file:
        shutil.copyfileobj(source, file, _COPY_BYTES)
