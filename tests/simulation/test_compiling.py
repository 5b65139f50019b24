"""Compiled code or the twin, whichever is faster: small work compiles nothing, and a switch changes no result."""

import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner
from support.live import HANG_S

from testbed.cli.bodies import simulate as command
from testbed.cli.main import cli
from testbed.errors import UserError
from testbed.measure.rundir import JOB_COLUMNS
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.dfrs import DFRS
from testbed.scheduling.simulation import compiling
from testbed.scheduling.simulation import loop as driver
from testbed.scheduling.simulation.batch import run_to_end
from testbed.scheduling.simulation.compiling import NEVER, Compiling, When
from testbed.scheduling.simulation.engine import event_loop
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.synthetic import synthetic_trace
from testbed.scheduling.workload.trace import load_trace

NAMES = ["GreedyPM */per/OPT=MIN/MINVT=600", "EASY"]

_ASK = """
import sys
from click.testing import CliRunner
from testbed.cli.main import cli
result = CliRunner().invoke(cli, ["simulate", *sys.argv[1:]], catch_exceptions=False)
print("numba" in sys.modules, result.exit_code, repr(result.stderr))
"""


def write_trace(path, jobs):
    lines = ["job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s"]
    lines += [
        f"{j.job_id},{j.submit_time_s!r},{j.tasks},{j.cpu_need_frac!r},{j.mem_req_frac!r},{j.run_time_s!r}"
        for j in jobs
    ]
    path.write_text("\n".join(lines) + "\n")


def test_on_a_fresh_machine_small_work_is_done_without_a_compiler(tmp_path):
    write_trace(tmp_path / "trace.csv", synthetic_trace(16, 250, 1))
    policies = [argument for name in NAMES for argument in ("--policy", name)]
    arguments = [str(tmp_path / "trace.csv"), "--nodes", "16", *policies, "--jobs-out", str(tmp_path / "out")]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-W", "error", "-c", _ASK, *arguments], env=environment, text=True,
                          capture_output=True, check=True, timeout=HANG_S)  # fmt: skip
    assert done.stdout.split() == ["False", "0", "''"]
    assert not (tmp_path / "cache").exists()
    jobs = load_trace(tmp_path / "trace.csv")
    for name in NAMES:
        run = simulate(jobs, 16, parse(name), compiling=NEVER)
        lines = [",".join(JOB_COLUMNS)] + [",".join(map(str, row)) for row in run.job_rows(8.0)]
        assert (tmp_path / "out" / f"{command.safe_name(name)}.csv").read_text().splitlines() == lines


@pytest.fixture
def fresh(monkeypatch):
    """Set up a machine that never compiled anything; return the names that would be compiled, and stay twins."""
    made = []

    def stand_in(function):
        made.append(function.__name__)
        return partial(function)

    monkeypatch.setattr(compiling, "can_compile", lambda: True)
    monkeypatch.setattr(compiling, "is_cached", lambda _function: False)
    monkeypatch.setattr(compiling, "compiled", stand_in)
    monkeypatch.setattr(driver, "compiled", stand_in)
    return made


@pytest.mark.parametrize(
    ("when", "alike", "spent_s", "done_frac", "sooner"),
    [
        (When.IF_SOONER, 0, 0.5, 0.0001, False),  # too early to tell
        (When.IF_SOONER, 0, 2.0, 0.0, True),
        (When.IF_SOONER, 0, 10.0, 0.1, False),  # 90 s are left
        (When.IF_SOONER, 0, 10.0, 0.05, True),  # 190 s
        (When.IF_SOONER, 1, 10.0, 0.1, True),  # 90 s, and 100 s for the next one
        (When.IF_SOONER, 0, 1000.0, 0.95, False),  # nearly done
        (When.NEVER, 9, 1000.0, 0.01, False),
    ],
)
@pytest.mark.usefixtures("fresh")
def test_it_is_compiled_when_the_rest_takes_longer_than_to_compile(
    monkeypatch, when, alike, spent_s, done_frac, sooner
):
    monkeypatch.setattr(compiling, "COMPILE_S", 100.0)
    assert Compiling(when, alike).is_sooner(spent_s, done_frac) is sooner


def test_a_loop_goes_over_midway_with_the_same_results(monkeypatch, fresh):
    jobs, policy = synthetic_trace(16, 60, 2), parse("GreedyPM */per/OPT=MIN/MINVT=600")
    plain = simulate(jobs, 16, policy, compiling=NEVER)
    assert fresh == []
    monkeypatch.setattr(compiling, "COMPILE_S", 0.0)
    monkeypatch.setattr(compiling, "_LOOK_S", 0.0)
    told = []
    mixed = simulate(jobs, 16, policy, compiling=Compiling(When.IF_SOONER, announce=lambda: told.append(list(fresh))))
    assert fresh == ["run_events"]
    assert told == [[]]  # once, and before it was done
    assert plain.decisions == mixed.decisions > driver._TWIN_TURN
    for name in ("start_s", "end_s", "virtual_time_s", "preemptions", "migrations", "penalty_s", "tasks_moved"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(mixed, name), err_msg=name)


def test_batch_loops_are_compiled_for_many_jobs(fresh):
    compiler = Compiling(When.IF_SOONER)
    assert compiler.begin_batch(run_to_end, 1000) is run_to_end
    assert Compiling(When.NEVER).begin_batch(run_to_end, 10_000_000) is run_to_end
    assert fresh == []
    assert compiler.begin_batch(run_to_end, 10_000_000) is not run_to_end
    assert fresh == ["run_to_end"]


def test_machine_code_that_is_there_is_used_at_once(monkeypatch, fresh):
    monkeypatch.setattr(compiling, "is_cached", lambda _function: True)
    loop = event_loop(DFRS)
    assert Compiling(When.IF_SOONER).begin(loop) is not loop
    assert fresh == ["run_events"]
    assert NEVER.begin(loop) is loop


def test_asking_for_a_compiler_that_is_not_there_is_an_error(monkeypatch, tmp_path):
    write_trace(tmp_path / "trace.csv", synthetic_trace(4, 5, 1))
    monkeypatch.setattr("testbed.cli.bodies.simulate.can_compile", lambda: False)
    arguments = ["simulate", str(tmp_path / "trace.csv"), "--nodes", "4", "--policy", "FCFS", "--json"]
    with pytest.raises(UserError, match=r"pip install 'dfrs-testbed\[simulate\]'"):
        CliRunner().invoke(cli, [*arguments, "--compile"], catch_exceptions=False, standalone_mode=False)
    result = CliRunner().invoke(cli, [*arguments, "--no-compile"], catch_exceptions=False, standalone_mode=False)
    assert json.loads(result.stdout)["FCFS"]["max_stretch"] >= 1.0
