"""The examples of docs/api.md on runs and simulations are executed, and produce the output in the page."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from support.docs.blocks import ROOT, blocks_of
from support.report.rehearsed_run import rehearse

PAGE = ROOT / "docs" / "api.md"
SECTION = PAGE.read_text(encoding="utf-8").partition("\n## Runs and simulations\n")[2].partition("\n## ")[0]
DIRECTORY = re.search(r'Run\("(runs/[^"]+-quickstart)"\)', SECTION)


def test_the_examples_give_the_output_that_stands_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert DIRECTORY is not None
    (tmp_path / "runs").mkdir()
    rehearse(tmp_path / DIRECTORY[1])
    monkeypatch.chdir(tmp_path)
    text = "\n".join(block for block in blocks_of(SECTION, "python") if ">>>" in block)
    test = doctest.DocTestParser().get_doctest(text, {}, "api.md", str(PAGE), 0)
    assert len(test.examples) > 20
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF).run(test, out=said.append)
    assert result.failed == 0, "".join(said)
