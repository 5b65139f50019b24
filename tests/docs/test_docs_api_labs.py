"""The examples of docs/api.md on labs and jobs are executed on process nodes, and produce the output in the page."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.deadlines import PATIENT_TOML
from support.docs.blocks import ROOT, blocks
from support.live import HANG_S

import testbed

PAGE = ROOT / "docs/api.md"
SECTION = PAGE.read_text(encoding="utf-8").partition("\n## Labs and jobs\n")[2].partition("\n## ")[0]
_NUMBER = re.compile(r"\d+(\.\d+)?")


def of_this_section(language: str) -> list[str]:
    return [block for block in blocks(PAGE, language) if block in SECTION]


def shape(text: str) -> list[str]:
    """Return the lines of an output, without the numbers in lines whose numbers are marked as measured."""
    return [_NUMBER.sub("#", line) if "measured" in line else line for line in text.splitlines()]


class Checker(doctest.OutputChecker):
    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return shape(want) == shape(got) or super().check_output(want, got, optionflags)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the page's lab, with deadlines that even a slow machine meets."""
    (lab,) = of_this_section("toml")
    (tmp_path / "lab.toml").write_text(lab + PATIENT_TOML)
    return tmp_path


@pytest.mark.slow
def test_the_script_prints_what_stands_there(folder: Path) -> None:
    (script,) = [block for block in of_this_section("python") if ">>>" not in block]
    (output,) = of_this_section("text")
    environment = {**os.environ, "PYTHONPATH": str(Path(testbed.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert shape(done.stdout) == shape(output)
    assert "measured" in output


@pytest.mark.slow
def test_the_examples_give_the_output_that_stands_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    text = "\n".join(block for block in of_this_section("python") if ">>>" in block)
    test = doctest.DocTestParser().get_doctest(text, {}, "api.md", str(PAGE), 0)
    assert len(test.examples) > 2
    said: list[str] = []
    result = doctest.DocTestRunner(Checker(), optionflags=doctest.REPORT_NDIFF).run(test, out=said.append)
    assert result.failed == 0, "".join(said)


def test_another_word_or_number_is_another_output() -> None:
    check = Checker().check_output
    assert check("0.50 measured\n", "0.47 measured\n", 0)
    assert not check("0.50 measured\n", "0.47 guessed\n", 0)
    assert not check("{0: 0.25}\n", "{0: 0.5}\n", 0)


def test_the_generated_files_follow_from_the_public_names() -> None:
    command = [sys.executable, str(ROOT / "scripts/public-api"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr
