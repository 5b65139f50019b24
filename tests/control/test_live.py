"""Live runs as a user makes them: a real broker, agents in processes of their own, MPI jobs, real caps."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from testbed.control.replay_decisions import replay_decisions
from testbed.measure.rundir import read_journal

pytestmark = pytest.mark.slow

SCENARIO = """
name = "live"
policy = "GreedyPM */per/OPT=MIN/MINVT=600"
time_scale = 60
[programs]
units_per_core_s = 50000.0
iteration_s = 0.03
[workload]
trace = "jobs.csv"
[[nodes]]
name = "node-a"
memory_mib = 512
[[nodes]]
name = "node-b"
memory_mib = 512
"""
JOBS = """job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s
1,0,1,1.0,0.4,400
2,30,2,1.0,0.4,300
3,60,3,0.5,0.25,240
4,200,2,0.5,0.7,120
5,300,1,0.25,0.2,60
"""


class Run:
    """`testbed run` as a child process; `watch` is called with every journal entry while it runs."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "testbed", "run", "live.toml", *arguments], cwd=folder, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._heard = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._heard:
                self.lines.append(line.rstrip())
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()

    def wait_for(self, words: str, timeout_s: float = 90) -> None:
        """Wait until a line of output holds `words`."""

        def there() -> bool:
            return any(words in line for line in self.lines) or self.process.poll() is not None

        with self._heard:
            assert self._heard.wait_for(there, timeout_s), f"never said {words!r}: {self.lines}"
        assert any(words in line for line in self.lines), self.lines

    def end(self, timeout_s: float = 150) -> int:
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def processes(self, name: str) -> list[psutil.Process]:
        """Processes below the run whose command line holds `name`."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if name in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    @property
    def path(self) -> Path:
        (path,) = (self.folder / "runs").iterdir()
        return path


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Run]:
    """Start runs in a folder of their own; afterwards no process of theirs is left."""
    (tmp_path / "live.toml").write_text(SCENARIO)
    (tmp_path / "jobs.csv").write_text(JOBS)
    runs: list[Run] = []

    def begin(*arguments: str) -> Run:
        runs.append(Run(tmp_path, *arguments))
        return runs[-1]

    before = set(psutil.pids())
    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.end()
    _, left = psutil.wait_procs([p for p in _ours() if p.pid not in before], timeout=15)
    left = [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert not left, left
    groups = [path for path in Path("/sys/fs/cgroup").glob("*/dfrs-node-*") if (path / "cgroup.procs").read_text()]
    assert not groups, "a killed agent's groups stay, but empty; the next agent removes them"


def _ours() -> list[psutil.Process]:
    return [
        p for p in psutil.process_iter(["cmdline"]) if any("node_agent" in word for word in p.info["cmdline"] or ())
    ]


def checksums(journal: list[dict]) -> dict[tuple[int, int], str]:
    return {
        (entry["job"], entry["task"]): entry["detail"]["checksum"]
        for entry in journal
        if entry["kind"] == "guest" and entry["event"] == "done"
    }


def test_preempted_and_moved_jobs_end_with_the_checksums_of_an_undisturbed_run(start: Callable[..., Run]) -> None:
    run = start()
    assert run.end() == 0, run.lines
    journal = read_journal(run.path / "events.jsonl")
    metrics = {k: v["value"] for k, v in json.loads((run.path / "summary.json").read_text())["metrics"].items()}
    assert metrics["preemptions"] + metrics["migrations"] >= 1
    assert metrics["restores"] >= 1
    costs = [entry for entry in journal if entry["kind"] == "rescheduling"]
    assert any(len(run_tasks(journal, cost["job"])) > 1 for cost in costs), "an MPI job was saved and restored"
    for cost in costs:
        assert cost["save_s"] > 0
        assert cost["restore_s"] > 0
        assert cost["saved_bytes"] > 50 << 20
    assert replay_decisions(run.path)[1] == []
    points = (run.path / "points.lp").read_text().splitlines()
    assert {line.split(",", 1)[0] for line in points} >= {"node", "guest", "action", "decision", "job", "rescheduling"}
    assert not (run.path / "images").exists()

    quiet = start("--out", "quiet", "--policy", "Greedy */OPT=MIN")  # it never interrupts a job
    assert quiet.end() == 0, quiet.lines
    (quiet_path,) = (run.folder / "quiet").iterdir()
    undisturbed = read_journal(quiet_path / "events.jsonl")
    assert not [entry for entry in undisturbed if entry.get("verb") == "save"]
    assert len(checksums(journal)) == 9
    assert checksums(journal) == checksums(undisturbed)


def run_tasks(journal: list[dict], job: int) -> set[int]:
    return {entry["task"] for entry in journal if entry["kind"] == "guest" and entry["job"] == job}


def test_a_program_killed_from_outside_fails_its_job_and_the_run_goes_on(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for("job 1 running")
    run.wait_for("start job 2")
    victim = next(p for p in run.processes("node_agent.programs") if "mpiexec" not in " ".join(p.cmdline()))
    victim.send_signal(signal.SIGKILL)
    assert run.end() == 1
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["done"] == 4
    assert len(summary["failed"]) == 1
    (reason,) = summary["failed"].values()
    assert "SIGKILL" in reason or "signal 9" in reason


def test_a_killed_agent_is_a_lost_node(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for("job 2 running")
    agent = next(p for p in run.processes("node_agent") if "node-b" in p.cmdline())
    agent.send_signal(signal.SIGKILL)
    run.wait_for("node node-b is lost")
    assert run.end() == 1
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["done"] >= 1
    assert any("node-b was lost" in reason for reason in summary["failed"].values())
    removed = subprocess.run(
        [sys.executable, "-m", "testbed", "cleanup", "--only", "agents"], capture_output=True, check=False
    )
    assert removed.returncode == 0, removed.stdout  # all that the killed agent left, shared memory among it


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_what_was_measured(start: Callable[..., Run], number: signal.Signals) -> None:
    run = start()
    run.wait_for("job 3 running")
    run.process.send_signal(number)
    assert run.end(30) == 130
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary["complete"] is False
    assert (run.path / "points.lp").stat().st_size > 0
    assert not (run.path / "images").exists()
    assert read_journal(run.path / "events.jsonl")[-1]["kind"] == "aborted"


def test_after_a_killed_controller_the_agents_clean_up(start: Callable[..., Run]) -> None:
    before = folders()
    run = start()
    run.wait_for("start job 2")
    agents = run.processes("node_agent")
    made = folders() - before
    assert made
    run.process.kill()
    assert run.end(30) == -signal.SIGKILL
    psutil.wait_procs(agents, timeout=15)
    assert not (run.path / "images").exists()
    assert not made & folders()


def folders() -> set[Path]:
    """Folders for the agents' sockets."""
    return set(Path(tempfile.gettempdir()).glob("dfrs-*"))
