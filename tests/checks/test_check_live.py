"""Check sessions on a real lab of one node: agents, guests and images on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import psutil
import pytest
from support.deadlines import PATIENT_TOML
from support.live import HANG_S, wait_until

from testbed.study.checks.references import load_references, save_references

pytestmark = pytest.mark.slow

LAB = """
name = "checked"
policy = "fcfs"
[workload.lublin]
nodes = 1
jobs = 10
seed = 1
[[nodes]]
name = "node-a"
cpus = 0.5
memory_mib = 256
"""
START = """
import pytest

@pytest.mark.hypervisor("process")
@pytest.mark.reference("start_s")
def test_start(guest, measure):
    def trial():
        with guest(memory_mib=64) as job:
            started = job.start()
        return {"start_s": started.start_s + started.first_progress_s}
    measure(trial, condition="64 MiB")
"""
NOISE = """
import itertools, pytest

@pytest.mark.hypervisor()
@pytest.mark.reference("load_mib_per_s")
def test_noisy(measure):
    values = itertools.chain(NOISY)
    measure(lambda: {"load_mib_per_s": next(values)})

@pytest.mark.hypervisor("kvm")
def test_of_another_hypervisor(guest):
    raise AssertionError
"""
BREAKS = """
import psutil, pytest

pytestmark = pytest.mark.hypervisor()

def test_breaks(lab, node, guest):
    folder = str(lab.image_folder(node))
    agents = [p for p in psutil.Process().children(recursive=True) if folder in p.cmdline()]
    assert len(agents) == 1
    with guest(memory_mib=64) as job:
        job.start()
        agents[0].kill()  # it is started again, and its guest keeps running
        job.save()
    pytest.fail("a check of a lab whose agent was killed")

def test_after_it(guest):
    raise AssertionError

def test_without_a_lab():
    pass
"""
WAITS = """
import pathlib, time, pytest

@pytest.mark.hypervisor()
def test_waits(guest):
    with guest(memory_mib=64) as job:
        job.start()
        pathlib.Path("running").touch()
        job.wait_end()
"""


def argv(*arguments: str) -> list[str]:
    code = "import sys; from testbed.cli.check import check; sys.exit(check(standalone_mode=False))"
    return [sys.executable, "-c", code, *arguments]


def checked(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "lab.toml").write_text(LAB + PATIENT_TOML)
    return subprocess.run(
        argv("lab.toml", "--json", *arguments), cwd=folder, capture_output=True, text=True, check=False,
        timeout=HANG_S,
    )  # fmt: skip


def outcomes(result: subprocess.CompletedProcess[str]) -> dict[str, str]:
    checks = json.loads(result.stdout)["checks"]
    return {check["check"].rpartition("::")[2].partition("[")[0]: check["outcome"] for check in checks}


def test_a_wrong_reference_fails_confirmed_and_a_noisy_figure_does_not(tmp_path: Path) -> None:
    bad, good = [40.0] * 5, [100.0] * 5
    (tmp_path / "test_start.py").write_text(START)
    written = checked(tmp_path, "--update-references", "test_start.py")
    assert written.returncode == 0, written.stderr
    (figure,) = json.loads(written.stdout)["checks"][0]["figures"]
    assert figure["updated"] is True
    assert len(figure["runs"][0]["values"]) == 5

    path = tmp_path / "references.toml"
    references = load_references(path)
    ((machine, entries),) = references.machines.items()
    start = entries["start_s"]
    assert start.value == figure["runs"][0]["value"]
    assert "process" in machine
    assert "0.5 of" in machine
    wrong = start.model_copy(update={"value": start.value / 1000, "slack": 0.0})
    save = {"unit": "MiB/s", "better": "higher", "value": 100.0, "lower_frac": 0.2, "upper_frac": 0.2, "condition": ""}
    load = type(start).model_validate(save)
    save_references(path, references.updated(machine, "load_mib_per_s", load))
    text = (
        path.read_text().replace(f"value = {start.value}", f"value = {wrong.value}").replace("slack = 0.1", "slack = 0")
    )
    path.write_text(text)

    (tmp_path / "test_noise.py").write_text(NOISE.replace("NOISY", repr([*bad, *good])))
    judged = checked(tmp_path, "--junit=checks.xml", "test_noise.py", "test_start.py")
    assert judged.returncode == 1, judged.stderr
    assert outcomes(judged) == {
        "test_start": "failed", "test_noisy": "unconfirmed", "test_of_another_hypervisor": "skipped"
    }  # fmt: skip
    report = json.loads(judged.stdout)
    figures = {figure["figure"]: figure for check in report["checks"] for figure in check["figures"]}
    assert figures["start_s"]["verdict"] == "regressed"
    assert [len(run["values"]) for run in figures["start_s"]["runs"]] == [5, 5]
    assert figures["load_mib_per_s"]["verdict"] == "unconfirmed"
    assert "UNCONFIRMED" in judged.stderr
    assert "1 unconfirmed" in judged.stderr

    suite = ET.parse(tmp_path / "checks.xml").getroot()[0]  # noqa: S314  # written by pytest just now
    about = {entry.get("name"): entry.get("value") for entry in suite.find("properties")}
    assert about["hypervisor"] == "process"
    assert about["kernel"]
    assert about["testbed"].startswith("0.")
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    noted = {entry.get("name"): entry.get("value") for entry in cases["test_start"].iter("property")}
    assert noted["start_s.verdict"] == "regressed"
    assert noted["node"] == "node-a"
    assert cases["test_start"].find("failure") is not None
    assert cases["test_noisy"].find("failure") is None


def test_a_lab_that_breaks_skips_the_rest_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "test_breaks.py").write_text(BREAKS)
    result = checked(tmp_path, "test_breaks.py")
    assert result.returncode == 1, result.stderr
    assert outcomes(result) == {"test_breaks": "failed", "test_after_it": "skipped", "test_without_a_lab": "passed"}
    report = json.loads(result.stdout)
    assert "node-a went away: its agent vanished" in report["broken"]
    after = next(check for check in report["checks"] if "after" in check["check"])
    assert report["broken"] in after["reason"]


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "test_waits.py").write_text(WAITS)
    (tmp_path / "lab.toml").write_text(LAB + PATIENT_TOML)
    base = tmp_path / "base"
    command = argv("lab.toml", "test_waits.py")
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTEST_ADDOPTS": f"--basetemp={base}"})
    try:
        wait_until(lambda: (tmp_path / "running").exists() or process.poll() is not None, "a check at work")
        assert (tmp_path / "running").exists()
        below = psutil.Process(process.pid).children(recursive=True)
        assert any("node_agent" in child.cmdline() for child in below)
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 130
    finally:
        process.kill()
        process.wait()
    assert [child for child in below if child.is_running()] == []
    assert not list(base.glob("lab*/*/images"))
