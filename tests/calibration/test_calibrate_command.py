"""`testbed calibrate` as a user calls it, on real processes: two quick experiments."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.live import HANG_S

pytestmark = pytest.mark.slow


def calibrate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "testbed", "calibrate", "--quick", "--repeats", "2", "--experiments", "bus,decision",
         "--out", "calibration.toml", *words],
        cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip


def test_it_measures_fits_reports_and_does_nothing_twice(tmp_path: Path) -> None:
    first = calibrate(tmp_path, "--report")
    assert first.returncode == 0, first.stderr
    model = tomllib.loads((tmp_path / "calibration.toml").read_text())
    told = {each["name"] for each in model["quantity"]}
    assert any("bus" in name for name in told), told
    assert (tmp_path / "calibration.html").stat().st_size > 10_000
    trials = (tmp_path / "calibration/trials.jsonl").read_text().splitlines()
    again = calibrate(tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "calibration/trials.jsonl").read_text().splitlines() == trials
    assert all(json.loads(line) for line in trials)
