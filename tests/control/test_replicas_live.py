"""A node with the image of a saved job is killed: real agents, a real program, images over TCP."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.control.live_run import ENDLESS_S, Run, lose_early
from support.control.live_run import start as start  # noqa: PLC0414  # the fixture

pytestmark = [pytest.mark.slow, pytest.mark.long]

JOBS = f"1,0,1,1.0,0.6,900\n2,120,2,1.0,0.6,{ENDLESS_S}\n"  # job 2 needs both nodes: job 1 is saved for it


@pytest.mark.parametrize("replicas", [1, 0])
def test_a_saved_job_outlives_the_node_of_its_image_if_it_has_a_copy(
    start: Callable[..., Run], tmp_path: Path, replicas: int
) -> None:
    lose_early(tmp_path)
    with (tmp_path / "live.toml").open("a") as scenario:
        scenario.write(f"\n[images]\nreplicas = {replicas}\n")
    run = start(JOBS, "--policy", "GreedyP */OPT=MIN")
    run.wait_for("save job 1")
    if replicas:
        run.until(lambda: bool(run.entries("replicated", job=1, state="complete")), "the copy")
    run.until(lambda: bool(run.entries("outcome", job=1, verb="save", ok=True)), "the image")
    run.until_at_work(2)
    (saved,) = run.entries("outcome", job=1, verb="save")
    (home,) = saved["nodes"]
    run.agents()[home].send_signal(signal.SIGSTOP)  # stopped, because a killed agent would be started again
    run.wait_for(f"node {'node-a' if home == 0 else 'node-b'} is lost")
    assert run.end() == 1
    assert not run.processes(), "the agent that was stopped has ended, with its guests"
    summary = json.loads((run.path / "summary.json").read_text())
    if replicas:
        assert (summary["done"], summary["failure_codes"]) == (1, {"2": "node-lost"})
        assert summary["results"]["right"] == 1, "its result is that of its work"
        (restored,) = run.entries("outcome", job=1, verb="restore")
        assert (restored["ok"], restored["nodes"]) == (True, [1 - home])
        assert run.entries("outcome", job=1, verb="transfer") == []
    else:
        assert summary["failure_codes"] == {"1": "node-lost", "2": "node-lost"}
        assert summary["failed"]["1"].startswith("its image is away: node node-")
