"""A Docker engine for these tests; folders of agents have paths as short as in the tests of agents."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.containers.engine import EngineAt, engine


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return a new folder, because the path of pytest's is too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="agent-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def docker_engine() -> Iterator[EngineAt]:
    with engine() as found:
        yield found
