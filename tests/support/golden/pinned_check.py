"""The check of pinned figures as a fixture, for the tests of golden figures and those of old runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.golden.pins import Tolerance, as_text, changed_lines, differences, exact

OPTION = "--update-golden"
REWRITTEN = pytest.StashKey[list[str]]()

_MOST_LINES = 40

CheckPinned = Callable[..., None]


@pytest.fixture
def check_pinned(request: pytest.FixtureRequest) -> CheckPinned:
    """Return a function that fails if figures differ from a file; with --update-golden it rewrites the file."""

    def check(path: Path, found: object, tolerance: Tolerance = exact) -> None:
        different = differences(path, found, tolerance)
        if different and request.config.getoption(OPTION, default=False):
            request.config.stash.setdefault(REWRITTEN, []).append(changed_lines(path, found))
            path.parent.mkdir(exist_ok=True)
            path.write_text(as_text(path, found), encoding="utf-8")
            return
        shown = "\n".join(different[:_MOST_LINES])
        assert not different, f"{len(different)} figures differ from {path.name}:\n{shown}"

    return check
