"""Settings of all tests, and plug-ins that are installed for one of them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from node_agent.programs.segments import SEGMENTS, is_segment, segments_of

_ABANDONED_BEFORE = pytest.StashKey[set[Path]]()

# the same examples at every run and no deadline: a test must not depend on luck or on the machine's load
settings.register_profile(
    "deterministic", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("deterministic")

# what agents that tests kill leave is no business of this user's `testbed cleanup`
_claims = tempfile.TemporaryDirectory(prefix="dfrs-claims-")
os.environ["DFRS_CLAIMS_DIR"] = _claims.name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--xen", action="store_true", help="run the tests on nested Xen nodes, too: half an hour more")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--xen"):
        unless = pytest.mark.skip(reason="nested Xen takes half an hour more: ./scripts/test --xen -m xen")
        for item in items:
            if item.get_closest_marker("xen"):
                item.add_marker(unless)


def _abandoned_segments() -> set[Path]:
    """Return the shared memory of MPI that no process has mapped: a rank that was killed has left it."""
    if not SEGMENTS.is_dir():
        return set()
    mapped = {path for pid in Path("/proc").iterdir() if pid.name.isdigit() for path in segments_of(int(pid.name))}
    return {path for path in SEGMENTS.iterdir() if is_segment(path)} - mapped


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_ABANDONED_BEFORE] = _abandoned_segments()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the tests, once all workers have ended, if one has left shared memory behind."""
    if hasattr(session.config, "workerinput"):
        return
    left = _abandoned_segments() - session.config.stash[_ABANDONED_BEFORE]
    if left:
        sys.stdout.write(f"\nFAILED: tests have left shared memory behind: {', '.join(sorted(map(str, left)))}\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], Path]:
    """Return what installs a distribution of one module, by name, code and entry points; it returns the folder."""

    def install(module: str, code: str, entry_points: str) -> Path:
        folder = tmp_path / "site"
        about = folder / f"{module}-1.0.dist-info"
        about.mkdir(parents=True)
        (folder / f"{module}.py").write_text(code)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, module, raising=False)
        return folder

    return install
