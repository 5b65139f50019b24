"""Real processes under policies beyond the papers: limits of moves, known costs, static placement."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.control.live_run import Run
from support.control.live_run import start as start  # noqa: PLC0414  # the fixture

from testbed.control.replay_decisions import replay_decisions

pytestmark = pytest.mark.slow

JOBS = "".join(
    f"{job},{submit},{tasks},1.0,0.15,{run_time}\n"
    for job, submit, tasks, run_time in
    [(1, 0, 1, 120), (2, 0, 1, 600), (3, 30, 1, 120), (4, 60, 1, 600), (5, 90, 2, 300), (6, 200, 1, 300)]
)  # fmt: skip


def moved(decision: dict[str, Any]) -> list[int]:
    """Return the jobs that run before and after a decision, on different nodes."""
    view, chosen, first, found = decision["view"], decision["decision"]["task_node"], 0, []
    for job, tasks in zip(view["job_id"], view["tasks"], strict=True):
        before, after = (sorted(nodes[first : first + tasks]) for nodes in (view["task_node"], chosen))
        if before[0] >= 0 and after[0] >= 0 and before != after:
            found.append(job)
        first += tasks
    return found


@pytest.mark.parametrize(
    ("policy", "overheads", "most"),
    [
        pytest.param("/per/OPT=MIN/MOVES=1", None, 1, marks=pytest.mark.long),
        pytest.param("/per/OPT=MIN/KNOWS=cost", "constant:100000", 0, marks=pytest.mark.long),
        pytest.param("/per/OPT=MIN/KNOWS=cost", "constant:0", 6, marks=pytest.mark.long),
        pytest.param("static/SGB", None, 6, marks=pytest.mark.long),
    ],
)
def test_a_live_run_keeps_the_limits_of_its_policy(
    start: Callable[..., Run], tmp_path: Path, policy: str, overheads: str | None, most: int
) -> None:
    path = tmp_path / "live.toml"
    head = "" if overheads is None else f'overheads = "{overheads}"\n'
    path.write_text(head + path.read_text())
    run = start(JOBS, "--policy", policy)
    assert run.end() == 0, run.lines
    decisions = run.entries("decision")
    assert max(len(moved(each)) for each in decisions if each["event"]["periodic"] or most == 6) <= most
    for each in decisions:
        assert ("move_cost_s" in each["view"]) == (overheads is not None and bool(each["view"]["job_id"]))
    results = json.loads((run.path / "summary.json").read_text())["results"]
    assert results == {"right": 6, "wrong": {}, "unchecked": {}}
    assert replay_decisions(run.path)[1] == []
