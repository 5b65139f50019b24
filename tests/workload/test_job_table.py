import gzip
import re
from dataclasses import replace

import pytest
from hypothesis import given
from support.workload.workload_strategies import deterministic, traces

from testbed.errors import InputError, UserError
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.table import format_table, parse_table, read_table, write_table

HEADER = "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s"
GOOD = "1,0,2,1.0,0.5,10"


@deterministic
@given(traces())
def test_round_trip_is_exact(jobs):
    assert parse_table(format_table(jobs), "t.csv") == jobs


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_files_round_trip_and_are_reproducible(tmp_path, name):
    jobs = [Job(7, 0.1 + 0.2, 3, 1 / 3, 0.1, 1e-3, 'ä,"b"\n', None), Job(2, 5.0, 1, 1.0, 1.0, 9.0, None, 12.5)]
    path = tmp_path / name
    write_table(path, jobs)
    first = path.read_bytes()
    assert read_table(path) == jobs
    write_table(path, jobs)
    assert path.read_bytes() == first
    if name.endswith(".gz"):
        assert first[4:8] == bytes(4)  # the time stamp
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_optional_columns_appear_when_used():
    job = Job(1, 0.0, 1, 1.0, 1.0, 1.0)
    assert format_table([job]).splitlines()[0] == HEADER
    assert format_table([replace(job, estimate_s=2.0)]).splitlines()[0] == HEADER + ",estimate_s"
    assert format_table([replace(job, job_class="x")]).splitlines()[0] == HEADER + ",class"
    named = [replace(job, urgent=True), replace(job, job_id=2, program="patterns")]
    lines = format_table(named).splitlines()
    assert lines[0] == HEADER + ",urgent,program"
    assert [line.split(",")[-2:] for line in lines[1:]] == [["1", ""], ["0", "patterns"]]
    assert parse_table("\n".join(lines), "t.csv") == named


def test_columns_in_any_order_blank_lines_and_byte_order_mark(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "\ufefftasks,job_id,run_time_s,mem_req_frac,cpu_need_frac,submit_time_s\r\n\r\n3,9,10,.5,1e-1,4\r\n"
    )
    assert read_table(path) == [Job(9, 4.0, 3, 0.1, 0.5, 10.0)]


def test_unsorted_jobs_are_sorted_by_submission_then_file_order():
    rows = ["5,10,1,1,1,1", "4,0,1,1,1,1", "3,10,1,1,1,1", "2,0,1,1,1,1"]
    jobs = parse_table("\n".join([HEADER, *rows]), "t.csv")
    assert [job.job_id for job in jobs] == [4, 2, 5, 3]


BAD_VALUES = {
    "job_id": ["-1", "1.0", "x", "", "1_0", str(2**63)],
    "submit_time_s": ["-0.5", "nan", "inf", "1e999", "x", "", "1_0", " 1", "1e10"],
    "tasks": ["0", "-3", "1.5", "2.0", "nan", "", "٣"],
    "cpu_need_frac": ["0", "-0.1", "1.0000001", "nan", "inf", "x", ""],
    "mem_req_frac": ["0", "0.0", "-1", "2", "NaN", "half"],
    "run_time_s": ["0", "-1", "nan", "-inf", "1e400", "1e-400", "1:30", "1e300"],
    "estimate_s": ["0", "-1", "nan", "inf", "x", "1e300"],
    "urgent": ["2", "yes", "-1", "True"],
    "program": ["Patterns", "../x", "-a", "a b", "x" * 64],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD_VALUES.items() for value in values]
)
def test_a_bad_value_is_named_with_its_line(field, value):
    columns = [*HEADER.split(","), "estimate_s", "urgent", "program"]
    row = dict(zip(columns, ["2", "0", "2", "1.0", "0.5", "10", "", "", ""], strict=True))
    row[field] = value
    with pytest.raises(InputError) as caught:
        parse_table("\n".join([",".join(columns), GOOD + ",,,", ",".join(row.values())]), "t.csv")
    assert (caught.value.where, caught.value.field, caught.value.found) == ("t.csv:3", field, value)
    assert re.search(
        r"integer from \d|fraction of a node|finite number of seconds|1, for a job|a name of a program",
        caught.value.expected,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"t\.csv: content = '': expected a header job_id,"),
        (HEADER, r"t\.csv: content .* at least one job"),
        (f"{HEADER},clas\n", r"t\.csv:1: column = 'clas': expected one of .*; nearest: class"),
        (f"{HEADER},tasks\n", r"t\.csv:1: column = 'tasks': expected each column once"),
        (HEADER.replace(",tasks", "") + "\n", r"t\.csv:1: header = .*: expected also tasks$"),
        (f"{HEADER}\n{GOOD}\n{GOOD}\n", r"t\.csv:3: job_id = 1: expected an id of its own; line 2 has it"),
        (f"{HEADER}\n{GOOD},5\n", r"t\.csv:2: values = 7: expected 6"),
        (f"{HEADER}\n1,0,2\n", r"t\.csv:2: values = 3: expected 6"),
        (f'{HEADER}\n{GOOD}\n"1"x,0,2,1,1,1\n', r"t\.csv:3: line = .*: expected comma-separated values"),
    ],
)
def test_a_bad_table_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_table(text, "t.csv")


def test_unreadable_files_are_named(tmp_path):
    whole = gzip.compress((f"{HEADER}\n" + "".join(f"{i},0,1,1,1,1\n" for i in range(500))).encode())
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "plain.csv.gz").write_text(HEADER)
    (tmp_path / "latin.csv").write_bytes(f"{HEADER},class\n{GOOD},caf\xe9\n".encode("latin-1"))
    for name, message in {
        "cut.csv.gz": "expected a whole gzip file",
        "plain.csv.gz": "expected a whole gzip file",
        "latin.csv": r"latin\.csv:2: text = .*: expected UTF-8",
        "latn.csv": r"no such file; nearest: latin\.csv",
        "": "cannot be read: Is a directory",
    }.items():
        with pytest.raises(UserError, match=message) as caught:
            read_table(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_table(path, [Job(1, 0.0, 1, 1.0, 1.0, 1.0, "\ud800")])
    assert path.read_text() == "old"
    with pytest.raises(UserError, match="cannot be written: No such file or directory"):
        write_table(tmp_path / "nowhere" / "t.csv", [])
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.csv"]


def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path):
    jobs = [Job(1, 0.0, 1, 1.0, 1.0, 1.0)]
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("real.csv")
    write_table(tmp_path / "link.csv", jobs)
    assert (tmp_path / "link.csv").is_symlink()
    assert read_table(tmp_path / "real.csv") == jobs
