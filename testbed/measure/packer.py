"""Crash-safe compression of the full parts of journal and points during a run.

A separate process compresses: guests could preempt a low-priority thread of the controller while it holds the
interpreter's lock, and the controller would wait for it.
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

    The compressed file is durable under its name before the original is deleted. If this is interrupted earlier, the
    part stays unchanged. A killed process may leave a file `<name>.gz.part`, which is never read. Raises `OSError`.
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

    A part stays unchanged if it cannot be compressed, for example on a full disk, or if it is still waiting at `close`.
    """

    def __init__(self) -> None:
        self._parts: SimpleQueue[Path | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._ends = False

    def put(self, part: Path) -> None:
        """Enqueue a full part, which must be durable, for compression; may be called by any thread."""
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
            start_new_session=True,  # Ctrl-C must not reach the child
        ) as child:
            self._child = child
            if self._ends:  # `close` may have been called before the child existed
                child.kill()
        if child.returncode != 0:
            _draft(part).unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(_LOWEST_PRIORITY)
    pack(Path(sys.argv[1]))
