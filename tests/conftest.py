"""Settings of all tests, and plug-ins that are installed for a single test."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.folds import check_directory, folds_compared

from node_agent.programs.segments import abandoned_segments
from testbed.testing.accuracy import NOT_JUDGED, Accuracy

pytest.register_assert_rewrite("support.agent.adoption")

_ABANDONED_BEFORE = pytest.StashKey[set[Path]]()

# the same examples at every run and no deadline: a test must not depend on luck or on the machine's load
settings.register_profile(
    "deterministic", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("deterministic")

# Of files that run in parallel, the longest come first, so that none of them runs alone at the end.
_LONGEST = (
    "control/test_resume_live.py", "control/test_live.py", "agent/test_killed_agent.py",
    "control/test_policies_live.py",
    "control/test_orders_live.py", "agent/test_libvirt_killed_agents.py", "control/test_xge_live.py",
    "install/test_wheel.py", "agent/test_supersteps.py", "secure/test_two_hosts.py", "lab/test_takeover.py",
    "calibration/test_experiments_rates_live.py",
)  # fmt: skip

# this user's `testbed cleanup` must not find what killed agents of tests leave
_claims = tempfile.TemporaryDirectory(prefix="dfrs-claims-")
os.environ["DFRS_CLAIMS_DIR"] = _claims.name


def _mark_inherited(items: list[pytest.Item]) -> None:
    """Mark the tests that a class names in `LONG`: inherited tests cannot be marked in place."""
    for item in items:
        cls = getattr(item, "cls", None)
        for name in getattr(cls, "LONG", ()):
            if not hasattr(cls, name):
                raise pytest.UsageError(f"{item.path}: {cls.__name__}.LONG: no test {name}")
            if name == item.name:
                item.add_marker("long")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--xen", action="store_true", help="run the tests on nested Xen nodes, too: half an hour more")
    parser.addoption("--long", action="store_true", help="run long commands and searches, too: an hour more")


@pytest.hookimpl(tryfirst=True)  # -m selects by the marker that is added here
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    place = {Path(__file__).parent / name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
    for item in items:
        if "accuracy" in getattr(item, "fixturenames", ()):
            item.add_marker("accuracy")
    _mark_inherited(items)
    reasons = {
        "xen": "nested Xen takes half an hour more: ./scripts/test --xen -m xen",
        "long": "long commands and searches take an hour more: ./scripts/test --long -m long",
    }
    for name, reason in reasons.items():
        if not config.getoption(f"--{name}"):
            unless = pytest.mark.skip(reason=reason)
            for item in items:
                if item.get_closest_marker(name):
                    item.add_marker(unless)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test if the state of a controller differs from the fold of its journal, or from the agents' guests."""
    with folds_compared(agents="agents_are_robbed" not in getattr(item, "fixturenames", ())) as different:
        result = yield
    assert different == [], "\n".join(different)
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    for journal in [] if folder is None else run_journals(folder):
        check_directory(journal.parent)
    return result


def run_journals(folder: Path) -> list[Path]:
    """Return the journals of the runs that commands made in a test's folder, or in a clone in it."""
    found = [journal for runs in ("runs", "*/runs") for journal in folder.glob(f"{runs}/*/events.jsonl")]
    return [journal for journal in found if b'"kind":"begin"' in journal.read_bytes().partition(b"\n")[0]]


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_ABANDONED_BEFORE] = abandoned_segments()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session, once all workers have ended, if a test has left shared memory behind."""
    if hasattr(session.config, "workerinput"):
        return
    left = abandoned_segments() - session.config.stash[_ABANDONED_BEFORE]
    if left:
        sys.stdout.write(f"\nFAILED: tests have left shared memory behind: {', '.join(sorted(map(str, left)))}\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def agents_are_robbed() -> None:
    """Mark a test that takes guests from agents: these are not compared with the history of the run."""


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], Path]:
    """Return a function that installs a distribution of one module with entry points, and returns its folder."""

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


@pytest.fixture
def accuracy(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Iterator[Accuracy]:
    """Return a judge that asserts accuracy on an idle machine, and only reports it on a busy one."""
    found = Accuracy(request.node.nodeid)
    yield found
    for line in found.not_judged:
        record_property(NOT_JUDGED, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the figures that were outside of their bounds on a busy machine."""
    lines = [
        str(value)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "teardown"
        for name, value in report.user_properties
        if name == NOT_JUDGED
    ]
    if lines:
        terminalreporter.section("accuracy, not judged: the machine was busy")
        for line in lines:
            terminalreporter.line(line)
