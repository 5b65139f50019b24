"""Imports between packages: only those that `docs/decisions/11-what-each-package-may-import.md` allows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/decisions/11-what-each-package-may-import.md"
ALLOWED = {  # modules of `testbed`, by importing package
    "node_agent": (
        "testbed.bus",
        "testbed.errors",
        "testbed.host",
        "testbed.needs",
        "testbed.shares",
        "testbed.__version__",
    ),
    "testbed/needs": ("testbed.needs",),
    "testbed/shares": ("testbed.bus", "testbed.errors", "testbed.shares"),
    "testbed/bus": ("testbed.bus", "testbed.errors", "testbed.host", "testbed.__version__"),
    "testbed/host": ("testbed.host",),
    "testbed/errors.py": (),
}
OF_AGENTS = {  # modules of `node_agent`, by importing module of `testbed`; the page has the reasons
    "testbed/lab/bring_up.py": {"node_agent.agent", "node_agent.drivers.null"},
    "testbed/testing": {
        "node_agent.abilities", "node_agent.drivers.protocol", "node_agent.stores", "node_agent.watch",
    },
}  # fmt: skip


def imports(text: str) -> Iterator[str]:
    """Yield the modules that a module imports, anywhere in it, and names from the top of a package."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                top = "." not in module
                yield from (f"{module}.{alias.name}" for alias in node.names) if top else (module,)
            case ast.ImportFrom():
                yield "." * node.level
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]
            ):
                if called in {"import_module", "__import__"}:
                    yield name


def found(place: str, package: str) -> set[tuple[str, str]]:
    """Return the imports of a package's modules, by module of a folder, or for one module."""
    path = ROOT / place
    files = [path] if path.suffix else sorted(path.rglob("*.py"))
    assert files
    return {
        (str(file.relative_to(ROOT)), name)
        for file in files
        for name in imports(file.read_text(encoding="utf-8"))
        if within(name, package) or name.startswith(".")
    }


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("place", ALLOWED)
def test_what_agents_and_their_foundations_import_of_the_testbed(place: str) -> None:
    assert [each for each in sorted(found(place, "testbed")) if not within(each[1], *ALLOWED[place])] == []


def test_what_the_testbed_imports_of_the_agents() -> None:
    by_place: dict[str, set[str]] = {}
    for file, name in found("testbed", "node_agent"):
        place = next((place for place in OF_AGENTS if file == place or file.startswith(f"{place}/")), file)
        by_place.setdefault(place, set()).add(name)
    assert by_place == OF_AGENTS


def test_the_suite_for_drivers_is_imported_by_tests_alone() -> None:
    importers = {file for package in ("testbed", "node_agent") for file, _ in found(package, "testbed.testing")}
    assert [file for file in sorted(importers) if not file.startswith("testbed/testing/")] == []


def test_the_page_has_every_exception() -> None:
    page = PAGE.read_text(encoding="utf-8")
    modules = [place.removesuffix(".py").replace("/", ".") for place in OF_AGENTS]
    assert [module for module in modules if f"`{module}`" not in page] == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import node_agent", "node_agent"),
        ("from node_agent import agent", "node_agent.agent"),
        ("def late():\n    from node_agent.agent import Agent", "node_agent.agent"),
        ("import_module('node_agent.agent')", "node_agent.agent"),
        ("from . import agent", "."),
    ],
)
def test_an_import_is_found_however_it_is_written(line: str, name: str) -> None:
    assert list(imports(line)) == [name]
