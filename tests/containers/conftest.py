"""The suite of all drivers is beside the agent's tests; folders of agents are as short here as there."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "agent"))


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a new folder in place of pytest's own, whose path is too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="agent-", ignore_cleanup_errors=True) as name:
        yield Path(name)
