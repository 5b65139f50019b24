"""Atomic writes: a file is complete, or unchanged."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path


@contextlib.contextmanager
def draft_of(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a path beside `path`: the file that the block makes there is renamed to `path` at its end.

    If the block fails, `path` stays unchanged and the draft is deleted. Without `durable` the content may be lost when
    the machine loses power. When several processes or threads write the same file, the last rename wins. Raises
    `OSError`.
    """
    draft = path.with_name(f".{path.name}.{threading.get_native_id()}.part")
    try:
        draft.unlink(missing_ok=True)  # left by a killed process with a thread of the same id
        yield draft
        if durable:
            descriptor = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def write_whole(path: Path, content: bytes | str, *, mode: int = 0o666, durable: bool = True) -> None:
    """Write a file, text as UTF-8, with permissions `mode` less the umask; raises `OSError`."""
    data = content.encode() if isinstance(content, str) else content
    with draft_of(path, durable=durable) as draft:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)


def csv_text(columns: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as CSV with a header line; None is an empty cell."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()
