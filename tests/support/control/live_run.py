"""`testbed run` as a user calls it, on two nodes of this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.control import interrupting
from support.deadlines import PATIENT_TOML
from support.folds import check_directory
from support.live import HANG_S, wait_until
from testbed.measure.rundir import read_journal

SCENARIO = """
name = "live"
on_controller_loss = "remove"
policy = "GreedyPM */per/OPT=MIN/MINVT=600"
period_s = 60
time_scale = 60
[programs]
units_per_core_s = 50000.0
iteration_s = 0.03
[workload]
trace = "jobs.csv"
[[nodes]]
name = "node-a"
cpus = 0.3
memory_mib = 512
[[nodes]]
name = "node-b"
cpus = 0.3
memory_mib = 512
"""
HEADER = "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n"
ENDLESS_S = 10**9  # trace seconds: such a job runs until it is ended
JOB_TASKS = {1: 1, 2: 2, 3: 3}  # in all runs but one, in which no test uses job 3
LOST_AFTER_S = 45.0  # a busy machine can keep a healthy agent from its CPU for a third of that


def lose_early(folder: Path) -> None:
    """Let runs of the scenario in `folder` declare a silent node lost after `LOST_AFTER_S`."""
    scenario = (folder / "live.toml").read_text()
    for name in ("node_silence_s", "node_lost_s"):
        scenario = scenario.replace(f"{name} = {HANG_S}", f"{name} = {LOST_AFTER_S}")
    (folder / "live.toml").write_text(scenario)


class Run:
    """`testbed run`, or another command, as a child process, whose output is kept line by line."""

    def __init__(
        self, folder: Path, room: Path, *arguments: str, command: Sequence[str] = ("testbed", "run", "live.toml"),
        variables: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.room = room
        python_path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command, *arguments], cwd=folder, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONPATH": python_path, "TMPDIR": str(room), **(variables or {})},
        )  # fmt: skip
        self.lines: list[str] = []
        self._heard = threading.Condition()
        self._said_all = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._heard:
                self.lines.append(line.rstrip())
                self._heard.notify_all()
        with self._heard:
            self._said_all = True
            self._heard.notify_all()

    def wait_for(self, words: str) -> None:
        """Wait until a line of output holds `words`."""

        def there() -> bool:
            return any(words in line for line in self.lines) or self._said_all

        with self._heard:
            assert self._heard.wait_for(there, HANG_S), f"never said {words!r}: {self.lines}"
        assert any(words in line for line in self.lines), self.lines

    def end(self) -> int:
        try:
            code = self.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            journals = {str(path): read_journal(path)[-40:] for path in self.folder.glob("runs/*/events.jsonl")}
            pytest.fail(f"does not end: {self.lines}; the last entries of its journal: {journals}")
        self._reader.join(HANG_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        for journal in self.folder.glob("runs/*/events.jsonl"):
            check_directory(journal.parent)
        return code

    def entries(self, kind: str, **more: object) -> list[dict[str, Any]]:
        """Entries of a kind with these values in the journal so far."""
        found = [entry for path in self.folder.glob("runs/*/events.jsonl") for entry in read_journal(path)]
        return [entry for entry in found if entry["kind"] == kind and more.items() <= entry.items()]

    def until_at_work(self, job: int) -> None:
        """Wait until all guests of a job have progressed."""

        def there() -> bool:
            progressed = {entry["task"] for entry in self.entries("guest", event="progress", job=job)}
            return progressed == set(range(JOB_TASKS[job]))

        self.until(there, f"job {job} at work")

    def until(self, there: Callable[[], bool], what: str) -> None:
        """Wait for a condition that must hold before the run ends."""

        def there_or_ended() -> bool:
            ended = self.process.poll() is not None  # first: the condition may become true just before the end
            found = there()
            assert found or not ended, f"ended without {what}: {self.lines}"
            return found

        wait_until(there_or_ended, what)

    def agents(self) -> list[psutil.Process]:
        """Agents of the run's nodes, in the order of the nodes."""
        found = [child for child in psutil.Process(self.process.pid).children() if "--node" in child.cmdline()]
        return sorted(found, key=lambda agent: agent.cmdline())

    def programs(self) -> list[psutil.Process]:
        """Programs of guests: the children of the keepers of the nodes' agents."""
        children = [child for agent in self.agents() for child in agent.children(recursive=True)]
        return [child for child in children if child.cmdline()[1:] == ["-P", "-m", "node_agent.programs"]]

    def end_agents(self) -> None:
        """End agents whose controller was killed."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if "--node" in process.cmdline():
                    process.terminate()

    def serial_programs(self) -> list[psutil.Process]:
        """Programs of jobs of one task."""
        return [program for program in self.programs() if "PMI_RANK" not in program.environ()]

    def ranks(self) -> list[psutil.Process]:
        """Ranks of MPI jobs."""
        return [program for program in self.programs() if "PMI_RANK" in program.environ()]

    def processes(self) -> list[psutil.Process]:
        """Processes of the run, even if it was killed: the controller, its broker, its agents and their programs."""
        found = []
        for process in psutil.process_iter():
            try:
                place = Path(process.cwd())
                mine = place == self.folder or place.is_relative_to(self.room)
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    @property
    def path(self) -> Path:
        (path,) = (self.folder / "runs").iterdir()
        return path


@pytest.fixture
def interrupting_policy(install_plugin: Callable[[str, str, str], Path]) -> str:
    """Install the policy of `interrupting`; return its name."""
    install_plugin(
        "dfrs_interrupting", Path(interrupting.__file__).read_text(),
        "[testbed.policies]\nInterrupting = dfrs_interrupting:interrupting\n",
    )  # fmt: skip
    return "Interrupting"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start runs of the given jobs in a temporary folder; afterwards none of their processes remains."""
    (tmp_path / "live.toml").write_text(SCENARIO + PATIENT_TOML)
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="dfrs-t") as room:  # short, as paths of sockets are limited

        def begin(jobs: str, *arguments: str, **how: Any) -> Run:
            (tmp_path / "jobs.csv").write_text(HEADER + jobs)
            runs.append(Run(tmp_path, Path(room), *arguments, **how))
            return runs[-1]

        yield begin
        for run in runs:
            if run.process.poll() is None:
                run.process.kill()
                run.end()
        for run in runs:
            if any(run.folder.glob("runs/*/lab.json")):  # the run can be resumed, and its agents end only on command
                run.end_agents()
        wait_until(lambda: not any(run.processes() for run in runs), "the end of all processes of the runs")
    groups = [path for path in Path("/sys/fs/cgroup").glob("*/dfrs-node-*") if (path / "cgroup.procs").read_text()]
    assert not groups, "a killed agent's groups stay, but empty; the next agent removes them"


def checksums(journal: list[dict]) -> dict[tuple[int, int], str]:
    return {
        (entry["job"], entry["task"]): entry["detail"]["checksum"]
        for entry in journal
        if entry["kind"] == "guest" and entry["event"] == "done"
    }
