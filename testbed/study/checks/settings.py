"""The options of a check session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testbed.errors import UserError
from testbed.packaged import find_scenario
from testbed.scenario.schema import Scenario, load_lab
from testbed.study.checks.interval import LEAST_VALUES
from testbed.study.checks.lab import choose_nodes
from testbed.study.checks.references import load_references


@dataclass(frozen=True, slots=True)
class Settings:
    """The lab and the names of its nodes under test; the file of references; the number of fresh guests per figure."""

    scenario: Scenario
    nodes: tuple[str, ...]
    references: Path
    update: bool = False
    fresh_guests: int = LEAST_VALUES
    calibration: Path | None = None

    @classmethod
    def checked(
        cls,
        lab: Path,
        nodes: str,
        references: Path | None,
        calibration: Path | None,
        fresh_guests: int,
        *,
        update: bool,
    ) -> Settings:
        """Return the settings of valid options and readable files; raises `UserError` for others.

        `lab` is a scenario file, or the name of a packaged scenario, whose references are in the current folder.
        """
        scenario = load_lab(find_scenario(lab))
        if fresh_guests < LEAST_VALUES:
            raise UserError(f"--fresh-guests {fresh_guests}: expected at least {LEAST_VALUES}")
        if calibration is not None and not calibration.is_file():
            raise UserError(f"--calibration {calibration}: no such file")
        file = references if references is not None else lab.parent / "references.toml"
        load_references(file)
        return cls(scenario, choose_nodes(scenario, nodes), file, update, fresh_guests, calibration)
