"""The option that rewrites golden figures, and their fixtures."""

from __future__ import annotations

import pytest
from support.golden.pinned_check import OPTION, REWRITTEN, check_pinned
from support.workload.logs import real_log

__all__ = ["check_pinned", "real_log"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="rewrite the pinned figures that differ, and print how")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for change in terminalreporter.config.stash.get(REWRITTEN, []):
        terminalreporter.section("pinned figures rewritten")
        terminalreporter.write_line(change)
