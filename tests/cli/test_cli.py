"""The command line from the view of a user: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.live import HANG_S

ROOT = Path(__file__).parents[2]
TABLE = "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n1,0,1,1.0,0.4,300\n2,10,2,0.5,0.3,200\n"
SCENARIO = """
name = "small"
policy = "GreedyPM */per/OPT=MIN/MINVT=600"
time_scale = 60
[workload]
trace = "jobs.csv"
[[nodes]]
name = "node-a"
[[nodes]]
name = "node-b"
"""


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "testbed", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(SCENARIO)
    (tmp_path / "jobs.csv").write_text(TABLE)
    return tmp_path


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Assert that the command fails with one line on standard error and exit code 2."""
    assert result.returncode == 2, result.stderr
    lines = [line for line in result.stderr.splitlines() if line]
    assert len(lines) == 1, result.stderr
    for word in words:
        assert word in lines[0]


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, click\nfrom testbed.cli.main import cli\n"
        "try: cli.main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'pydantic', 'rich', 'aiomqtt', 'msgspec', 'psutil', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=HANG_S)
    assert result.returncode == 0, result.stderr
    assert "quickstart" in result.stdout


@pytest.mark.parametrize("command", ["run", "report", "replay-decisions", "nodes", "policies", "trace"])
def test_every_command_has_help_with_an_example(command: str, tmp_path: Path) -> None:
    result = run(command, "--help", cwd=tmp_path)
    assert result.returncode == 0
    usage, _, rest = result.stdout.partition("\n")
    assert usage.startswith("Usage: ")
    assert f"testbed {command} " in rest


def test_a_dry_run_prints_the_plan_and_leaves_nothing(small: Path) -> None:
    result = run("run", "small.toml", "--dry-run", cwd=small)
    assert result.returncode == 0, result.stderr
    assert "start job 1 on node-a at yield 1.00" in result.stdout
    assert "2 / 2" in result.stdout
    assert sorted(path.name for path in small.iterdir()) == ["jobs.csv", "small.toml"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_run_goes_on_without_a_reader_of_its_display(small: Path, stream: str) -> None:
    words = ["run", "small.toml", "--dry-run", *(["--json"] if stream == "stderr" else [])]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "testbed", *words], cwd=small, check=False, timeout=HANG_S,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: writer},
        )  # fmt: skip
    finally:
        os.close(writer)
    assert result.returncode == 0, result.stderr
    if stream == "stdout":
        assert result.stderr == b""
    else:
        assert len(json.loads(result.stdout)) == 1


def test_a_dry_run_of_two_policies_as_json(small: Path) -> None:
    result = run("run", "small.toml", "--dry-run", "--json", "--policy", "easy", "--policy", "fcfs", cwd=small)
    assert result.returncode == 0, result.stderr
    summaries = json.loads(result.stdout)
    assert [summary["policy"] for summary in summaries] == ["EASY", "FCFS"]
    assert all(summary["metrics"]["max_stretch"]["value"] >= 1 for summary in summaries)


def test_a_missing_trace(small: Path) -> None:
    refused(run("run", "small.toml", "--trace", "none.csv", cwd=small), "none.csv")


def test_another_trace_is_cut_by_the_segment_of_the_scenario(small: Path) -> None:
    (small / "small.toml").write_text(SCENARIO.replace("[[nodes]]", "[workload.segment]\njobs = 1\n[[nodes]]", 1))
    (small / "other.csv").write_text(TABLE)
    result = run("run", "small.toml", "--dry-run", "--trace", "other.csv", cwd=small)
    assert result.returncode == 0, result.stderr
    assert "other.csv: 1 of 2 jobs, by workload.segment of small.toml: jobs 0:1" in result.stderr
    (small / "small.toml").write_text(SCENARIO)
    assert "workload.segment" not in run("run", "small.toml", "--dry-run", "--trace", "other.csv", cwd=small).stderr


def test_a_truncated_trace(small: Path) -> None:
    import gzip

    (small / "cut.csv.gz").write_bytes(gzip.compress((TABLE * 50).encode())[:-20])
    refused(run("run", "small.toml", "--trace", "cut.csv.gz", cwd=small), "cut.csv.gz")


@pytest.mark.parametrize(
    ("row", "words"),
    [("3,20,9,1.0,0.9,60", ["job 3", "tasks = 9"]), ("3,20,1,1.0,1.2,60", ["jobs.csv:4", "mem_req_frac", "1.2"])],
)
def test_a_job_bigger_than_the_cluster(small: Path, row: str, words: list[str]) -> None:
    (small / "jobs.csv").write_text(TABLE + row + "\n")
    refused(run("run", "small.toml", "--dry-run", cwd=small), *words)


@pytest.mark.parametrize("value", ["-5", "nan", "inf", "soon"])
def test_a_number_that_is_none(small: Path, value: str) -> None:
    (small / "jobs.csv").write_text(TABLE + f"3,{value},1,1.0,0.5,60\n")
    refused(run("run", "small.toml", cwd=small), "jobs.csv:4", "submit_time_s", value)


def test_an_unknown_policy(small: Path) -> None:
    refused(
        run("run", "small.toml", "--policy", "GreedyPN */OPT=MIN", cwd=small),
        "GreedyPN",
        "nearest",
        "GreedyPM */OPT=MIN",
    )


def test_an_unknown_key(small: Path) -> None:
    (small / "small.toml").write_text(SCENARIO.replace("time_scale", "timescale"))
    refused(run("run", "small.toml", cwd=small), "small.toml", "timescale", "nearest: time_scale")


@pytest.mark.parametrize("value", ["0", "-1", "nan"])
def test_a_time_scale_that_is_none(small: Path, value: str) -> None:
    refused(run("run", "small.toml", "--time-scale", value, cwd=small), "time_scale", value)


def test_a_run_directory_that_cannot_be_written(small: Path) -> None:
    (small / "runs").write_text("a file")
    refused(run("run", "small.toml", cwd=small), "runs", "cannot create the run directory")


def test_a_broker_that_is_not_there(small: Path) -> None:
    (small / "small.toml").write_text(SCENARIO + '[broker]\naddress = "mqtt://127.0.0.1:9"\n')
    result = run("run", "small.toml", cwd=small)
    assert result.returncode == 2
    assert result.stderr.strip().splitlines()[-1].startswith("testbed: broker mqtt://127.0.0.1:9")
    assert result.stdout == ""
    assert not (small / "runs").exists()


def test_an_agent_that_never_answers(small: Path) -> None:
    (small / "small.toml").write_text(
        SCENARIO + '[[nodes]]\nname = "far-away"\nspawn = false\n[deadlines]\nannounce_s = 3\n'
    )
    result = run("run", "small.toml", cwd=small)
    assert result.returncode == 2
    assert "no answer within 3 s from far-away" in result.stderr.splitlines()[-1]
    assert result.stdout == ""
    assert not (small / "runs").exists()


def test_what_is_no_run_directory(tmp_path: Path) -> None:
    refused(run("report", "nowhere", cwd=tmp_path), "nowhere", "no such run directory")
    refused(run("replay-decisions", ".", cwd=tmp_path), "manifest.json")


def test_an_unknown_command_names_the_nearest(tmp_path: Path) -> None:
    result = run("polices", cwd=tmp_path)
    assert result.returncode == 2
    assert "nearest: policies" in result.stderr


def test_folders_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    refused(run("query", ".", "SELECT 1", cwd=tmp_path), ".: no run directory: expected one with events.jsonl")
    refused(run("query", "/dev/null", "SELECT 1", cwd=tmp_path), "/dev/null: no run directory")
    (tmp_path / "jobs.csv").touch()
    (tmp_path / "events.jsonl").touch()
    (tmp_path / "manifest.json").write_text("{}")
    refused(run("report", ".", "--no-html", cwd=tmp_path), "manifest.json: no run", "expected the manifest of a run")


def test_a_place_where_no_authority_can_be_made(tmp_path: Path) -> None:
    refused(run("ca", "init", "/proc/x", "--lab", "lab-1", cwd=tmp_path), "/proc/x: cannot write: ")


def test_a_lab_without_a_broker_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    for command in ("who", "take"):
        result = run("lab", command, "lab-1", "--broker", "mqtt://127.0.0.1:9", cwd=tmp_path)
        refused(result, "broker mqtt://127.0.0.1:9: connection refused")


def test_a_driver_that_is_unknown_is_told_at_once(small: Path) -> None:
    (small / "small.toml").write_text(SCENARIO.replace('name = "node-b"', 'name = "node-b"\ndriver = "proces"'))
    for more in ((), ("--dry-run",)):
        result = run("run", "small.toml", *more, cwd=small)
        refused(result, "node node-b: nodes.1.driver = 'proces': expected one of docker, libvirt, null, process, xen")
        assert result.stdout == ""
    assert not (small / "runs").exists()


def test_a_policy_of_a_megabyte_is_cut(small: Path) -> None:
    (small / "small.toml").write_text(SCENARIO.replace("GreedyPM */per/OPT=MIN/MINVT=600", "x" * 10**6))
    result = run("run", "small.toml", cwd=small)
    refused(result, "expected a name of at most 200 characters")
    assert len(result.stderr) < 300
