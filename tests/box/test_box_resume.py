"""Runs of real virtual machines whose controller, or the agent of a node, is killed in each phase of its work."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.box import moving
from support.box.moving import LIVE_EVERY
from support.control import killing
from support.deadlines import PATIENT_TOML
from support.live import HANG_S, wait_until

from testbed.lab.box.sweep import leftovers
from testbed.run import events
from testbed.run.reader import read_history

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="a lab in a box needs root"),
    pytest.mark.skipif(
        not all(
            shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
            for name in ("libvirtd", "virsh", "ip", "tc", "qemu-system-x86_64")
        ),
        reason="libvirtd, virsh, ip, tc and QEMU are not all installed",
    ),
]

LAB = f"resume{os.getpid()}"
SCENARIO = f"""
name = "resumed"
lab = "{LAB}"
policy = "Moving"
period_s = 60
time_scale = 20
on_controller_loss = "keep"
recorders = ["killing"]
[workload]
trace = "jobs.csv"
[programs]
calibration_s = 2.5
[migration]
mechanism = "live"
budget_s_per_gib = 7200
no_progress_s = 900
[box]
guest_network = "10.215.0.0/16"
[[nodes]]
name = "a"
driver = "libvirt"
cpus = 0.8
memory_mib = 2048
[[nodes]]
name = "b"
driver = "libvirt"
cpus = 0.8
memory_mib = 2048
"""
HEADER = "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n"
# MPI jobs of two tasks, and jobs of one task; every third job migrates live; 120 s of trace are 6 s at full yield
TWELVE = "".join(f"{job},{120 * (job - 1)},{2 if job % LIVE_EVERY == 1 else 1},0.2,0.07,120\n" for job in range(1, 13))
PHASES = {
    "idle": {"kind": "job", "state": "submitted"},
    "starting": {"kind": "intent", "verb": "start", "nth": 4},
    "saving": {"kind": "intent", "verb": "save", "nth": 3},
    "transferring": {"kind": "intent", "verb": "transfer", "nth": 2},
    "restoring": {"kind": "intent", "verb": "restore", "nth": 2},
    "migrating": {"kind": "intent", "verb": "migrate", "nth": 2},
    "running": {"kind": "guest", "event": "progress", "nth": 7},
}


def command(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `testbed` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "testbed", *words], cwd=folder, env={**os.environ, **variables}, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=HANG_S,
    )  # fmt: skip


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make the lab of all tests here, and return its scenario; the lab is removed afterwards."""
    folder = tmp_path_factory.mktemp("lab")
    path = folder / "resumed.toml"
    path.write_text(SCENARIO.replace('recorders = ["killing"]\n', "") + PATIENT_TOML)
    (folder / "jobs.csv").write_text(HEADER + TWELVE)
    up = command(folder, "lab", "up", path.name)
    try:
        assert up.returncode == 0, up.stdout[-2000:]
        yield path
    finally:
        down = command(folder, "lab", "down", LAB)
    assert down.returncode == 0, down.stdout[-2000:]
    assert leftovers(LAB) == []


def plugins(folder: Path, install_plugin: Callable[[str, str, str], Path]) -> str:
    """Write the scenario, and install policy and recorder; return the path of the plug-ins."""
    install_plugin(
        "dfrs_moving", Path(moving.__file__).read_text(), "[testbed.policies]\nMoving = dfrs_moving:moving\n"
    )
    site = install_plugin(
        "dfrs_killing", Path(killing.__file__).read_text(), "[testbed.recorders]\nkilling = dfrs_killing:Killing\n"
    )
    (folder / "resumed.toml").write_text(SCENARIO + PATIENT_TOML)
    (folder / "jobs.csv").write_text(HEADER + TWELVE)
    return os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])


def why_failed(run: Path) -> str:
    """Return the journal's entries about nodes, and the failures of guests and jobs."""
    lines = (run / "events.jsonl").read_text().splitlines()
    return "\n".join(line for line in lines if '"kind":"node"' in line or '"failed"' in line)


def note(**found: object) -> None:
    """Append a line to the file of results, if there is one."""
    if file := os.environ.get("DFRS_RESUME_RESULT"):
        with Path(file).open("a") as lines:
            lines.write(f"{json.dumps({'guests': 'virtual machines', **found})}\n")


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("phase", PHASES)
def test_every_job_ends_well_after_the_controller_was_killed(
    tmp_path: Path, install_plugin: Callable[[str, str, str], Path], phase: str
) -> None:
    python_path = plugins(tmp_path, install_plugin)
    lost = command(tmp_path, "run", "resumed.toml", PYTHONPATH=python_path, DFRS_KILL_AT=json.dumps(PHASES[phase]))
    assert lost.returncode == -signal.SIGKILL, lost.stdout[-2000:]
    (run,) = (tmp_path / "runs").iterdir()
    assert not read_history(run / "events.jsonl").ended
    resumed = command(tmp_path, "resume", str(run), PYTHONPATH=python_path)
    summary = json.loads((run / "summary.json").read_text())
    assert resumed.returncode == 0, (why_failed(run), resumed.stdout[-2000:])
    assert summary["done"] == 12
    assert summary["results"] == {"right": 12, "wrong": {}, "unchecked": {}}

    recovered: list[events.Recovered] = []
    moved: set[int] = set()

    def keep(event: events.Known, _history: object) -> None:
        match event:
            case events.Recovered():
                recovered.append(event)
            case events.Intent(verb="migrate", job=job):
                moved.add(job)

    assert read_history(run / "events.jsonl", (), keep).resumes == len(recovered) == 1
    assert moved >= set(range(LIVE_EVERY, 13, LIVE_EVERY)), "others may move, if their save was under way at the loss"
    note(
        victim="controller", phase=phase, done=summary["done"], blind_s=recovered[0].blind_s,
        adopted=len(recovered[0].adopted), carried_on=len(recovered[0].carried_on),
    )  # fmt: skip


@pytest.mark.parametrize("phase", PHASES)
def test_every_job_ends_well_after_an_agent_was_killed(
    lab: Path, tmp_path: Path, install_plugin: Callable[[str, str, str], Path], phase: str
) -> None:
    python_path = plugins(tmp_path, install_plugin)
    kill = json.dumps({**PHASES[phase], "agent_of": "a", "lab": LAB})
    (agent,) = killing.agents(["a", LAB], psutil.process_iter())
    run = subprocess.Popen(
        [sys.executable, "-m", "testbed", "run", "resumed.toml"], cwd=tmp_path, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": python_path, "DFRS_KILL_AT": kill},
    )  # fmt: skip
    try:
        wait_until(lambda: not agent.is_running() or run.poll() is not None, "the end of the agent")
        again = command(lab.parent, "lab", "up", lab.name)
        assert again.returncode == 0, again.stdout[-2000:]
        said, _ = run.communicate(timeout=HANG_S)
    finally:
        run.kill()
        run.wait()
    assert agent.pid not in [each.pid for each in killing.agents(["a", LAB], psutil.process_iter())]
    (path,) = (tmp_path / "runs").iterdir()
    summary = json.loads((path / "summary.json").read_text())
    assert run.returncode == 0, (why_failed(path), said[-2000:])
    assert summary["done"] == 12
    assert summary["results"] == {"right": 12, "wrong": {}, "unchecked": {}}
    note(victim="agent", phase=phase, done=summary["done"])
