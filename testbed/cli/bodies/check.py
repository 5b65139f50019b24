"""`testbed check`: checks of a lab by pytest."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from testbed.errors import UserError
from testbed.packaged import find_scenario
from testbed.study.checks.command import run_checks


def check(
    *, scenario: Path, nodes: str, keyword: str, calibration: Path | None, references: Path | None,
    update_references: bool, fresh_guests: int, junit: Path | None, list_only: bool, as_json: bool,
    checks: tuple[Path, ...],
) -> int:  # fmt: skip
    if find_spec("pytest") is None:
        raise UserError("checks need pytest: pip install 'dfrs-testbed[check]'")
    find_scenario(scenario)  # raises a one-line error for a wrong name; the pytest plugin looks up the file itself
    given = {
        "scenario": scenario, "nodes": nodes, "calibration": calibration, "references": references,
        "fresh-guests": fresh_guests, "junit-xml": junit,
    }  # fmt: skip
    flags = {"update-references": update_references, "collect-only": list_only}
    options = [
        *(f"--{name}={value}" for name, value in given.items() if value not in {None, ""}),
        *(f"--{name}" for name, chosen in flags.items() if chosen),
        *(["-q"] if list_only else []),
        *(["-k", keyword] if keyword else []),
    ]
    return run_checks(options, checks, as_json=as_json)
