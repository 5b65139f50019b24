"""The file that a guest's console is written to: the guest decides how long it is."""

from __future__ import annotations

import os
from pathlib import Path


def tail_of(path: Path, most_bytes: int) -> bytes:
    """Return the last bytes of a file, without reading what is before them; raises `OSError`."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - most_bytes))
        return file.read(most_bytes)
