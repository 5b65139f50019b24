"""Fixtures of the tests on provisioned machines."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from support.ansible.hosts import make_wheels


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels of this project and of its requirements, made once for all workers of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheels"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        whole = folder / "whole"
        if not whole.exists():
            make_wheels(folder)
            whole.touch()
    return folder
