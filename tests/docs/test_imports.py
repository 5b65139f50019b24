"""Imports go one way: no circles between files, nor between wings, and each wing imports only what is below it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from support.imports import between_wings, circles, imports

ROOT = Path(__file__).resolve().parents[2]
# The table of public names: it imports nothing at run time (tests/analysis), and others read only its version.
TABLE = "testbed"
GRAPH = {module: {} if module == TABLE else others for module, others in imports(ROOT).items()}
WINGS = between_wings(GRAPH)
LAYERS = (  # the lowest first; docs/architecture.md has the purpose of each wing
    {"errors"},
    {"host", "packaged", "toml_files", "toml_lines"},
    {"bus"},
    {"needs", "shares"},
    {"scheduling", "node_agent"},
    {"run"},
    {"measure"},
    {"scenario"},
    {"lab"},
    {"control"},
    {"study", "testing"},
    {"cli"},
    {"__main__"},
)
NARROW = {("run", "scheduling"): {"testbed.scheduling.policies.view", "testbed.scheduling.places"}}


def test_files_import_each_other_in_no_circle() -> None:
    assert circles(GRAPH) == []


def test_wings_import_each_other_in_no_circle() -> None:
    assert circles(WINGS) == []


def test_every_wing_has_a_layer_and_imports_only_what_is_below() -> None:
    assert set(WINGS) - {TABLE} == {wing for layer in LAYERS for wing in layer}
    below = {TABLE}
    for layer in LAYERS:
        for wing in sorted(layer):
            assert set(WINGS[wing]) <= below, f"{wing} imports what is not below it"
        below |= layer


@pytest.mark.parametrize(("wing", "other"), NARROW)
def test_a_narrow_arrow_stays_narrow(wing: str, other: str) -> None:
    found = {
        to
        for module, others in GRAPH.items()
        for to in others
        if module.startswith(f"testbed.{wing}.") and to.startswith(f"testbed.{other}.")
    }
    assert found <= NARROW[wing, other]


def test_of_the_table_of_public_names_the_packages_import_only_the_version() -> None:
    found = {
        alias.name
        for package in ("testbed", "node_agent")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == TABLE
        for alias in node.names
    }
    assert {name for name in found if f"{TABLE}.{name}" not in GRAPH} == {"__version__"}


def test_a_circle_is_found(tmp_path: Path) -> None:
    texts = {
        "testbed/__init__.py": "",
        "testbed/lab/__init__.py": "",
        "testbed/lab/job.py": "def start():\n    from testbed.lab import lab\n",
        "testbed/lab/lab.py": "if TYPE_CHECKING:\n    from testbed.lab.job import LabJob\nimport testbed.run.tail\n",
        "testbed/run/__init__.py": "",
        "testbed/run/tail.py": "from testbed.lab.job import LabJob, start\nimport json\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    graph = imports(tmp_path)
    assert circles(graph) == [["testbed.lab.job", "testbed.lab.lab", "testbed.run.tail"]]
    assert between_wings(graph) == {"testbed": {}, "lab": {"run": 1}, "run": {"lab": 1}}
    assert circles(between_wings(graph)) == [["lab", "run"]]
