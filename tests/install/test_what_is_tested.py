"""The packages that this session tests: those of the wheel that `scripts/test` has installed, or the checkout's."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from support.live import HANG_S

import node_agent
import testbed

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(sysconfig.get_path("purelib")).resolve()
IMPORTED = Path(testbed.__file__).resolve().parents[1]
ASK = "import testbed, node_agent; print(testbed.__file__); print(node_agent.__file__)"


def python_files(root: Path) -> dict[Path, bytes]:
    found = (path for name in ("testbed", "node_agent") for path in (root / name).rglob("*.py"))
    return {path.relative_to(root): path.read_bytes() for path in found}


def test_the_packages_are_those_of_the_wheel_if_scripts_test_runs_the_tests() -> None:
    assert Path(node_agent.__file__).resolve().parents[1] == IMPORTED
    if os.environ.get("DFRS_TEST_WHEEL") == "1":
        assert IMPORTED == SITE
    else:
        assert IMPORTED in {ROOT, SITE}, "neither this checkout nor the installed package"


def test_processes_that_are_started_in_the_checkout_import_the_same_packages() -> None:
    environment = dict(os.environ)
    if os.environ.get("DFRS_TEST_WHEEL") != "1":  # an editable installation: the tests use the checkout
        environment["PYTHONSAFEPATH"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    assert {Path(line).resolve().parents[1] for line in done.stdout.splitlines()} == {IMPORTED}


def test_what_is_installed_is_what_the_checkout_holds() -> None:
    """A stale wheel would pass the tests of its time."""
    assert python_files(IMPORTED) == python_files(ROOT)
