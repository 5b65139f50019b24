"""The whole path with real virtual machines: make a lab, run five jobs, kill one of them, and remove everything."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.box import choreography
from support.box.choreography import KILLED, MIGRATED, PREEMPTED_PARALLEL, PREEMPTED_SERIAL, UNDISTURBED
from support.deadlines import PATIENT_TOML
from support.folds import check_directory
from support.live import HANG_S, wait_until

from testbed.control.replay_decisions import replay_decisions
from testbed.lab.box.network import namespaces
from testbed.lab.box.processes import marked
from testbed.lab.box.spec import lab_dir, store_dir
from testbed.lab.box.sweep import leftovers
from testbed.measure.rundir import read_journal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="a lab in a box needs root"),
    pytest.mark.skipif(
        not all(
            shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
            for name in ("libvirtd", "virsh", "ip", "tc", "qemu-system-x86_64")
        ),
        reason="libvirtd, virsh, ip, tc and QEMU are not all installed",
    ),
]

SCENARIO = """
name = "joined"
lab = "{lab}"
policy = "Choreography"
period_s = 60
time_scale = 60
[workload]
trace = "jobs.csv"
[programs]
calibration_s = 2.5
[migration]
mechanism = "live"
budget_s_per_gib = 7200
no_progress_s = 900
[box]
guest_network = "10.214.0.0/16"
[[nodes]]
name = "a"
driver = "libvirt"
cpus = 0.8
memory_mib = 1280
[[nodes]]
name = "b"
driver = "libvirt"
cpus = 0.8
memory_mib = 1280
"""
WORK_S = 420  # of trace: 7 s at the jobs' full yield, 28 s at the yield at which they start
ENDLESS_S = 10**7
TASKS = {PREEMPTED_PARALLEL: 2, PREEMPTED_SERIAL: 1, MIGRATED: 1, KILLED: 1, UNDISTURBED: 1}


class Joined:
    """A lab and the only run in it, by the commands of a user."""

    def __init__(self, lab: str, folder: Path, plugins: Path) -> None:
        self.lab, self.folder = lab, folder
        (folder / "joined.toml").write_text(SCENARIO.format(lab=lab) + PATIENT_TOML)
        rows = (f"{job},0,{tasks},0.2,0.12,{ENDLESS_S if job == KILLED else WORK_S}\n" for job, tasks in TASKS.items())
        (folder / "jobs.csv").write_text(
            "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n" + "".join(rows)
        )
        self._environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join([str(plugins), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip

    def command(self, *words: str, code: int = 0) -> str:
        """Run `testbed` to its end, and return what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "testbed", *words], cwd=self.folder, env=self._environment, capture_output=True,
            text=True, check=False, timeout=HANG_S,
        )  # fmt: skip
        assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def start_run(self) -> subprocess.Popen[bytes]:
        """Start `testbed run`; its output goes to a file."""
        with (self.folder / "run.out").open("wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "testbed", "run", "joined.toml"], cwd=self.folder, env=self._environment,
                stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def journal(self) -> list[dict]:
        """The entries that the run has written so far."""
        return [entry for path in self.folder.glob("runs/*/events.jsonl") for entry in read_journal(path)]

    def said(self) -> str:
        """The last part of the run's output so far."""
        return (self.folder / "run.out").read_text(errors="replace")[-2000:]

    def emulator(self, job: int) -> psutil.Process:
        """The QEMU process of a serial job."""
        (found,) = [
            process for process in psutil.process_iter(["name", "cmdline"])
            if (process.info["name"] or "").startswith("qemu") and any(
                self.run_tag in word and f"-j{job}-t0" in word for word in process.info["cmdline"] or ()
            )
        ]  # fmt: skip
        return found

    @property
    def run_tag(self) -> str:
        """The common prefix of the names of the run's guests."""
        return next(entry["run_tag"] for entry in self.journal() if entry["kind"] == "begin")


@pytest.fixture
def joined(tmp_path: Path, install_plugin) -> Iterator[Joined]:
    plugins = install_plugin(
        "dfrs_choreography", Path(choreography.__file__).read_text(),
        "[testbed.policies]\nChoreography = dfrs_choreography:choreography\n",
    )  # fmt: skip
    made = Joined(f"joined{os.getpid()}", tmp_path, plugins)
    yield made
    made.command("lab", "down", made.lab)
    assert leftovers(made.lab) == []


def told(journal: list[dict], kind: str, job: int) -> list[dict]:
    return [entry for entry in journal if entry["kind"] == kind and entry.get("job") == job]


def operations(journal: list[dict], job: int) -> list[str]:
    return [entry["verb"] for entry in told(journal, "intent", job) if entry["verb"] != "cap"]


def nodes_of(journal: list[dict], job: int, verb: str) -> list[int]:
    (entry,) = [entry for entry in told(journal, "intent", job) if entry["verb"] == verb]
    return list(entry["nodes"])


def test_five_jobs_run_in_a_lab_that_is_made_and_removed(joined: Joined) -> None:
    up = json.loads(joined.command("lab", "up", "joined.toml", "--json"))
    assert up["missing"] == []
    with joined.start_run() as run:
        try:

            def at_work() -> bool:
                assert run.poll() is None, joined.said()
                return any(entry["event"] == "progress" for entry in told(joined.journal(), "guest", KILLED))

            wait_until(at_work, f"job {KILLED} at work")
            joined.emulator(KILLED).send_signal(signal.SIGKILL)
            assert run.wait(HANG_S) == 1, joined.said()
        finally:
            run.kill()

    (place,) = (joined.folder / "runs").iterdir()
    check_directory(place)
    summary, journal = json.loads((place / "summary.json").read_text()), joined.journal()
    assert list(summary["failed"]) == [str(KILLED)]
    assert summary["done"] == len(TASKS) - 1
    assert summary["results"] == {"right": len(TASKS) - 1, "wrong": {}, "unchecked": {}}
    assert "doubts" not in summary
    why = json.loads(joined.command("why", str(place), str(KILLED), "--json"))
    assert why["reason"]["code"] == "guest-failed", why["reason"]

    assert operations(journal, PREEMPTED_PARALLEL) == ["start", "save", "restore"]
    assert sorted(nodes_of(journal, PREEMPTED_PARALLEL, "restore")) == [0, 1]
    assert operations(journal, PREEMPTED_SERIAL) == ["start", "save", "transfer", "restore"]
    assert nodes_of(journal, PREEMPTED_SERIAL, "start") != nodes_of(journal, PREEMPTED_SERIAL, "restore")
    assert operations(journal, MIGRATED) == ["start", "migrate"]
    (moved,) = told(journal, "migration", MIGRATED)
    assert "error" not in moved
    assert operations(journal, UNDISTURBED) == operations(journal, KILLED) == ["start"]
    assert [entry for entry in journal if entry["kind"] == "outcome" and not entry["ok"]] == []
    assert replay_decisions(place)[1] == []

    status = json.loads(joined.command("lab", "status", joined.lab, "--json"))[0]
    assert status["missing"] == []
    assert [node["domains"] for node in status["nodes"]] == [[], []], "guests of the run remain"
    joined.command("lab", "down", joined.lab)
    assert leftovers(joined.lab) == []
    assert marked(joined.lab) == []
    assert [name for name in namespaces() if name.startswith(f"dfrs-{joined.lab}-")] == []
    assert not lab_dir(joined.lab).exists()
    assert not store_dir(joined.lab).exists()
