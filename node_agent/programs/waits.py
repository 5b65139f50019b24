"""Time that this rank has waited for messages of each other rank, counted by testbed/host/guest_sources/waits.c."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

VARIABLE = "DFRS_WAITS"  # names the file
_HEAD = struct.Struct("<Q")


class Waits:
    """Reads the counts; without the library below MPI (waits.c) there are none."""

    def __init__(self) -> None:
        path = Path(os.environ.get(VARIABLE, ""))
        self._counts: mmap.mmap | None = None
        if path.is_file() and path.stat().st_size:
            with path.open("rb") as file:
                self._counts = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def tell(self) -> dict[str, list[float]]:
        """Return the field of a message: seconds by rank, since the rank began."""
        if self._counts is None:
            return {}
        (ranks,) = _HEAD.unpack_from(self._counts)
        return {"waits_s": [ns / 1e9 for ns in struct.unpack_from(f"<{ranks}Q", self._counts, _HEAD.size)]}
