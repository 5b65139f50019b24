"""Logs of the Parallel Workloads Archive, as fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.scheduling.workload.swf import read_swf

_BESIDE_REPOSITORY = Path(__file__).resolve().parents[4] / "shared" / "traces"


def _real_log(name):
    folder = os.environ.get("TESTBED_TRACES")
    path = Path(folder or _BESIDE_REPOSITORY) / name
    if folder and not path.exists():
        pytest.fail(f"TESTBED_TRACES is {folder}, where there is no {name}")
    if not path.exists():
        pytest.skip(
            f"no {name} in {_BESIDE_REPOSITORY}: get it from the Parallel Workloads Archive "
            "(www.cs.huji.ac.il/labs/parallel/workload) and set TESTBED_TRACES to its folder"
        )
    return path


@pytest.fixture(scope="session")
def real_log():
    """The path of a log of the Parallel Workloads Archive; skips the test if the log is missing."""
    return _real_log


@pytest.fixture(scope="session")
def hpc2n_path():
    return _real_log("HPC2N-2002-2.2-cln.swf.gz")


@pytest.fixture(scope="session")
def hpc2n_log(hpc2n_path):
    return read_swf(hpc2n_path)
