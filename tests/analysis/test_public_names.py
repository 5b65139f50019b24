"""The names that `testbed` exports: each exists, is typed, and is imported only on use."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from support.live import HANG_S

import testbed

_HEAVY = {"aiomqtt", "click", "msgspec", "numpy", "pydantic", "polars", "matplotlib", "rich", "asyncio"}


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_S)
    return done.stdout


def test_all_names_are_those_of_the_table() -> None:
    assert sorted(testbed.__all__) == list(testbed._EXPORTS)
    assert list(testbed._EXPORTS) == sorted(testbed._EXPORTS)
    assert set(testbed.__all__) <= set(dir(testbed))


@pytest.mark.parametrize("name", testbed.__all__)
def test_a_name_is_what_its_module_has(name: str) -> None:
    assert getattr(testbed, name) is getattr(import_module(testbed._EXPORTS[name]), name)
    assert getattr(testbed, name).__doc__


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(testbed.__file__).read_text(encoding="utf-8"))
    (guard,) = (node for node in tree.body if isinstance(node, ast.If))
    found = {
        alias.name: statement.module
        for statement in guard.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert found == testbed._EXPORTS


def test_the_import_of_the_package_imports_nothing_heavy() -> None:
    loaded = set(_python("import sys, testbed; print(*sys.modules)").split())
    assert "testbed" in loaded
    assert not loaded & _HEAVY
    assert not {name for name in loaded if name.startswith("testbed.")}


def test_help_imports_no_library_of_a_command() -> None:
    code = (
        "import sys; from testbed.cli.main import cli; cli.main(['--help'], standalone_mode=False); print(*sys.modules)"
    )
    assert not set(_python(code).split()) & (_HEAVY - {"click"})


def test_errors_and_jobs_need_no_heavy_package() -> None:
    loaded = set(_python("import sys; from testbed import Job, UserError; print(*sys.modules)").split())
    assert not loaded & (_HEAVY - {"click"})


def test_frames_and_figures_are_not_imported_before_they_are_asked_for() -> None:
    loaded = set(_python("import sys; from testbed import Run, simulate; print(*sys.modules)").split())
    assert not loaded & {"polars", "matplotlib", "jinja2", "pydantic", "aiomqtt"}


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Rum'"):
        _ = testbed.Rum
