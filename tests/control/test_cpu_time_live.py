"""A run whose jobs have work in CPU time, on real processes: saved, restored, and with verified results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.control.live_run import Run
from support.control.live_run import start as start  # noqa: PLC0414  # the fixture

pytestmark = pytest.mark.slow

# job 3 needs both nodes: jobs 1 and 2 are saved for it
JOBS = "1,0,1,1.0,0.6,300\n2,0,2,0.5,0.2,300\n3,60,2,1.0,0.6,60\n"


def test_jobs_that_use_cpu_time_are_saved_restored_and_verified(start: Callable[..., Run], tmp_path: Path) -> None:
    path = tmp_path / "live.toml"
    path.write_text(path.read_text().replace("[programs]\n", '[programs]\nwork = "cpu-time"\n'))
    run = start(JOBS, "--policy", "GreedyP */OPT=MIN")
    assert run.end() == 0, run.lines
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["results"] == {"right": 3, "wrong": {}, "unchecked": {}}
    assert summary["metrics"]["preemptions"]["value"] >= 1
