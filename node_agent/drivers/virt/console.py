"""The file of a guest's console, which the guest can make arbitrarily long."""

from __future__ import annotations

import os
from pathlib import Path


def tail_of(path: Path, most_bytes: int) -> bytes:
    """Return the last bytes of a file, without reading the rest; raises `OSError`."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - most_bytes))
        return file.read(most_bytes)
