"""The examples of docs/extending.md, installed as the page says, and run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from blocks import ROOT, blocks
from support.deadlines import PATIENT_TOML
from support.live import HANG_S

import testbed
from node_agent.programs.catalogue import find_program
from node_agent.programs.task import Task
from testbed.compiler import can_compile, is_cached
from testbed.policies.catalogue import parse
from testbed.policies.kernel_policy import has_kernels
from testbed.simulation.compiling import NEVER
from testbed.simulation.loop import run_loop
from testbed.simulation.overheads import constant
from testbed.simulation.simulate import loop_of, simulate
from testbed.workload.synthetic import synthetic_trace
from testbed.workload.table import read_table

PAGE = ROOT / "docs/extending.md"
JOBS = """job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s
1,0,2,1.0,0.1,100
2,1,2,1.0,0.1,100
3,2,1,1.0,0.1,50
"""


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


@pytest.fixture
def plugins(install_plugin: Callable[[str, str, str], Path]) -> Path:
    (points,) = blocks(PAGE, "toml")
    named = tomllib.loads(points)["project"]["entry-points"]
    text = "\n".join(f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in each.items()) for group, each in named.items())
    return install_plugin("lab_plugins", "\n".join(blocks(PAGE, "python")), text)


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
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "own.toml").write_text(SCENARIO + PATIENT_TOML)
    packages = Path(testbed.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "run", "own.toml"], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=HANG_S, env={**os.environ, "PYTHONPATH": f"{plugins}{os.pathsep}{packages}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    manifest = json.loads((run / "manifest.json").read_text())
    text = json.dumps(manifest)
    assert '"driver": "gentle"' in text
    assert '"Narrow"' in text
    rows = (run / "jobs.csv").read_text().splitlines()
    assert len(rows) == 4
