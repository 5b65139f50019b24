"""There is one kit for a job on live nodes, and one place that opens a lab."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECOND_KIT = """
class Specimen:
    def start(self): pass
    def save(self): pass
    async def restore(self): pass
    def stop(self): pass
"""
SECOND_OPENING = """
class World:
    async def enter(self):
        async with hold_lease(bus, "t", token, 3.0):
            fleet = Fleet(bus, "t", names)
"""


def count(*words: str) -> dict[str, object]:
    command = [sys.executable, str(ROOT / "scripts" / "count-kits"), "--json", *words]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_lab_is_opened_in_one_place_and_a_job_has_one_kit() -> None:
    found = count()
    assert found["openings"] == ["testbed/lab/leased.py: lease_lab"]
    assert found["kits"] == {"testbed/lab/job.py: LabJob": 9, "testbed/lab/operations.py: Operations": 6}


def test_another_kit_and_another_opening_are_found(tmp_path: Path) -> None:
    for folder in ("testbed/control", "tests", "benchmarks"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "testbed" / "__init__.py").write_text('__all__ = ["b", "a"]\n')
    (tmp_path / "testbed" / "control" / "kit.py").write_text(SECOND_KIT)
    (tmp_path / "tests" / "world.py").write_text(SECOND_OPENING)
    assert count("--root", str(tmp_path)) == {
        "kits": {"testbed/control/kit.py: Specimen": 4},
        "openings": ["tests/world.py: enter"],
        "control": {"files": 1, "lines": 5},
        "exported": ["a", "b"],
    }
