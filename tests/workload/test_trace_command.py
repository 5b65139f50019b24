import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from testbed.cli.trace import trace
from testbed.errors import UserError
from testbed.workload.jobs import Job
from testbed.workload.load import offered_load
from testbed.workload.synthetic import synthetic_trace
from testbed.workload.table import parse_table
from testbed.workload.trace import load_trace, save_trace

SWF_LINE = "7 100 0 50 4 -1 -1 4 60 -1 1 1 1 1 1 1 -1 -1\n"
TABLE = [
    Job(1, 604_800.0, 2, 1.0, 0.5, 60.0),
    Job(2, 604_860.0, 1, 0.25, 0.1, 5.0),
    Job(3, 1_300_000.0, 1, 1.0, 1.0, 9.0),
]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    save_trace(path, TABLE)
    return path


def run(*arguments):
    """What the command printed on standard output; errors are raised."""
    result = CliRunner().invoke(trace, [str(word) for word in arguments], standalone_mode=False, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_traces_are_loaded_by_suffix(tmp_path):
    save_trace(tmp_path / "t.csv.gz", TABLE)
    assert load_trace(str(tmp_path / "t.csv.gz")) == TABLE
    (tmp_path / "log.SWF").write_text(SWF_LINE)
    assert load_trace(tmp_path / "log.SWF", "hpc2n") == [Job(7, 100.0, 2, 1.0, 0.2, 50.0)]


@pytest.mark.parametrize(
    ("name", "reading", "message"),
    [
        ("log.swf", None, r"log\.swf: an SWF log needs a reading, .*: hpc2n"),
        ("log.swf", "hpc2", r"no reading 'hpc2'; there is: hpc2n; nearest: hpc2n"),
        ("t.csv", "hpc2n", r"t\.csv: a job table takes no reading"),
        ("t.json", None, r"t\.json: unknown kind of trace; expected \.csv, \.csv\.gz, \.swf, \.swf\.gz"),
        ("gone.csv", None, r"gone\.csv: no such file"),
    ],
)
def test_what_cannot_be_loaded_is_told(tmp_path, name, reading, message):
    with pytest.raises(UserError, match=message):
        load_trace(tmp_path / name, reading)


def test_info_prints_a_table_or_json(table):
    figures = json.loads(run("info", table, "--nodes", 4, "--json"))
    assert (figures["jobs"], figures["tasks"], figures["weeks"]) == (3, 4, 2)
    assert figures["offered_load"] == pytest.approx((120 + 5 + 9) / (4 * 695_200))
    lines = dict(line.split(maxsplit=1) for line in run("info", table, "--nodes", 4).splitlines())
    assert set(lines) == set(figures)
    assert (lines["jobs"], lines["span_s"], lines["mem_req_max_frac"]) == ("3", "695200", "1")
    assert "offered_load" not in run("info", table)


def test_info_reads_a_log(tmp_path):
    (tmp_path / "log.swf").write_text(SWF_LINE)
    assert json.loads(run("info", tmp_path / "log.swf", "--reading", "hpc2n", "--json"))["tasks_max"] == 2


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--jobs", "1:2", [(2, 0.0), (3, 695_140.0)]),
        ("--window", "604830:100.5", [(2, 30.0)]),
        ("--week", "1", [(1, 0.0), (2, 60.0)]),
        ("--week", "2", [(3, 90_400.0)]),
    ],
)
def test_segment_writes_a_job_table(table, tmp_path, option, value, expected):
    run("segment", table, tmp_path / "out.csv.gz", option, value)
    assert [(job.job_id, job.submit_time_s) for job in load_trace(tmp_path / "out.csv.gz")] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "exactly one of --jobs FIRST:COUNT, --window START:DURATION, --week K"),
        (["--jobs", "0:1", "--week", "1"], "exactly one of"),
        (["--jobs", "5"], r"--jobs 5: expected FIRST:COUNT"),
        (["--jobs", "1:2.5"], r"--jobs 1:2\.5: expected FIRST:COUNT"),
        (["--jobs", "2:9"], "past the end: the trace has 3 jobs"),
        (["--window", "a:b"], "expected START:DURATION"),
        (["--week", "9"], r"no job was submitted in Week\(index=9\)"),
    ],
)
def test_bad_segments_are_told_and_nothing_is_written(table, tmp_path, arguments, message):
    out = tmp_path / "out.csv"
    with pytest.raises(UserError, match=message):
        run("segment", table, out, *arguments)
    assert not out.exists()


def test_segment_writes_job_tables_only(table, tmp_path):
    with pytest.raises(UserError, match=r"out\.swf: traces are written as job tables; expected \.csv or \.csv\.gz"):
        run("segment", table, tmp_path / "out.swf", "--week", "1")


def test_generate_prints_or_writes_the_same_trace(tmp_path):
    command = ["generate", "lublin", "--nodes", 128, "--jobs", 50, "--seed", 4]
    printed = parse_table(run(*command), "stdout")
    assert printed == synthetic_trace(128, 50, 4)
    run(*command, "-o", tmp_path / "t.csv")
    assert load_trace(tmp_path / "t.csv") == printed
    scaled = parse_table(run(*command, "--load", 0.7), "stdout")
    assert offered_load(scaled, 128) == pytest.approx(0.7, rel=1e-9)
    typeless = parse_table(run(*command, "--mode", "typeless"), "stdout")
    assert typeless == synthetic_trace(128, 50, 4, "typeless")
    assert typeless != printed


@pytest.mark.parametrize("command", [["info"], ["segment"], ["generate", "lublin"]])
def test_help_holds_an_example(command):
    assert f"\n    testbed trace {' '.join(command)} " in run(*command, "--help")


def test_importing_the_commands_loads_nothing_heavy():
    heavy = "[name for name in sys.modules if name.startswith(('numpy', 'testbed.workload', 'rich'))]"
    code = f"import sys, testbed.cli.trace; print({heavy})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
