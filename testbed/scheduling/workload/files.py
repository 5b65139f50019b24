"""Text files, plain or gzipped: reads with errors that name the file, and atomic writes."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from testbed.errors import InputError, UserError, nearest
from testbed.host.whole_files import write_whole


def read_text(path: Path, *, encoding: str = "utf-8-sig", errors: str = "strict") -> str:
    """Return the text of `path`, unpacked when its name ends in `.gz`; line ends stay as they are.

    Raises UserError when the file cannot be read, InputError when it is not a complete gzip file, or not text.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UserError(f"{path}: no such file{nearest(path.name, siblings)}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(str(path), "content", str(error), "a whole gzip file") from error
    try:
        return data.decode(encoding, errors)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = data[error.start : error.start + 1]
        raise InputError(f"{path}:{line}", "text", found, "UTF-8") from error


def text_lines(text: str) -> Iterator[str]:
    """Yield the lines of a text without their ends: LF or CR LF, not the others of `str.splitlines`.

    The lines are yielded one by one, as a list of them would take as much memory as the text.
    """
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start : end - 1] if text.startswith("\r", end - 1, end) else text[start:end]
        start = end + 1
    yield text[start:]


def write_text(path: Path, text: str, *, errors: str = "strict") -> None:
    """Write `text` as UTF-8, gzipped when the name ends in `.gz`; a reader sees the old file or the new one.

    The same text gives the same bytes, so gzipped files have no time stamp. A target that is not a regular file (a
    pipe, `/dev/stdout`) is written directly. Raises UserError when the file cannot be written.
    """
    data = text.encode("utf-8", errors)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    target = path.resolve()  # a symbolic link is kept, and its target replaced
    try:
        if target.exists() and not target.is_file():
            path.write_bytes(data)
        else:
            write_whole(target, data)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
