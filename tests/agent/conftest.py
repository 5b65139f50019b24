"""Folders of agents: their paths must be short enough for sockets, even with the folders of several test workers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a new folder, whose path is shorter than pytest's."""
    with tempfile.TemporaryDirectory(prefix="agent-", ignore_cleanup_errors=True) as name:
        yield Path(name)
