"""The reference pages on bus messages and overhead models agree with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from pydantic import BaseModel
from support.docs.blocks import ROOT, blocks

from testbed.scheduling.simulation.overheads_file import _Table, load_overheads
from testbed.scheduling.simulation.overheads_parser import parse_overheads

OVERHEADS = ROOT / "docs/overheads.md"


def test_the_page_of_messages_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts/messages-page"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_table_of_overheads_on_the_page_is_read(tmp_path: Path) -> None:
    (text,) = blocks(OVERHEADS, "toml")
    (tmp_path / "overheads.toml").write_text(text)
    found = load_overheads(tmp_path / "overheads.toml")
    assert found.resume_s.tolist() == [[1.1, 2.9, 10.4], [1.3, 4.0, 15.0]]


def test_every_key_of_the_table_is_on_the_page() -> None:
    page = OVERHEADS.read_text(encoding="utf-8").partition("| key |")[2]
    assert set(re.findall(r"`([a-z_.]+)`", page.partition("\n\n")[0])) == set(keys(_Table, ""))


def keys(model: type[BaseModel], before: str) -> list[str]:
    """Return the names of the keys of a table, those of tables in it with a dot."""
    found = []
    for name, field in model.model_fields.items():
        inner = [each for each in (field.annotation, *getattr(field.annotation, "__args__", ())) if is_table(each)]
        found += keys(inner[0], f"{name}.") if inner else [f"{before}{name}"]
    return found


def is_table(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def test_the_models_without_a_file_are_understood() -> None:
    page = OVERHEADS.read_text(encoding="utf-8")
    models = re.findall(r"^\| `((?:constant|linear):[^`]+)`", page, re.MULTILINE)
    assert [parse_overheads(model).name for model in models] == models
