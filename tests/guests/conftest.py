"""Programs of the guest, compiled for this machine."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from testbed.host.mpich import mpich
from testbed.lab.guest_image.recipe import compile_patterns, compile_program, compile_waits


@pytest.fixture(scope="session")
def programs(tmp_path_factory) -> Path:
    """The folder of `agent`, `eatcpu`, `patterns` and `waits.so`."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("programs")
    compile_program("agent", folder)
    compile_program("eatcpu", folder)
    compile_patterns(mpich(), folder)
    compile_waits(mpich(), folder)
    return folder


@pytest.fixture
def short_path():
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="guest-") as name:
        yield Path(name)
