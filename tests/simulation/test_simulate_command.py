"""`testbed simulate` through click: figures, files, errors. The plain Python kernels decide, without compilation."""

import csv
import json

import pytest
from click.testing import CliRunner

from testbed.cli.bodies.simulate import safe_name
from testbed.cli.main import cli
from testbed.errors import TestbedError
from testbed.measure.rundir import JOB_COLUMNS
from testbed.scheduling.policies.catalogue import available
from testbed.scheduling.simulation import compiling

TRACE = """job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s
1,0,2,1.0,0.6,100
2,50,1,0.5,0.6,40
3,60,1,0.5,0.5,20
"""
NAMES = ["max_stretch", "mean_stretch", "bound", "degradation", "underutilization", "preemptions_per_job",
         "migrations_per_job", "preemptions_per_hour", "migrations_per_hour", "preemption_gb_per_s",
         "migration_gb_per_s", "makespan_s", "decide_mean_s", "decide_max_s"]  # fmt: skip


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "can_compile", lambda: False)
    (tmp_path / "trace.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return CliRunner().invoke(cli, ["simulate", *arguments], catch_exceptions=False, standalone_mode=False)

    return run


def test_json_and_job_files(command, tmp_path):
    result = command("trace.csv", "--nodes", "2", "--policy", "greedypm*/per/opt=min", "--policy", "EQUIPARTITION",
                     "--penalty-s", "5", "--jobs-out", "out", "--json", "--debug-invariants")  # fmt: skip
    figures = json.loads(result.stdout)
    assert list(figures) == ["GreedyPM */per/OPT=MIN", "EQUIPARTITION"]
    one = figures["GreedyPM */per/OPT=MIN"]
    assert list(one) == NAMES
    # Job 2 preempts job 1 at 50, with 50 s left. Job 3 fits beside job 2, on the other node.
    with (tmp_path / "out" / "GreedyPM+-per-OPT=MIN.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == JOB_COLUMNS
    ends = {row["job_id"]: float(row["end_time_s"]) for row in rows}
    assert ends == {"1": 145.0, "2": 90.0, "3": 80.0}  # job 1 resumes at 90, free at 95
    assert float(rows[0]["penalty_s"]) == 5.0
    assert int(rows[0]["bytes_moved"]) == 2 * 2 * 0.6 * 8e9
    assert one["max_stretch"] == 1.45
    assert one["degradation"] == one["max_stretch"] / one["bound"]
    assert one["preemptions_per_job"] == pytest.approx(1 / 3)
    assert one["makespan_s"] == 145.0
    assert one["preemption_gb_per_s"] == pytest.approx(2 * 2 * 0.6 * 8 / 145)
    assert figures["EQUIPARTITION"]["decide_max_s"] is None
    assert one["decide_max_s"] >= one["decide_mean_s"] > 0


def test_a_table_has_a_column_a_policy(command):
    result = command("trace.csv", "--nodes", "2", "--policy", "FCFS", "--policy", "/per/OPT=MIN", "--bound", "none")
    lines = result.stdout.splitlines()
    assert any("FCFS" in line and "/per/OPT=MIN" in line for line in lines)
    assert {line.split()[0] for line in lines if line.startswith(" ") and line.split()} >= set(NAMES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0", "--policy", "FCFS"], "--nodes 0: expected 1 or more"),
        (["--nodes", "2", "--policy", "FCSF"], "FCSF.*nearest: FCFS"),
        (["--nodes", "1", "--policy", "FCFS"], "job 1"),
        (["--nodes", "1", "--policy", "/per/OPT=MIN"], "job 1 can never run on 1 nodes"),
        (["--nodes", "2", "--policy", "FCFS", "--period-s", "0"], "--period-s 0: expected seconds"),
        (["--nodes", "2", "--policy", "FCFS", "--penalty-s", "-1"], "not negative"),
        (["--nodes", "2", "--policy", "FCFS", "--penalty-s", "1", "--overheads", "constant:2"], "expected one of them"),
        (["--nodes", "2", "--policy", "FCFS", "--tau-s", "nan"], "--tau-s nan"),
        (["--nodes", "2", "--policy", "FCFS", "--node-memory-gb", "0"], "--node-memory-gb 0"),
        (["--nodes", "2", "--policy", "FCFS", "--reading", "hpc2n"], "takes no reading"),
        (["--nodes", "2", "--policy", "FCFS", "--jobs-out", "trace.csv"], "cannot make the folder"),
    ],
)
def test_wrong_options_are_explained(command, arguments, message):
    with pytest.raises(TestbedError, match=message) as caught:
        command("trace.csv", *arguments)
    assert caught.value.exit_code == 2


def test_file_names_of_all_policies_differ():
    names = [safe_name(name) for name in available()]
    assert len({name.casefold() for name in names}) == len(names)
    assert all("/" not in name and " " not in name for name in names)
