"""The examples of docs/extending.md, installed as the page says, and run."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from support.calibrations import read_calibration
from support.deadlines import PATIENT_TOML
from support.docs.blocks import ROOT, blocks
from support.live import HANG_S

import testbed
from node_agent.abilities import PROTOCOLS
from node_agent.drivers.protocol import Driver
from node_agent.programs.catalogue import find_program
from node_agent.programs.task import Task
from testbed.scheduling.compiler import can_compile, is_cached
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.kernel_policy import has_kernels
from testbed.scheduling.simulation.compiling import NEVER
from testbed.scheduling.simulation.loop import run_loop
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.simulate import loop_of, simulate
from testbed.scheduling.workload.synthetic import synthetic_trace
from testbed.scheduling.workload.table import read_table
from testbed.testing import DriverConformance
from testbed.testing.core import CoreConformance

PAGE = ROOT / "docs/extending.md"
JOBS = """job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s
1,0,2,1.0,0.1,100
2,1,2,1.0,0.1,100
3,2,1,1.0,0.1,50
"""
SERIAL_JOBS = JOBS.replace(",2,1.0,", ",1,1.0,")  # the small driver does not support MPI jobs

SCENARIO = """
name = "own"
policy = "Narrow"
time_scale = 50
[workload]
trace = "jobs.csv"
[[nodes]]
name = "a"
driver = "gentle"
memory_mib = 640
[[nodes]]
name = "b"
driver = "gentle"
memory_mib = 640
"""


LAB = """
[[nodes]]
name = "a"
cpus = 0.5
memory_mib = 320
[[nodes]]
name = "b"
cpus = 0.5
memory_mib = 320
"""


EXAMPLES = ("narrow", "first_come", "sqrt_program", "gentle", "test_gentle", "hold")  # in the order of the page


def example(module: str) -> str:
    return dict(zip(EXAMPLES, blocks(PAGE, "python"), strict=True))[module]


@pytest.fixture
def plugins(install_plugin: Callable[[str, str, str], Path]) -> Path:
    """Return the folder in which the examples are installed, each with its line of entry points."""
    (points,) = blocks(PAGE, "toml")
    for group, named in tomllib.loads(points)["project"]["entry-points"].items():
        for name, target in named.items():
            module = target.partition(":")[0]
            folder = install_plugin(module, example(module), f"[{group}]\n{name} = {target}\n")
    return folder


def run_python(plugins: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    packages = Path(testbed.__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": f"{plugins}{os.pathsep}{packages}"},
    )  # fmt: skip


@pytest.mark.usefixtures("plugins")
def test_the_policy_schedules_the_narrowest_job_first(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    policy = parse("Narrow")
    run = simulate(read_table(tmp_path / "jobs.csv"), 2, policy, debug=True)
    assert dict(zip([job.job_id for job in run.jobs], run.end_s, strict=True)) == {1: 100.0, 3: 150.0, 2: 250.0}


@pytest.mark.usefixtures("plugins")
def test_the_policy_of_kernels_decides_the_same_on_arrays_and_on_views(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS + "4,2,2,0.5,0.6,30\n")
    jobs, policy = read_table(tmp_path / "jobs.csv"), parse("FirstCome")
    assert has_kernels(policy)
    run = run_loop(jobs, 2, policy, constant(300.0).table(8.0), debug=True, compiling=NEVER, record=True)
    shown = run_loop(jobs, 2, policy, constant(300.0).table(8.0), debug=True, record=True, views=True)
    assert list(run.decided()) == list(shown.decided())
    assert run.end_s.tolist() == shown.end_s.tolist()
    # Job 1 takes node 0 with both of its tasks, as does job 2: each has a quarter of the CPU it needs until job 1 ends.
    assert run.end_s[0] > 100.0
    assert run.preemptions.sum() == run.migrations.sum() == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(), reason="numba is an extra")
@pytest.mark.usefixtures("plugins")
def test_the_policy_of_kernels_is_compiled(tmp_path: Path) -> None:
    jobs, policy = synthetic_trace(8, 80, 1), parse("FirstCome")
    loop = loop_of(policy)
    assert loop is not None
    compiled_run = simulate(jobs, 8, policy, debug=True)
    plain = simulate(jobs, 8, policy, compiling=NEVER)
    assert compiled_run.end_s.tobytes() == plain.end_s.tobytes()
    assert is_cached(loop)


@pytest.mark.usefixtures("plugins")
def test_the_program_computes_what_it_expects() -> None:
    program = find_program("sqrt")
    task = Task(
        guest="a", run="r", job=1, task=0, memory_mib=64, name="sqrt", work_units=1050, units_per_iteration=100, seed=1,
        workers=1, rank=0, ranks=1, topology="ring", imbalance="uniform", message_bytes=0,
    )  # fmt: skip
    work = program.work(task)
    for iteration in range(task.iterations):
        work.run(task.share(iteration))
    assert program.expected is not None
    assert work.checksum() == program.expected(task, lambda: False)
    copy = program.work(task)
    for mine, saved in zip(copy.arrays, work.arrays, strict=True):
        mine[...] = saved
    assert copy.checksum() == work.checksum()


@pytest.mark.slow
def test_policy_and_driver_work_in_a_live_run(plugins: Path, tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(SERIAL_JOBS)
    (tmp_path / "own.toml").write_text(SCENARIO + PATIENT_TOML)
    done = run_python(plugins, tmp_path, "testbed", "run", "own.toml")
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    manifest = json.loads((run / "manifest.json").read_text())
    assert {facts["driver"] for facts in manifest["nodes"].values()} == {"gentle"}
    assert all(facts["traits"]["runs_own_programs"] for facts in manifest["nodes"].values())
    assert '"Narrow"' in json.dumps(manifest)
    assert json.loads((run / "summary.json").read_text())["done"] == 3
    rows = (run / "jobs.csv").read_text().splitlines()
    assert len(rows) == 4


@pytest.mark.slow
def test_the_experiment_goes_from_trials_on_processes_to_a_figure(plugins: Path, tmp_path: Path) -> None:
    def calibrate(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "testbed", "calibrate", "lab.toml", "--quick", "--repeats", "2", *words],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANG_S,
            env={**os.environ, "PYTHONPATH": f"{plugins}{os.pathsep}{packages}", "COLUMNS": "250"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    packages = Path(testbed.__file__).parents[1]
    (tmp_path / "lab.toml").write_text(LAB + PATIENT_TOML)
    tables = calibrate("--experiments", "hold,bus", "--report")
    model = read_calibration(tmp_path / "calibration.toml")
    assert model.about.experiments == ("bus", "hold")
    assert [note for note in model.about.notes if "hold" in note] == []
    held = model.find("hold_s")
    assert [(one.unit, one.n, one.observations, dict(one.condition)) for one in held] == [
        ("s", 2, 10, {"iteration_s": 0.05}),
        ("s", 2, 10, {"iteration_s": 0.2}),
    ]
    assert all(one.value > 0.0 and one.bounded for one in held)
    assert model.assumptions["hold_wait"].verdict != "not measured"
    assert model.find("bus_round_trip_s")
    printed = json.loads(calibrate("--fit-only", "--json"))
    assert [one["value"] for one in printed["quantities"] if one["name"] == "hold_s"] == [
        pytest.approx(one.value) for one in held
    ]
    assert "hold_s" in tables
    assert "A hold waits for half an iteration." in tables
    page = (tmp_path / "calibration.html").read_text()
    (figure,) = re.findall(r'<figure id="hold".*?</figure>', page, re.DOTALL)
    assert "<svg" in figure
    assert "iterations of 0.05 s" in figure
    assert "A hold waits for half an iteration." in page
    assert "Other experiments" in page
    assert "6 of these 7 assumptions are from [RR]" in page, "a plug-in's assumption is not one of the papers'"


@pytest.mark.slow
def test_the_driver_does_what_every_driver_must(plugins: Path, tmp_path: Path) -> None:
    """Run the page's own test in a project that does not have this one's settings."""
    test = example("test_gentle")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "test_gentle.py").write_text(test)
    done = run_python(plugins, folder, "pytest", "-p", "no:cacheprovider", "-q", "-rs", "test_gentle.py")
    assert done.returncode == 0, done.stdout + done.stderr
    core = {name for name in dir(CoreConformance) if name.startswith("test_")}
    every = {name for name in dir(DriverConformance) if name.startswith("test_")}
    assert f"{len(core)} passed, {len(every - core)} skipped" in done.stdout
    skipped = re.findall(r"^SKIPPED .*: driver gentle lacks the ability (\w+)$", done.stdout, re.MULTILINE)
    assert set(skipped) == {"save", "live", "mpi", "native", "shares", "traffic"}


def test_the_driver_is_small() -> None:
    """Assert that its methods are the seven of the core, and their helpers."""
    code = example("gentle")
    (driver,) = [
        each for each in ast.parse(code).body if isinstance(each, ast.ClassDef) and each.name == "GentleDriver"
    ]
    methods = {each.name for each in driver.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert methods >= Driver.__abstractmethods__
    assert len(Driver.__abstractmethods__) == 7
    for protocol in PROTOCOLS.values():
        assert not methods & {name for name in vars(protocol) if not name.startswith("_")}
