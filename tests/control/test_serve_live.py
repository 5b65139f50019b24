"""A served lab: users submit jobs, list them, delete them; its controller may be lost. Guests are processes."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.control.live_run import Run
from support.control.live_run import start as start  # noqa: PLC0414  # the fixture
from support.live import HANG_S, wait_until
from support.ordered import of_kind

from testbed.measure.rundir import read_journal

pytestmark = pytest.mark.slow

NOBODY = 65534
SELF = pwd.getpwuid(os.geteuid()).pw_name
_AS_NOBODY = (  # all imports come first: another user may not be able to read this installation
    "import os; import testbed.cli.bodies.queue, testbed.cli.queue; from testbed.cli.main import main; "
    f"os.setuid({NOBODY}); main()"
)
SERIAL, ENDLESS = ("--need", "1.0", "--mem", "0.2"), ("--work", "80000")


class Lab:
    """A lab that is served, with the commands of its users."""

    def __init__(self, start: Callable[..., Run], folder: Path, more: str = "", policy: str = "XGE") -> None:
        self.name = f"serve-{os.getpid()}"
        path = folder / "live.toml"
        text = path.read_text().replace('on_controller_loss = "remove"\n', f'lab = "{self.name}"\n')
        path.write_text(text + "[serve]\ncpu_needs_frac = [1.0]\nleast_mem_frac = 0.2\n" + more)
        self.folder = folder
        self._start = start
        self.run = start("", command=("testbed", "serve", "live.toml", "--policy", policy))
        self.run.wait_for("jobs are taken")

    def ask(self, *words: str, code: int = 0, as_nobody: bool = False) -> dict:
        command = ["-c", _AS_NOBODY] if as_nobody else ["-m", "testbed"]
        done = subprocess.run(
            [sys.executable, *command, *words, "--lab", self.name, "--json"], cwd=self.folder, capture_output=True,
            text=True, check=False, timeout=HANG_S,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def qsub(self, *words: str, **how: object) -> int:
        return self.ask("qsub", *words, **how)["job"]

    def state(self, job: int) -> str:
        return {each["job"]: each["state"] for each in self.ask("qstat", "--all")["jobs"]}[job]

    def until(self, job: int, state: str) -> None:
        wait_until(lambda: self.state(job) == state, f"job {job} {state}")

    def close(self) -> int:
        subprocess.run(
            [sys.executable, "-m", "testbed", "control", str(self.run.path), "close"], check=True, timeout=HANG_S,
            cwd=self.folder,
        )  # fmt: skip
        return self.run.end()

    def resume(self) -> None:
        self.run = self._start("", command=("testbed", "resume", str(self.run.path)))
        self.run.wait_for("jobs are taken")


def test_an_urgent_job_has_serial_ones_paused_which_go_on_after_it(start: Callable[..., Run], tmp_path: Path) -> None:
    lab = Lab(start, tmp_path)
    one, two = lab.qsub(*SERIAL, *ENDLESS), lab.qsub(*SERIAL, *ENDLESS)
    lab.until(one, "running")
    lab.until(two, "running")
    urgent = lab.qsub("-xge", "--tasks", "2", *SERIAL, "--work", "0.5")
    lab.until(urgent, "done")
    for job in (one, two):
        lab.until(job, "running")
        assert lab.ask("qdel", str(job)) == {"lab": lab.name, "type": "deleted", "job": job}
    assert lab.close() == 0, "\n".join(lab.run.lines)
    journal = read_journal(lab.run.path / "events.jsonl")
    arrived = of_kind(journal, "arrived")
    assert [(each["arrival"]["job"], each["by"]) for each in arrived] == [(each, SELF) for each in (one, two, urgent)]
    paused = {each["job"] for each in of_kind(journal, "job") if each["state"] == "paused"}
    assert paused == {one, two}
    summary = json.loads((lab.run.path / "summary.json").read_text())
    assert summary["failure_codes"] == {str(one): "deleted", str(two): "deleted"}
    assert summary["results"]["right"] == 1


def test_a_served_lab_goes_on_after_its_controller_was_killed(start: Callable[..., Run], tmp_path: Path) -> None:
    lab = Lab(start, tmp_path)
    job = lab.qsub(*SERIAL, *ENDLESS)
    lab.until(job, "running")
    lab.run.process.send_signal(signal.SIGKILL)
    assert lab.run.end() == -signal.SIGKILL
    lab.resume()
    assert lab.state(job) == "running"
    later = lab.qsub(*SERIAL, "--work", "0.5")
    assert later > job
    lab.until(later, "done")
    lab.ask("qdel", str(job))
    assert lab.close() == 0, "\n".join(lab.run.lines)


@pytest.mark.skipif(os.geteuid() != 0, reason="root can be another user, others cannot")
def test_users_have_limits_and_jobs_of_their_own(start: Callable[..., Run], tmp_path: Path) -> None:
    lab = Lab(
        start, tmp_path, 'access = "everybody"\njobs_per_user = 2\nnodes_per_user = 2.0\nurgent_jobs_per_user = 0\n'
    )
    mine, other = lab.qsub(*SERIAL, *ENDLESS), lab.qsub(*SERIAL, *ENDLESS, as_nobody=True)
    assert [job["user"] for job in lab.ask("qstat", as_nobody=True)["jobs"]] == [SELF, pwd.getpwuid(NOBODY).pw_name]
    refused = lab.ask("qdel", str(mine), as_nobody=True, code=2)
    assert f"is of user {SELF}" in refused["text"]
    urgent = ("qsub", "-xge", *SERIAL, "--work", "3600")
    assert "nodes: expected at most 2" in lab.ask(*urgent, "--tasks", "2", code=2)["text"]
    assert "has 0 urgent jobs: expected at most 0" in lab.ask(*urgent, code=2)["text"]
    lab.qsub(*SERIAL, *ENDLESS)
    assert "has 2 jobs: expected at most 2" in lab.ask("qsub", *SERIAL, *ENDLESS, code=2)["text"]
    lab.ask("qdel", str(other))  # root may
    for job in lab.ask("qstat")["jobs"]:
        lab.ask("qdel", str(job["job"]))
    assert lab.close() == 0, "\n".join(lab.run.lines)


def test_jobs_that_the_lab_does_not_take_are_refused(start: Callable[..., Run], tmp_path: Path) -> None:
    lab = Lab(start, tmp_path)
    for words, says in (
        (("--need", "0.3", "--mem", "0.2", *ENDLESS), "need 0.3: expected one of 1"),
        (("--need", "1.0", "--mem", "0.01", *ENDLESS), "memory 0.01: expected at least 0.2"),
        ((*SERIAL, "--work", "90000"), "expected at most 86400 s"),
        (("-xge", *SERIAL, "--work", "3601"), "of an urgent job: expected at most 3600 s"),
        ((*SERIAL, "--work", "60", "--estimate", "30"), "estimate 30 s: expected at least the work, 60 s"),
        ((*SERIAL, *ENDLESS, "--program", "patterns"), "program patterns: expected one that was measured"),
        (("--tasks", "2", *SERIAL, *ENDLESS), "do not fit on the 2 nodes of the lab under XGE"),
    ):
        assert says in lab.ask("qsub", *words, code=2)["text"]
    assert "no job 7" in lab.ask("qdel", "7", code=2)["text"]
    assert lab.close() == 0, "\n".join(lab.run.lines)
    assert not of_kind(read_journal(lab.run.path / "events.jsonl"), "arrived")


def test_users_have_weights_and_guarantees_are_kept_or_refused(start: Callable[..., Run], tmp_path: Path) -> None:
    more = 'access = "everybody"\n' + f"most_guaranteed_yield = 0.7\nweights = {{{SELF} = 3}}\n"
    lab = Lab(start, tmp_path, more, "Greedy */OPT=MIN/WEIGHTS=jobs/LEAST=jobs")
    others = lab.qsub(*SERIAL, *ENDLESS, as_nobody=True) if os.geteuid() == 0 else lab.qsub(*SERIAL, *ENDLESS)
    mine = [lab.qsub(*SERIAL, *ENDLESS, "--least", "0.6") for _ in range(2)]
    answer = lab.ask("qsub", *SERIAL, *ENDLESS, "--least", "0.6", code=2)
    assert "the 2 nodes of the lab have guaranteed too much to others" in answer["text"]
    assert "expected at most 0.7" in lab.ask("qsub", *SERIAL, *ENDLESS, "--least", "0.8", code=2)["text"]
    lab.until(others, "running")
    for job in mine:
        lab.until(job, "running")
    arrivals = {
        entry["arrival"]["job"]: entry["arrival"]
        for entry in of_kind(read_journal(lab.run.path / "events.jsonl"), "arrived")
    }
    assert arrivals[mine[0]]["weight"] == 3.0
    views = [entry["view"] for entry in of_kind(read_journal(lab.run.path / "events.jsonl"), "decision")]
    assert views[-1]["least_yield_frac"] == [0.0, 0.6, 0.6]
    choice = of_kind(read_journal(lab.run.path / "events.jsonl"), "decision")[-1]["decision"]
    assert min(choice["yield_frac"][1:]) >= 0.6
    for job in (others, *mine):
        lab.ask("qdel", str(job))
    assert lab.close() == 0
