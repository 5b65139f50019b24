"""The imports of a command do not depend on the folder in which it is started."""

from __future__ import annotations

import ast
import csv
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support.live import HANG_S
from support.short_run import write_short_run

import node_agent
import testbed
from testbed.host.interpreter import module_argv

PACKAGES = (testbed, node_agent)
CAMPAIGN = """
name = "short"
policies = ["FCFS", "EASY"]
[[traces]]
kind = "lublin"
name = "small"
nodes = 8
jobs = 20
seeds = [1, 2]
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder whose copies of our modules end the process if they are imported."""
    folder = tmp_path / "clone"
    for name in ("testbed", "node_agent", "pytest", "compileall"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise SystemExit('{name} is that of the current folder')\n")
    write_short_run(folder)
    return folder


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a script like the installed one, whose folder comes first in the module search path."""
    script = cwd.parent / "bin" / "testbed"
    script.parent.mkdir()
    script.write_text("from testbed.cli.main import main\nif __name__ == '__main__':\n    main()\n")
    return subprocess.run(
        [sys.executable, script, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=HANG_S,
        env=careless(),
    )  # fmt: skip


def careless() -> dict[str, str]:
    """Return an environment without variables that may protect this session."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}


def test_the_folder_of_these_tests_would_be_imported_without_care(clone: Path) -> None:
    argv = [sys.executable, "-m", "testbed"]
    done = subprocess.run(argv, cwd=clone, env=careless(), capture_output=True, text=True, check=False, timeout=HANG_S)
    assert "testbed is that of the current folder" in done.stderr


def test_checks_are_those_of_the_installed_package(clone: Path) -> None:
    done = command("check", "--list", "quickstart", cwd=clone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_memory.py::test_memory_is_intact_over_save_and_restore[node-a]" in done.stdout


def test_own_checks_beside_a_clone_use_the_installed_package(clone: Path) -> None:
    (clone / "helper_of_checks.py").write_text("SAID = 'helped'\n")
    (clone / "test_own.py").write_text(
        "from helper_of_checks import SAID\nimport testbed.errors, node_agent.claims\n"
        "def test_own(lab):\n    assert SAID == 'helped'\n"
    )
    done = command("check", "--list", "quickstart", "test_own.py", cwd=clone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_own.py::test_own" in done.stdout


@pytest.mark.slow
def test_agents_and_programs_of_a_run_are_those_of_the_installed_package(clone: Path) -> None:
    done = command("run", "short.toml", cwd=clone)
    assert done.returncode == 0, done.stdout + done.stderr
    (jobs,) = clone.glob("runs/*/jobs.csv")
    rows = list(csv.DictReader(jobs.read_text().splitlines()))
    assert [row["job_id"] for row in rows if row["end_time_s"]] == ["1", "2"]


def test_workers_of_a_campaign_are_those_of_the_installed_package(clone: Path) -> None:
    (clone / "short-campaign.toml").write_text(CAMPAIGN)
    done = command("campaign", "short-campaign.toml", "--jobs", "2", cwd=clone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 simulations and bounds done, 0 failed" in done.stderr


def test_a_module_gets_its_arguments_and_an_interpreter() -> None:
    assert module_argv("one.two", "a") == [sys.executable, "-P", "-m", "one.two", "a"]
    assert module_argv("one", python="python3") == ["python3", "-P", "-m", "one"]


def test_no_other_place_starts_a_module() -> None:
    """Find words "-m", "MODULE" of command lines: only `module_argv` may build them, except for other programs."""
    found = []
    for package in PACKAGES:
        folder = Path(str(package.__file__)).parent
        for path in folder.rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                words = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
                text = [word.value if isinstance(word, ast.Constant) else "" for word in words]
                modules = [module for flag, module in pairwise(text) if flag == "-m"]
                found += [(str(path.relative_to(folder.parent)), module) for module in modules if module]
    permitted = {
        ("testbed/lab/box/xen/agent_disk.py", "0"),  # mke2fs
        ("testbed/lab/doctor/hypervisors.py", "128"),  # QEMU
        ("testbed/lab/remote/agents.py", "755"),  # mkdir
        ("testbed/lab/remote/agents.py", "700"),
    }
    assert set(found) == permitted
