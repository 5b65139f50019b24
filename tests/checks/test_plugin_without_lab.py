"""The plugin in a session without a lab: it has no cost and no effect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.live import HANG_S

from testbed.errors import RunError
from testbed.study.checks.command import exit_code

ROOT = Path(__file__).parents[2]


def pytest_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, with the plugin even if its entry point is not installed."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:testbed", "-p", "testbed.study.checks.plugin",
         "-p", "no:cacheprovider", *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip


def test_a_project_with_options_and_fixtures_of_the_same_names_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\naddopts = --strict-markers\n")
    (tmp_path / "conftest.py").write_text(
        "import pytest, sys\n"
        "def pytest_addoption(parser):\n"
        "    for name in ('nodes', 'calibration', 'references', 'update-references', 'fresh-guests', 'checks-json'):\n"
        "        parser.addoption('--' + name, default='mine')\n"
        "@pytest.fixture\n"
        "def guest(): return 'mine'\n"
    )
    (tmp_path / "test_mine.py").write_text(
        "import pytest, sys\n"
        "@pytest.mark.hypervisor('whatever')\n"
        "def test_mine(guest, pytestconfig):\n"
        "    assert guest == pytestconfig.getoption('--nodes') == 'mine'\n"
        "    ours = {name for name in sys.modules if name.startswith(('testbed.', 'node_agent'))}\n"
        "    assert ours == {'testbed.study', 'testbed.study.checks', 'testbed.study.checks.plugin'}\n"
        "    assert not {'numpy', 'pydantic', 'asyncio', 'msgspec', 'psutil'} & set(sys.modules)\n"
    )
    result = pytest_run(tmp_path, "-p", "no:hypothesispytest", "--nodes=mine")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout


def test_a_check_without_a_lab_is_skipped_with_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "test_check.py").write_text(
        "import pytest\n@pytest.mark.hypervisor()\ndef test_check(guest, node): raise AssertionError\n"
    )
    result = pytest_run(tmp_path, "-rs")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 skipped" in result.stdout
    assert "--scenario FILE" in result.stdout


def test_the_packaged_suite_is_collected_by_its_name(tmp_path: Path) -> None:
    lab = ROOT / "scenarios" / "quickstart.toml"
    words = ["--pyargs", "testbed.study.checks", "--scenario", str(lab), "--nodes=node-b", "--collect-only"]
    result = pytest_run(tmp_path, *words)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "test_memory_is_intact_over_save_and_restore[node-b]" in result.stdout
    assert "node-a" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scenario=none.toml"], "none.toml: no such scenario file or name"),
        (["--scenario={lab}", "--nodes=node-c"], "--nodes 'node-c': expected nodes of the lab: node-a, node-b"),
        (["--scenario={lab}", "--fresh-guests=3"], "--fresh-guests 3: expected at least 5"),
        (["--scenario=nodes.toml", "--fresh-guests=3"], "--fresh-guests 3: expected at least 5"),
        (["--scenario={lab}", "--calibration=none"], "--calibration none: no such file"),
        (["--scenario={lab}", "--references={lab}"], "quickstart.toml: unknown key name; known: version, machine"),
    ],
)
def test_what_is_wrong_with_the_call_is_told_before_a_lab_is_opened(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    lab = str(ROOT / "scenarios" / "quickstart.toml")
    (tmp_path / "test_none.py").write_text("def test_none(lab): pass\n")
    nodes = '[[nodes]]\nname = "a"\ncpus = 0.5\nmemory_mib = 320\n'
    (tmp_path / "nodes.toml").write_text(nodes)  # a lab needs neither name nor policy
    result = pytest_run(tmp_path, *(argument.format(lab=lab) for argument in arguments))
    assert result.returncode == 4, result.stdout + result.stderr
    assert words in result.stderr


def test_exit_codes_are_those_of_the_testbed() -> None:
    assert [exit_code(code, interrupted=False) for code in (0, 1, 4, 5, 2)] == [0, 1, 2, 2, 1]
    assert exit_code(2, interrupted=True) == 130
    with pytest.raises(RunError, match="code 3"):
        exit_code(3, interrupted=False)
