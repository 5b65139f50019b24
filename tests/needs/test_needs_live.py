"""Real processes that need less than declared: their agents estimate this, and the policy uses the estimates."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.control.live_run import ENDLESS_S, Run
from support.control.live_run import start as start  # noqa: PLC0414  # the fixture

pytestmark = pytest.mark.slow

JOBS = f"1,0,1,1.0,0.2,{ENDLESS_S}\n2,0,2,1.0,0.2,{ENDLESS_S}\n"


def test_agents_find_needs_and_the_policy_decides_by_them(start: Callable[..., Run], tmp_path: Path) -> None:
    path = tmp_path / "live.toml"
    text = path.read_text().replace("units_per_core_s = 50000.0", "units_per_core_s = 2000.0")  # of the slowest core
    path.write_text(text.replace("[programs]\n", '[programs]\nprofile = "0.3"\n'))
    run = start(JOBS, "--policy", "Greedy */OPT=MIN/NEEDS=discovered")
    run.wait_for("job 2")

    def both_are_found() -> bool:
        """Whether the policy has a lower need than declared for each job; a core of this machine may be slow."""
        views = [entry["view"] for entry in run.entries("decision")]
        return bool(views) and len(views[-1]["job_id"]) == 2 and max(views[-1]["cpu_need_frac"]) < 0.9

    run.until(both_are_found, "decisions by the needs of both jobs")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, run.lines
    points = (run.path / "points.lp").read_text()
    assert "need_most_cores=" in points
