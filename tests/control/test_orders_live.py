"""Orders of the operator to a live run, given by the command line of another process; guests are processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.control.live_run import ENDLESS_S, Run, checksums
from support.control.live_run import start as start  # noqa: PLC0414  # the fixture
from support.live import HANG_S, wait_until
from support.ordered import of_kind

from testbed import Run as RunDirectory
from testbed.measure.rundir import read_journal

pytestmark = pytest.mark.slow

POLICY = ("--policy", "Greedy */OPT=MIN")  # it never interrupts a job by itself
JOBS = "1,0,1,1.0,0.2,900\n2,0,2,1.0,0.2,900\n"
COMPANY = f"4,0,1,1.0,0.2,{ENDLESS_S}\n"  # so the run lasts until it is stopped


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "testbed", *words], cwd=folder, capture_output=True, text=True, check=False,
        timeout=HANG_S,
    )  # fmt: skip


def order(folder: Path, *words: str) -> dict:
    done = command(folder, *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def journal_of(run: Run) -> list[dict]:
    return read_journal(run.path / "events.jsonl")


def pause_while_all_guests_stand(run: Run) -> dict:
    """Order a pause. Its saves begin once the order is in the journal; until then no guest makes progress."""
    programs = run.programs()
    for program in programs:
        program.send_signal(signal.SIGSTOP)
    with subprocess.Popen(
        [sys.executable, "-m", "testbed", "control", "pause", "--json"],
        cwd=run.folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        wait_until(lambda: of_kind(journal_of(run), "order"), "the order")
        for program in programs:
            program.send_signal(signal.SIGCONT)
        out, _ = client.communicate(timeout=HANG_S)
    assert client.returncode == 0
    return json.loads(out)


@pytest.mark.long
def test_jobs_that_were_paused_and_drained_end_with_the_checksums_of_an_undisturbed_run(
    start: Callable[..., Run],
) -> None:
    run = start(JOBS + COMPANY, *POLICY)
    run.until_at_work(1)
    run.until_at_work(2)
    paused = pause_while_all_guests_stand(run)
    assert (paused["state"], paused["done"], paused["changed"]) == ("paused", True, True)
    assert run.programs() == [], "nothing runs in a pause"
    assert order(run.folder, "control", "pause")["changed"] is False
    assert order(run.folder, "node", "drain", "node-a")["done"]
    assert order(run.folder, "control", str(run.path), "continue")["state"] == "running"
    assert order(run.folder, "node", "return", "node-a", "--run", str(run.path))["done"]
    wait_until(lambda: len(checksums(journal_of(run))) == 3, "the ends of jobs 1 and 2")
    assert order(run.folder, "control", "stop")["text"] == "the run is stopped: 1 job is saved"
    assert run.end() == 1, run.lines
    journal = journal_of(run)
    orders = of_kind(journal, "order")
    assert [entry["order"] for entry in orders] == ["pause", "drain", "continue", "return", "stop"]
    assert len({entry["trace_s"] for entry in orders[:3]}) == 1, "trace time stood still"
    saved = [entry for entry in of_kind(journal, "outcome") if entry["verb"] == "save" and entry["ok"]]
    assert {entry["job"] for entry in saved if entry["reason"] == "pause"} >= {1, 2, 4}
    summary = json.loads((run.path / "summary.json").read_text())
    assert (summary["done"], summary["failed"], summary["pauses"]["count"]) == (2, {}, 1)
    assert not (run.path / "control.sock").exists()
    over = command(run.folder, "control", str(run.path), "pause")
    assert over.returncode == 1
    assert over.stderr.startswith(f"testbed: {run.path}: the run is over: stopped by the operator: 1 job is saved")

    quiet = start(JOBS, "--out", "quiet", *POLICY)
    assert quiet.end() == 0, quiet.lines
    (quiet_path,) = (run.folder / "quiet").iterdir()
    assert checksums(journal) == checksums(read_journal(quiet_path / "events.jsonl"))


def test_a_stopped_run_has_saved_its_jobs_and_written_its_results(start: Callable[..., Run]) -> None:
    run = start(f"1,0,1,1.0,0.2,{ENDLESS_S}\n2,0,2,1.0,0.2,{ENDLESS_S}\n", *POLICY)
    run.until_at_work(1)
    run.until_at_work(2)
    stopped = order(run.folder, "control", "stop")
    assert stopped["text"] == "the run is stopped: 2 jobs are saved"
    assert (run.path / "summary.json").exists()
    assert run.end() == 1, run.lines
    assert any("stopped by the operator: 2 jobs are saved; measured data is in" in line for line in run.lines)
    history = RunDirectory(run.path).history
    assert [str(job.phase) for job in history.jobs.values()] == ["saved", "saved"]
    assert [len(job.images) for job in history.jobs.values()] == [1, 2]
    assert json.loads((run.path / "summary.json").read_text())["complete"] is False


def test_a_killed_controller_takes_no_orders_and_the_command_says_so(start: Callable[..., Run]) -> None:
    run = start(f"1,0,1,1.0,0.2,{ENDLESS_S}\n", *POLICY)
    run.until_at_work(1)
    run.process.kill()
    run.end()
    gone = command(run.folder, "control", str(run.path), "pause")
    assert gone.returncode == 1
    assert "its controller is gone: it was killed, or its machine was restarted" in gone.stderr
    none = command(run.folder, "control", "pause")
    assert (none.returncode, none.stderr) == (
        1,
        "testbed: runs: no run there takes orders: expected a run whose replay is in progress\n",
    )
