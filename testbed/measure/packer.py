"""Compresses the full parts of journal and points, while a run goes on, so that nothing is lost at any moment."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from gzip import GzipFile
from pathlib import Path
from queue import SimpleQueue

from testbed.measure.append_file import sync_directory
from testbed.run.parts import packed

LEVEL = 6
_BLOCK_BYTES = 1 << 20
_LOWEST_PRIORITY = 19


def pack(part: Path, goes_on: Callable[[], bool] = lambda: True) -> bool:
    """Replace a full part by a compressed one; return False if `goes_on` ended that before.

    The compressed file is durable under its name before the other is deleted. Whatever ends this before, the part
    stays as it was; a process that is killed may leave a file `<name>.gz.part`, which nobody reads. Raises `OSError`.
    """
    whole = packed(part)
    draft = whole.with_name(f"{whole.name}.part")
    try:
        with part.open("rb") as source, draft.open("wb") as file:
            with GzipFile("", "wb", LEVEL, file, mtime=0) as target:
                while block := source.read(_BLOCK_BYTES):
                    if not goes_on():
                        draft.unlink()
                        return False
                    target.write(block)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(whole)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    sync_directory(part.parent)
    part.unlink()
    return True


class Packer:
    """Compresses parts one after the other, in a thread of the lowest priority.

    A part that cannot be compressed, as where the disk is full, stays as it is; so do those that are left at `close`.
    """

    def __init__(self) -> None:
        self._parts: SimpleQueue[Path | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ends = False

    def put(self, part: Path) -> None:
        """Compress a full part, which must be durable, sometime; may be called by any thread."""
        self._parts.put(part)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="packer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End after the block that is being compressed; a second call does nothing."""
        self._ends = True
        self._parts.put(None)
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # Linux has priorities per thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        while (part := self._parts.get()) is not None and not self._ends:
            with contextlib.suppress(OSError):
                pack(part, lambda: not self._ends)
