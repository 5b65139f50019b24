"""Unpacking of the project's own archives, on every Python that it supports."""

from __future__ import annotations

import tarfile
from pathlib import Path

# Debian 12's Python has no filters yet, and later versions warn if none is given
_FILTER = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive of any compression into a folder."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, **_FILTER)  # noqa: S202  # the project made the archive
