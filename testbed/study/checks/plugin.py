"""The pytest plugin `testbed`: markers in every session; options, fixtures and hooks only in a session with a lab.

A session without a lab imports this module and gets its two markers, but no option and no fixture: `--scenario` becomes
an option only if the command line has it (or `addopts`, as `--scenario=FILE`). Other projects can thus use the same
names.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

FIXTURES = frozenset({"lab", "node", "guest", "driver", "calibration", "measure", "doubt"})
_MARKERS = (
    "hypervisor(*names): runs on a lab's nodes (--scenario); with names, only on kvm, qemu (emulated), xen, …",
    "reference(*figures): measures these figures with `measure`, and compares them with this machine's references",
)


def _names_a_lab(words: list[str]) -> bool:
    return any(word == "--scenario" or word.startswith("--scenario=") for word in words)


def _add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("testbed", "checks of a testbed's hypervisors")
    group.addoption(
        "--scenario", metavar="SCENARIO", type=Path, help="the lab to check: a scenario file, or a packaged name"
    )
    group.addoption("--nodes", metavar="A,B", default="", help="check only these nodes of the lab")
    group.addoption(
        "--calibration", metavar="FILE", type=Path, help="the overhead model from `testbed calibrate`, for its fixture"
    )
    group.addoption(
        "--references",
        metavar="FILE",
        type=Path,
        help="expected values of figures, by machine (default: references.toml beside the lab's file)",
    )
    group.addoption(
        "--update-references", action="store_true", help="write the measured values as the references of this machine"
    )
    group.addoption(
        "--fresh-guests", metavar="N", type=int, default=5, help="number of fresh guests per figure; at least 5"
    )
    group.addoption("--checks-json", metavar="FILE", type=Path, help="write the results as JSON")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options if the command line names a lab."""
    if _names_a_lab([*sys.argv[1:], *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]):
        _add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Add the options if the project's `addopts`, or the caller of `pytest.main`, names the lab."""
    if _names_a_lab(args) and not hasattr(early_config.known_args_namespace, "scenario"):
        _add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers; with a lab, also fixtures and hooks."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    if getattr(config.option, "scenario", None) is None or not hasattr(config.option, "checks_json"):
        return
    if config.option.help or config.option.version:
        return
    # imported late: a session without a lab must not pay for it
    from testbed.study.checks import fixtures  # noqa: PLC0415  # see above
    from testbed.study.checks.session import CheckSession  # noqa: PLC0415  # see above

    config.pluginmanager.register(CheckSession.from_options(config), "testbed-session")
    config.pluginmanager.register(fixtures, "testbed-fixtures")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip checks in a session without a lab; without this, their missing fixtures would be errors."""
    if not any(item.get_closest_marker(name) for name in ("hypervisor", "reference")):
        return
    found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    if FIXTURES & set(getattr(item, "fixturenames", ())) - set(found):
        pytest.skip("no lab: --scenario FILE names one")
