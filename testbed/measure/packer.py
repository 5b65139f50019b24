"""Compresses the full parts of journal and points, while a run goes on, so that nothing is lost at any moment.

A process of its own does that: a thread of the controller with a low priority could be preempted by guests while it
holds the interpreter's lock, and the controller would wait for it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from gzip import GzipFile
from pathlib import Path
from queue import SimpleQueue

from testbed.measure.append_file import sync_directory
from testbed.run.parts import packed

LEVEL = 6
_BLOCK_BYTES = 1 << 20
_LOWEST_PRIORITY = 19


def pack(part: Path) -> None:
    """Replace a full part by a compressed one.

    The compressed file is durable under its name before the other is deleted. Whatever ends this before, the part
    stays as it was; a process that is killed may leave a file `<name>.gz.part`, which is never read. Raises `OSError`.
    """
    draft = _draft(part)
    try:
        with part.open("rb") as source, draft.open("wb") as file:
            with GzipFile("", "wb", LEVEL, file, mtime=0) as target:
                while block := source.read(_BLOCK_BYTES):
                    target.write(block)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(packed(part))
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    sync_directory(part.parent)
    part.unlink()


def _draft(part: Path) -> Path:
    return part.with_name(f"{packed(part).name}.part")


class Packer:
    """Compresses parts one after the other.

    A part that cannot be compressed, as where the disk is full, stays as it is; so do those that are left at `close`.
    """

    def __init__(self) -> None:
        self._parts: SimpleQueue[Path | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._ends = False

    def put(self, part: Path) -> None:
        """Compress a full part, which must be durable, sometime; may be called by any thread."""
        self._parts.put(part)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="packer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End at once; a second call does nothing."""
        self._ends = True
        self._parts.put(None)
        if self._child is not None:
            self._child.kill()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        while (part := self._parts.get()) is not None and not self._ends:
            with contextlib.suppress(OSError):
                self._compress(part)

    def _compress(self, part: Path) -> None:
        with subprocess.Popen(  # noqa: S603  # this module
            [sys.executable, "-m", __name__, str(part)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must not reach it
        ) as child:
            self._child = child
            if self._ends:  # `close` may have come before there was a child
                child.kill()
        if child.returncode != 0:
            _draft(part).unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(_LOWEST_PRIORITY)
    pack(Path(sys.argv[1]))
