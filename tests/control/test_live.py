"""Live runs as users make them: a real broker, agents in separate processes, MPI jobs, real caps."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.control.live_run import ENDLESS_S, JOB_TASKS, Run, checksums, lose_early
from support.control.live_run import interrupting_policy as interrupting_policy  # noqa: PLC0414  # the fixture
from support.control.live_run import start as start  # noqa: PLC0414  # the fixture
from support.live import wait_until

from node_agent.programs.segments import segments_of
from testbed.control.replay_decisions import replay_decisions
from testbed.measure.rundir import read_journal

pytestmark = pytest.mark.slow


def test_preempted_and_moved_jobs_end_with_the_checksums_of_an_undisturbed_run(
    start: Callable[..., Run], interrupting_policy: str
) -> None:
    jobs = "1,0,1,1.0,0.2,60\n2,60,2,1.0,0.2,60\n3,120,3,1.0,0.2,60\n"
    run = start(jobs, "--policy", interrupting_policy)
    assert run.end() == 0, run.lines
    journal = read_journal(run.path / "events.jsonl")
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["results"] == {"right": 3, "wrong": {}, "unchecked": {}}, "the controller compared every rank"
    assert "doubts" not in summary
    metrics = {k: v["value"] for k, v in summary["metrics"].items()}
    assert metrics["preemptions"] + metrics["migrations"] >= 3
    assert metrics["restores"] >= 3
    costs = [entry for entry in journal if entry["kind"] == "rescheduling"]
    assert sorted(cost["job"] for cost in costs) == [1, 2, 3], "each job was interrupted once"
    assert len(run_tasks(journal, 3)) == 3, "an MPI job was saved and restored"
    for cost in costs:
        assert cost["save_s"] > 0
        assert cost["restore_s"] > 0
        # an image has the 102 MiB of a task minus the program's own memory, which differs between machines
        assert cost["saved_bytes"] > JOB_TASKS[cost["job"]] * (20 << 20)
        # the tasks of a job are interchangeable, so those that can stay on their nodes do
        assert cost["moved_tasks"] == {1: 1, 2: 0, 3: 1}[cost["job"]]
        sent = cost["moved_tasks"] / JOB_TASKS[cost["job"]]
        assert cost["transferred_bytes"] == pytest.approx(sent * cost["saved_bytes"], rel=0.2)
    assert replay_decisions(run.path)[1] == []
    points = (run.path / "points.lp").read_text().splitlines()
    assert {line.split(",", 1)[0] for line in points} >= {"node", "guest", "action", "decision", "job", "rescheduling"}
    assert not (run.path / "images").exists()

    quiet = start(jobs, "--out", "quiet", "--policy", "Greedy */OPT=MIN")  # it never interrupts a job
    assert quiet.end() == 0, quiet.lines
    (quiet_path,) = (run.folder / "quiet").iterdir()
    undisturbed = read_journal(quiet_path / "events.jsonl")
    assert not [entry for entry in undisturbed if entry.get("verb") == "save"]
    assert len(checksums(journal)) == 6
    assert checksums(journal) == checksums(undisturbed)


def run_tasks(journal: list[dict], job: int) -> set[int]:
    return {entry["task"] for entry in journal if entry["kind"] == "guest" and entry["job"] == job}


def test_a_program_killed_from_outside_fails_its_job_and_the_run_goes_on(start: Callable[..., Run]) -> None:
    run = start(
        f"1,0,1,1.0,0.4,{ENDLESS_S}\n2,30,2,1.0,0.4,60\n3,60,3,0.5,0.25,60\n4,200,2,0.5,0.5,60\n5,300,2,0.25,0.2,60\n",
        "--policy", "Greedy */OPT=MIN",  # it never interrupts a job, so the victim is at work when it is killed
    )  # fmt: skip
    run.until_at_work(1)
    (victim,) = run.serial_programs()
    victim.send_signal(signal.SIGKILL)
    assert run.end() == 1
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["done"] == 4
    assert list(summary["failed"]) == ["1"]
    (reason,) = summary["failed"].values()
    assert "SIGKILL" in reason or "signal 9" in reason
    assert summary["failure_codes"] == {"1": "guest-failed"}


def test_a_rank_killed_from_outside_ends_its_job_with_one_line(start: Callable[..., Run]) -> None:
    run = start(
        f"2,0,2,0.5,0.3,{ENDLESS_S}\n3,300,1,0.5,0.2,60\n",
        "--policy", "Greedy */OPT=MIN",  # it never interrupts a job
    )  # fmt: skip
    run.until_at_work(2)
    ranks = run.ranks()
    assert len(ranks) == 2
    ranks[1].send_signal(signal.SIGKILL)
    assert run.end() == 1
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["done"] == 1
    (reason,) = summary["failed"].values()
    assert re.fullmatch(r"task \d: it ended by itself: killed by SIGKILL", reason)
    assert summary["failure_codes"] == {"2": "guest-failed"}
    assert not [rank for rank in ranks if rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE]


def test_a_silent_agent_is_a_lost_node(start: Callable[..., Run], tmp_path: Path) -> None:
    lose_early(tmp_path)
    # both nodes have a task of job 2; the other jobs fit on the remaining node
    run = start(f"1,0,1,1.0,0.2,60\n2,30,2,1.0,0.6,{ENDLESS_S}\n3,60,1,0.5,0.15,60\n")
    run.until_at_work(2)
    segments = {segment for process in run.processes() for segment in segments_of(process.pid)}
    assert segments, "ranks of job 2 have mapped shared memory"
    run.agents()[1].send_signal(signal.SIGSTOP)  # stopped, because a killed agent would be started again
    run.wait_for("node node-b is lost")
    assert run.end() == 1
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["done"] >= 1
    assert "node-b is lost" in summary["failed"]["2"]
    assert summary["failure_codes"]["2"] == "node-lost"
    removed = subprocess.run(
        [sys.executable, "-m", "testbed", "cleanup", "--only", "agents"], capture_output=True, check=False
    )
    assert removed.returncode == 0, removed.stdout
    assert not [segment for segment in segments if segment.exists()]
    assert not list(run.room.glob("dfrs-*"))


ENDLESS = f"1,0,1,1.0,0.2,{ENDLESS_S}\n2,30,2,1.0,0.2,{ENDLESS_S}\n3,60,3,0.5,0.2,{ENDLESS_S}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_was_measured(start: Callable[..., Run], number: signal.Signals) -> None:
    run = start(ENDLESS)
    run.until_at_work(3)
    run.process.send_signal(number)
    assert run.end() == 130
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["complete"] is False
    assert (run.path / "points.lp").stat().st_size > 0
    assert not (run.path / "images").exists()
    assert read_journal(run.path / "events.jsonl")[-1]["kind"] == "aborted"


def test_after_a_killed_controller_the_agents_clean_up(start: Callable[..., Run]) -> None:
    run = start(ENDLESS)
    run.until_at_work(2)
    assert len(run.agents()) == 2
    assert len(run.processes()) >= 6, "controller, broker, agents, and the programs of job 2 at least"
    made = list(run.room.iterdir())
    assert made
    run.process.kill()
    assert run.end() == -signal.SIGKILL
    wait_until(lambda: not run.processes(), "the end of all processes of the run")
    assert not (run.path / "images").exists()
    assert not [folder for folder in made if folder.name.startswith("dfrs-") and folder.exists()]
