"""The golden texts: the model file of a calibration, and the tables of a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from click.testing import CliRunner

from support.old_runs.old_run_archive import unpack
from testbed.cli.report import report
from testbed.study.calibration.from_trials import calibrate_from
from testbed.study.calibration.model_file import calibration_text
from testbed.study.calibration.tables import all_tables, as_json
from testbed.study.calibration.trials import read_trials

_FOLDER = Path(__file__).parents[2] / "golden"
TRIALS = _FOLDER / "trials.jsonl"
QUICK_TRIALS = _FOLDER / "trials-quick.jsonl"
_COLUMNS = 180  # wide enough for every table


def fitted_model() -> str:
    """Return the model file that `testbed calibrate --fit-only` writes of the recorded trials."""
    return calibration_text(calibrate_from(read_trials(TRIALS), TRIALS))


def fitted(trials: Path) -> dict[str, Any]:
    """Return what `testbed calibrate --fit-only --json` prints of recorded trials, and the rows of every table."""
    calibration = calibrate_from(read_trials(trials), trials)
    tables = {table.title: [list(table.heads), *map(list, table.rows)] for table in all_tables(calibration)}
    tables["Assumptions"].sort()  # their order is that of the experiments that judge them
    return {**as_json(calibration), "tables": tables}


def report_text(folder: Path) -> str:
    """Return the tables that `testbed report` prints of the old run on processes, without the path above them."""
    run = unpack("processes", folder)
    words = [str(run), "--no-html"]
    result = CliRunner(env={"COLUMNS": str(_COLUMNS)}).invoke(report, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    head, _, tables = result.stdout.partition(f"{run.name}\n")
    assert tables, head
    return "".join(f"{line.rstrip()}\n" for line in tables.splitlines())
