"""Names of our own modules, classes and functions in the pages exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAME = re.compile(r"`((?:testbed|node_agent)(?:\.\w+)+)`")
GROUPS = re.compile(r"testbed\.(drivers|experiments|overheads|policies|programs|recorders)")  # groups of entry points


def exists(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_every_name_on_a_page_exists(page: str) -> None:
    names = {name for name in NAME.findall((DOCS / page).read_text(encoding="utf-8")) if not GROUPS.fullmatch(name)}
    assert [name for name in sorted(names) if not exists(name)] == []
    if page == "paths.md":
        assert len(names) > 25


def test_a_name_that_does_not_exist_is_found() -> None:
    assert exists("testbed.run.history.History.apply")
    assert not exists("testbed.run.history.History.applied")
    assert not exists("testbed.nowhere.at_all")
