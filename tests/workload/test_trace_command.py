import gzip
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from testbed.cli.trace import trace
from testbed.errors import UserError
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import offered_load, scale_load
from testbed.scheduling.workload.readings import READINGS
from testbed.scheduling.workload.synthetic import annotate, synthetic_trace
from testbed.scheduling.workload.table import parse_table
from testbed.scheduling.workload.trace import load_trace, save_trace

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
    """Return the command's standard output; errors are raised."""
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
        ("log.swf", "hpc2", r"no reading 'hpc2'; there is: hpc2n, processors, .*; nearest: hpc2n"),
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
        ([], "exactly one of --jobs FIRST:COUNT, --window START:DURATION, --week K, --weeks DIR"),
        (["--weeks", "w", "--week", "1"], "exactly one of"),
        (["--weeks", "w"], "expected OUT, a job table, for one segment, and none beside --weeks DIR"),
        (["--jobs", "0:1", "--week", "1"], "exactly one of"),
        (["--jobs", "5"], r"--jobs 5: expected FIRST:COUNT"),
        (["--jobs", "1:2.5"], r"--jobs 1:2\.5: expected FIRST:COUNT"),
        (["--jobs", "2:9"], "past the end: the trace has 3 jobs"),
        (["--window", "a:b"], "expected START:DURATION"),
        (["--week", "9"], "no job was submitted in week 9; the trace spans 604800 to"),
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


def test_all_weeks_go_to_a_folder(table, tmp_path):
    for _ in range(2):
        run("segment", table, "--weeks", tmp_path / "weeks")
        made = {path.name: [job.job_id for job in load_trace(path)] for path in (tmp_path / "weeks").iterdir()}
        assert made == {"week-001.csv": [1, 2], "week-002.csv": [3]}
    with pytest.raises(UserError, match="expected OUT"):
        run("segment", table, "--week", "1")


def test_a_log_gets_synthetic_needs(tmp_path):
    log, out = tmp_path / "log.swf", tmp_path / "out.csv"
    log.write_text(SWF_LINE)
    run("annotate", log, out, "--seed", 5)
    assert load_trace(out) == annotate(load_trace(log, "processors"), 5)
    assert load_trace(out)[0].tasks == 4
    run("annotate", log, out, "--seed", 6, "--reading", "processors-estimates")
    assert load_trace(out) == annotate(load_trace(log, "processors-estimates"), 6)


def test_a_model_trace_is_annotated_and_scaled_step_by_step_as_at_once(tmp_path):
    paths = [tmp_path / f"{name}.csv" for name in ("model", "needs", "scaled")]
    run("generate", "lublin", "--nodes", 64, "--jobs", 80, "--seed", 4, "-o", paths[0])
    run("annotate", paths[0], paths[1], "--seed", 4)
    assert paths[1].read_bytes() == paths[0].read_bytes()
    run("annotate", paths[0], paths[1], "--seed", 8)
    assert load_trace(paths[1]) == annotate(load_trace(paths[0]), 8) != load_trace(paths[0])
    run("scale", paths[1], paths[2], "--nodes", 64, "--load", 0.3)
    assert load_trace(paths[2]) == scale_load(load_trace(paths[1]), 64, 0.3)
    assert offered_load(load_trace(paths[2]), 64) == pytest.approx(0.3, rel=1e-9)


@pytest.mark.parametrize("reading", READINGS)
def test_a_log_is_converted_to_a_job_table(tmp_path, reading):
    (tmp_path / "log.swf").write_text(SWF_LINE)
    run("convert", tmp_path / "log.swf", tmp_path / "out.csv.gz", "--reading", reading)
    assert load_trace(tmp_path / "out.csv.gz") == load_trace(tmp_path / "log.swf", reading)
    assert f"\n  {reading} " in run("convert", "--help")


def test_a_log_is_converted_to_a_log(tmp_path):
    (tmp_path / "log.swf").write_text(f"; first\r\n{SWF_LINE};last\n")
    run("convert", tmp_path / "log.swf", tmp_path / "out.SWF.gz")
    lines = gzip.decompress((tmp_path / "out.SWF.gz").read_bytes()).decode().splitlines()
    assert lines[:2] == ["; first", ";last"]
    assert [line.split() for line in lines[2:]] == [SWF_LINE.split()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "t.csv", "out.swf"], r"out\.swf: a job table has not the fields of a log; expected .* \.csv"),
        (
            ["convert", "log.swf", "out.swf", "--reading", "hpc2n"],
            r"out\.swf: a log stays as it is, yet reading 'hpc2n'",
        ),
        (["convert", "log.swf", "out.csv"], r"log\.swf: an SWF log needs a reading"),
        (["convert", "log.swf", "out.txt", "--reading", "hpc2n"], r"out\.txt: traces are written as job tables"),
        (["convert", "bad.swf", "out.swf"], r"bad\.swf:2: run_time_s = '1e3': expected a plain number"),
        (
            ["convert", "bad.swf", "out.csv", "--reading", "processors"],
            r"bad\.swf:2: run_time_s = '1e3': expected a plain",
        ),
        (
            ["annotate", "none.swf", "out.csv", "--seed", "1"],
            r"none\.swf: content = '1 comment lines': expected at least",
        ),
        (["annotate", "log.swf", "out.csv", "--seed", "-1"], "seed -1 of the needs: expected 0 or more"),
        (["scale", "t.csv", "out.csv", "--nodes", "0", "--load", "0.5"], "0 nodes: expected 1 or more"),
        (["scale", "t.csv", "out.csv", "--nodes", "4", "--load", "0"], r"offered load 0\.0: expected a finite number"),
    ],
)
def test_what_cannot_be_made_is_told_and_nothing_is_written(table, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.swf").write_text(SWF_LINE)
    (tmp_path / "bad.swf").write_text(f"; x\n{SWF_LINE.replace(' 50 ', ' 1e3 ')}")
    (tmp_path / "none.swf").write_text("; no job\n")
    with pytest.raises(UserError, match=message):
        run(*arguments)
    assert {path.name for path in tmp_path.iterdir()} == {"t.csv", "log.swf", "bad.swf", "none.swf"}


@pytest.mark.parametrize(
    "command", [["info"], ["segment"], ["annotate"], ["scale"], ["convert"], ["generate", "lublin"]]
)
def test_help_holds_an_example(command):
    assert f"\n    testbed trace {' '.join(command)} " in run(*command, "--help")


def test_importing_the_commands_loads_nothing_heavy():
    heavy = "[name for name in sys.modules if name.startswith(('numpy', 'testbed.scheduling.workload', 'rich'))]"
    code = f"import sys, testbed.cli.trace; print({heavy})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
