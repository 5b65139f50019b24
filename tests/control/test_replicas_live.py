"""A node with the image of a saved job is killed: real agents, a real program, images over TCP."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.control.live_run import ENDLESS_S, Run
from support.control.live_run import start as start  # noqa: PLC0414  # the fixture
from support.live import HANG_S, wait_until

from testbed.measure.rundir import read_journal

pytestmark = pytest.mark.slow

LOST_AFTER_S = 15.0
JOBS = f"1,0,1,1.0,0.6,900\n2,120,2,1.0,0.6,{ENDLESS_S}\n"  # job 2 needs both nodes: job 1 is saved for it


def entries(run: Run, kind: str, **more: object) -> list[dict]:
    found = [entry for path in run.folder.glob("runs/*/events.jsonl") for entry in read_journal(path)]
    return [entry for entry in found if entry["kind"] == kind and more.items() <= entry.items()]


@pytest.mark.parametrize("replicas", [1, 0])
def test_a_saved_job_outlives_the_node_of_its_image_if_it_has_a_copy(
    start: Callable[..., Run], tmp_path: Path, replicas: int
) -> None:
    scenario = (tmp_path / "live.toml").read_text()
    for name in ("node_silence_s", "node_lost_s"):  # nobody is waited for longer than that
        scenario = scenario.replace(f"{name} = {HANG_S}", f"{name} = {LOST_AFTER_S}")
    (tmp_path / "live.toml").write_text(f"{scenario}\n[images]\nreplicas = {replicas}\n")
    run = start(JOBS, "--policy", "GreedyP */OPT=MIN")
    run.wait_for("save job 1")
    if replicas:
        wait_until(lambda: bool(entries(run, "replicated", job=1, state="complete")), "the copy")
    wait_until(lambda: bool(entries(run, "outcome", job=1, verb="save", ok=True)), "the image")
    run.until_at_work(2)
    (saved,) = entries(run, "outcome", job=1, verb="save")
    (home,) = saved["nodes"]
    run.agents()[home].send_signal(signal.SIGSTOP)  # one that is killed is started again
    run.wait_for(f"node {'node-a' if home == 0 else 'node-b'} is lost")
    assert run.end() == 1
    assert not run.processes(), "the agent that was stopped has ended, with its guests"
    summary = json.loads((run.path / "summary.json").read_text())
    if replicas:
        assert (summary["done"], summary["failure_codes"]) == (1, {"2": "node-lost"})
        assert summary["results"]["right"] == 1, "its result is that of its work"
        (restored,) = entries(run, "outcome", job=1, verb="restore")
        assert (restored["ok"], restored["nodes"]) == (True, [1 - home])
        assert entries(run, "outcome", job=1, verb="transfer") == []
    else:
        assert summary["failure_codes"] == {"1": "node-lost", "2": "node-lost"}
        assert summary["failed"]["1"].startswith("its image is away: node node-")
