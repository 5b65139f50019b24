"""The pytest plugin `testbed`: options and markers, and everything else only in a session that is given a lab.

Whoever has the package installed and never names a lab pays for an import of this module, and meets no new option,
fixture or hook of ours: `--lab` is not an option until it is on the command line (or in `addopts`, as `--lab=FILE`).
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

FIXTURES = frozenset({"lab", "node", "guest", "driver", "calibration", "measure", "doubt"})
_MARKERS = (
    "hypervisor(*names): runs on a lab's nodes (--lab), only on kvm, qemu (emulated), xen, process, ... if it says so",
    "reference(*figures): measures these figures with `measure`, and judges them by the references of this machine",
)


def _names_a_lab(words: list[str]) -> bool:
    return any(word == "--lab" or word.startswith("--lab=") for word in words)


def _add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("testbed", "checks of a testbed's hypervisors")
    group.addoption("--lab", metavar="LAB", type=Path, help="the lab to check: a scenario file, or a packaged name")
    group.addoption("--nodes", metavar="A,B", default="", help="check only these nodes of the lab")
    group.addoption(
        "--calibration", metavar="FILE", type=Path, help="what `testbed calibrate` wrote, for checks that ask for it"
    )
    group.addoption(
        "--references",
        metavar="FILE",
        type=Path,
        help="what figures are expected to be, by machine (default: references.toml beside the lab's file)",
    )
    group.addoption(
        "--update-references", action="store_true", help="write what is measured as the references of this machine"
    )
    group.addoption(
        "--fresh-guests", metavar="N", type=int, default=5, help="fresh guests a figure is measured with; at least 5"
    )
    group.addoption("--checks-json", metavar="FILE", type=Path, help="write what was found as JSON")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options if the command line names a lab."""
    if _names_a_lab([*sys.argv[1:], *shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))]):
        _add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Add them if the lab is named elsewhere: in the project's `addopts`, or by the caller of `pytest.main`."""
    if _names_a_lab(args) and not hasattr(early_config.known_args_namespace, "lab"):
        _add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers; with a lab, also fixtures and hooks."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    if getattr(config.option, "lab", None) is None or not hasattr(config.option, "checks_json"):
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
    """Skip checks in a session without a lab, rather than fail for a fixture that is not there."""
    if not any(item.get_closest_marker(name) for name in ("hypervisor", "reference")):
        return
    found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    if FIXTURES & set(getattr(item, "fixturenames", ())) - set(found):
        pytest.skip("no lab: --lab LAB names one")
