"""Accounting of Slurm becomes jobs: the output of sacct in its versions, missing values, and invalid text."""

import gzip
import json
import logging

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from support.workload.site_jobs import (
    CORES_PER_NODE,
    NODE_BYTES,
    SACCT_SAMPLE,
    assert_jobs_or_error,
    close_to,
    expected_jobs,
    mutations,
    sacct_text,
    site_jobs,
)
from support.workload.workload_strategies import deterministic

from testbed.cli.main import cli
from testbed.errors import InputError, UserError
from testbed.scheduling.simulation import compiling
from testbed.scheduling.workload.accounting import SiteNode
from testbed.scheduling.workload.accounting_values import Clock
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.sites import accounting_jobs
from testbed.scheduling.workload.trace import load_trace

NODE = SiteNode(CORES_PER_NODE, NODE_BYTES / 1e9)


def read(text, node=NODE, clock=None):
    return accounting_jobs(text, "s.txt", "sacct", node, clock or Clock())


def table(row, header="JobID|Submit|ElapsedRaw|NCPUS"):
    """A table of one job; `row` begins after the columns that every table here has."""
    return f"{header}\n7|2026-01-31T12:00:00|60|4{row}\n"


def test_a_day_of_a_cluster(caplog):
    with caplog.at_level(logging.WARNING):
        jobs = read(SACCT_SAMPLE)
    gib = 2**30 / NODE_BYTES
    assert jobs == close_to(
        [
            Job(4003, 0.0, 1, 1 / 16, 4000 / 1024 * gib, 612.0, "short", 600.0),
            Job(4001, 30.0, 32, 1 / 16, 2 * gib, 3600.0, "batch", 7200.0),  # used 32 times 2 GiB, requested half of it
            Job(4006, 3631.0, 4, 1 / 16, 1 / 16, 1.0, None, None),
        ]
    )
    assert sorted(caplog.messages) == sorted(
        f"s.txt: sacct: {count} of 6 records {note}"
        for note, count in {
            "never ran (no start, no run time or no cores) and were left out": 2,
            "had not ended and were left out": 1,
            "have run time 0, taken as 1 s": 1,
            "have no time limit and are estimated at their run time": 1,
            "have no known memory, taken as their cores' even share of a node": 1,
        }.items()
    )


def test_without_raw_numbers_tasks_of_arrays_have_their_digits_behind_the_job():
    text = (
        SACCT_SAMPLE.replace("JobIDRaw|JobID|", "Other|JobID|")
        .replace("4003_1|", "4003_12|")
        .replace("4001|4001", "x|4001")
    )
    jobs = read(text.replace("4003_1.batch", "4003_12.batch"))
    assert [job.job_id for job in jobs] == [400312, 400100, 400600]


@deterministic
@given(site_jobs, st.booleans())
def test_what_a_site_ran_is_read_back(ran, raw):
    if raw:  # every task of an array has its own number
        ran = [job for job in ran if job.task is None]
    if ran:
        assert read(sacct_text(ran, raw=raw)) == close_to(expected_jobs(ran))


@pytest.mark.parametrize(
    ("memory", "core_mib"),
    [
        ("4000M", 1000.0),  # per job, since 21.08
        ("4G", 1024.0),
        ("2.5G", 640.0),
        ("1000Mc", 1000.0),  # per core
        ("1Gc", 1024.0),
        ("2Gn", 1024.0),  # per node: two of them for four cores
        ("4000", 1000.0),
        ("1T", 64e9 / 2**20),  # capped at a node's memory
        ("0n", None),
        ("0", None),
        ("", None),
        ("16?", None),  # 2^64 - 1 MiB, which means no value
        ("16384P", None),
    ],
)
def test_requested_memory_of_all_versions(memory, core_mib):
    (job,) = read(table(f"|2|{memory}", "JobID|Submit|ElapsedRaw|NCPUS|NNodes|ReqMem"))
    share = 1 / 16 if core_mib is None else core_mib * 2**20 / NODE_BYTES
    assert job.mem_req_frac == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize(
    ("column", "limit", "estimate_s"),
    [
        ("TimelimitRaw", "1440", 86400.0),
        ("TimelimitRaw", "0", None),
        ("TimelimitRaw", "4294967295", None),
        ("TimelimitRaw", "UNLIMITED", None),
        ("Timelimit", "1-02:03:04", 93784.0),
        ("Timelimit", "00:30:00", 1800.0),
        ("Timelimit", "Partition_Limit", None),
        ("Timelimit", "INVALID", None),
        ("Timelimit", "", None),
    ],
)
def test_time_limits(column, limit, estimate_s):
    (job,) = read(table(f"|{limit}", f"JobID|Submit|ElapsedRaw|NCPUS|{column}"))
    assert job.estimate_s == estimate_s


@pytest.mark.parametrize(
    ("elapsed", "seconds"), [("1-02:03:04", 93784.0), ("00:00:07", 7.0), ("02:03.456", 123.456), ("INVALID", 30.0)]
)
def test_run_times_with_the_difference_of_start_and_end_in_reserve(elapsed, seconds):
    head = "JobID|Submit|Start|End|Elapsed|NCPUS"
    times = "2026-01-31T12:00:00|2026-01-31T23:59:50|2026-02-01T00:00:20"
    (job,) = read(f"{head}\n7|{times}|{elapsed}|4\n")
    assert job.run_time_s == seconds


def test_a_task_may_be_what_a_job_has_on_a_node(caplog):
    head = "JobIDRaw|Submit|ElapsedRaw|NCPUS|AllocNodes|ReqMem\n"
    rows = ["1|2026-01-31T12:00:00|60|40|4|8Gn", "2|2026-01-31T12:00:00|60|2K|2|1Gc", "3|2026-01-31T12:00:00|60|1|1|"]
    with caplog.at_level(logging.WARNING):
        jobs = read(head + "\n".join(rows), SiteNode(16, 64.0, "node"))
    assert [(job.tasks, job.cpu_need_frac) for job in jobs] == [(4, 0.625), (2, 1.0), (1, 1 / 16)]
    assert [job.mem_req_frac for job in jobs] == pytest.approx([8 * 2**30 / 64e9, 1.0, 1 / 16])
    assert "s.txt: sacct: 1 of 3 records had more cores per node than --cores-per-node" in caplog.messages
    assert "s.txt: sacct: 1 of 3 records need more memory per task than a node has, taken as a whole node's" in (
        caplog.messages
    )
    with pytest.raises(InputError, match=r"s\.txt:2: nodes = None: expected a column NNodes for --task node"):
        read(table(""), SiteNode(16, 64.0, "node"))


def test_without_a_nodes_memory_it_is_shared_evenly():
    (job,) = read(table("|100G", "JobID|Submit|ElapsedRaw|NCPUS|ReqMem"), SiteNode(16))
    assert job.mem_req_frac == 1 / 16


def test_a_job_that_ran_again_and_lines_of_overlapping_exports_are_one_job(caplog):
    head = "JobIDRaw|Submit|Start|End|ElapsedRaw|State|NCPUS\n"
    again = "5|2026-01-31T13:00:00|2026-01-31T14:00:00|2026-01-31T15:00:00|3600|COMPLETED|2\n"
    first = "5|2026-01-31T12:00:00|2026-01-31T12:00:00|2026-01-31T12:30:00|1800|NODE_FAIL|2\n"
    other = "6|2026-01-31T12:30:00|2026-01-31T12:30:00|2026-01-31T12:31:00|60|COMPLETED|2\n"
    for text in (head + again + other + first, head + first + head + other + again):
        with caplog.at_level(logging.WARNING):
            jobs = read(text)
        assert [(job.job_id, job.submit_time_s, job.run_time_s) for job in jobs] == [
            (5, 0.0, 3600.0),
            (6, 1800.0, 60.0),
        ]
        assert "s.txt: sacct: 1 of 3 records are earlier runs or copies of a job and were left out" in caplog.messages


def test_components_of_a_heterogeneous_job_are_jobs():
    head = "JobID|Submit|ElapsedRaw|NCPUS|MaxRSS\n"
    rows = [f"9+{i}|2026-01-31T12:00:00|60|{2 + i}|\n9+{i}.0|2026-01-31T12:00:00|60|1|{1 + i}G\n" for i in (0, 1)]
    jobs = read(head + "".join(rows))
    assert [(job.job_id, job.tasks) for job in jobs] == [(9, 2), (10, 3)]
    assert [job.mem_req_frac for job in jobs] == pytest.approx([2**29 / NODE_BYTES, 2**31 / 3 / NODE_BYTES])


@pytest.mark.parametrize(
    ("state", "start", "end", "kept"),
    [
        ("COMPLETED", "2026-01-31T12:00:00", "2026-01-31T12:01:00", True),
        ("CANCELLED by 0", "2026-01-31T12:00:00", "2026-01-31T12:01:00", True),  # while it ran
        ("CANCELLED by 0", "Unknown", "2026-01-31T12:01:00", False),
        ("CANCELLED", "2026-01-31T12:01:00", "2026-01-31T12:01:00", False),  # while it waited
        ("PENDING", "2026-01-31T12:01:00", "Unknown", False),
        ("SUSPENDED", "2026-01-31T12:01:00", "2026-01-31T12:02:00", False),
        ("REVOKED", "2026-01-31T12:01:00", "2026-01-31T12:02:00", False),
        ("COMPLETED", "1970-01-01T01:00:00", "2026-01-31T12:02:00", False),
    ],
)
def test_states_of_a_job(state, start, end, kept):
    head = "JobIDRaw|Submit|Start|End|State|NCPUS"
    other = "1|2026-01-31T12:00:00|2026-01-31T12:00:01|2026-01-31T12:00:02|FAILED|1"
    jobs = read(f"{head}\n{other}\n2|2026-01-31T12:00:00|{start}|{end}|{state}|1\n")
    assert [job.job_id for job in jobs] == ([1, 2] if kept else [1])


def test_numbers_that_are_too_large_or_there_twice_are_replaced(caplog):
    head = "JobID|Submit|ElapsedRaw|NCPUS\n"
    rows = ["999999999999999999_1|2026-01-31T12:00:01|60|1", "3_999999|2026-01-31T12:00:00|60|1"]
    with caplog.at_level(logging.WARNING):
        jobs = read(head + "\n".join(rows))
    assert [job.job_id for job in jobs] == [1, 2]
    assert any("2 of 2 records have new numbers" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"s\.txt: content = '': expected the output of `sacct --parsable2`"),
        ("JobID|Submit|ElapsedRaw|NCPUS\n", r"s\.txt: content = '0 records': expected at least one job that ran"),
        ("sacct: error: no\n", r"s\.txt:1: header = .*: expected names .*, also JobIDRaw or JobID, Submit, NCPUS or"),
        ("JobID|Submit|Start|NCPUS\n", r"s\.txt:1: header = .* also ElapsedRaw$"),
        ("JobID|Submit|NCPUS|ElapsedRaw|submit\n", r"s\.txt:1: column = 'submit': expected each column once"),
        ("|" * 10**6, r"s\.txt:1: columns = 1000001: expected at most 1000"),
        (table("|9"), r"s\.txt:2: values = 5: expected 4, as the header has; leave out columns of free text"),
        (table("\n8|2026"), r"s\.txt:3: values = 2: expected 4"),
        (table("").replace("\n7|", "\nx7|"), r"s\.txt:2: JobID = 'x7': expected a job, a task of an array or a step"),
        (table("").replace("|60|", "|6.0e1|"), r"s\.txt:2: ElapsedRaw = '6\.0e1': expected a number of seconds"),
        (table("").replace("|60|", f"|{10**40}|"), r"s\.txt:2: ElapsedRaw = '10+': expected .* at most 18 digits"),
        (table("").replace("|60|", "|9999999999|"), r"s\.txt:2: run time = 9999999999\.0: expected at most 1000000000"),
        (table("").replace("|4\n", "|9999999999\n"), r"s\.txt:2: NCPUS = '9999999999': expected at most 4096000000"),
        (table("").replace("|4\n", "|1.5\n"), r"s\.txt:2: NCPUS = '1\.5': expected a whole number"),
        (table("").replace("T12", " 12 "), r"s\.txt:2: Submit = .*: expected a time such as 2026-01-31T12:00:00"),
        (table("").replace("01-31T", "02-30T"), r"s\.txt:2: Submit = .*: expected a time that exists"),
        (table("").replace("2026", "9999"), r"s\.txt:2: Submit = .*: expected a year up to 2999"),
        (
            table("").replace("2026-01-31T12:00:00", "Unknown"),
            r"s\.txt:2: Submit = 'Unknown': expected the time of the",
        ),
        (
            table("\n8|2126-01-31T12:00:00|60|4"),
            r"s\.txt:3: submission after the first job = 3155673600\.0: expected at most 1000000000",
        ),
        (table("|x\0y", "JobID|Submit|ElapsedRaw|NCPUS|Partition"), r"Partition = 'x\\x00y': expected a name"),
        (table("|4Q", "JobID|Submit|ElapsedRaw|NCPUS|ReqMem"), r"ReqMem = '4Q': expected a size such as 4000M"),
        (table("|4Gn", "JobID|Submit|ElapsedRaw|NCPUS|ReqMem"), r"ReqMem = '4Gn': expected a column NNodes beside"),
        (
            "JobID|Submit|Start|End|NCPUS\n7|2026-01-31T12:00:00|2026-01-31T12:00:00|2026-01-31T11:00:00|1\n",
            r"s\.txt:2: End = '2026-01-31T11:00:00': expected a time from 2026-01-31T12:00:00, the start, on",
        ),
    ],
)
def test_what_is_no_accounting_is_refused_in_a_line(text, message):
    with pytest.raises(InputError, match=message) as caught:
        read(text)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


@deterministic
@given(st.text() | mutations(SACCT_SAMPLE))
@example("JobID|Submit|ElapsedRaw|NCPUS\n٣|2026-01-31T12:00:00|60|4\n")
@example("JobID|Submit|ElapsedRaw|NCPUS\n3|0001-01-01T00:00:00-23:59|60|4\n")
@example("JobID|Submit|ElapsedRaw|NCPUS\n3|2999-12-31T23:59:59+99:99|60|4\n")
@example("JobID|Submit|ElapsedRaw|NCPUS\n3|999999999999999999|60|4\n")
def test_any_text_gives_jobs_or_an_error_of_the_user(text):
    assert_jobs_or_error(read, text)


# --- the command


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "can_compile", lambda: False)
    monkeypatch.chdir(tmp_path)

    def invoke(*words):
        return CliRunner().invoke(cli, list(words), catch_exceptions=False, standalone_mode=False)

    return invoke


def test_a_site_is_converted_and_replayed_under_two_policies(run, tmp_path):
    (tmp_path / "january.gz").write_bytes(gzip.compress(SACCT_SAMPLE.encode()))
    node = ("--cores-per-node", "16", "--node-memory-gb", "64")
    result = run("trace", "convert", "january.gz", "site.csv", "--from", "sacct", *node)
    assert result.stderr.endswith("site.csv: 3 jobs\n")
    assert load_trace(tmp_path / "site.csv") == read(SACCT_SAMPLE)
    dfrs = "GreedyPM */per/OPT=MIN"
    figures = json.loads(run("simulate", "site.csv", "--nodes", "2", "--policy", dfrs, "--json").stdout)
    assert figures[dfrs]["makespan_s"] >= 3630
    run("trace", "convert", "january.gz", "nodes.csv.gz", "--from", "sacct", *node, "--task", "node")
    assert [job.tasks for job in load_trace(tmp_path / "nodes.csv.gz")] == [1, 2, 1]
    words = ["--nodes", "3", "--policy", "EASY", "--policy", dfrs, "--json"]
    figures = json.loads(run("simulate", "nodes.csv.gz", *words).stdout)
    assert figures["EASY"]["makespan_s"] == 3632.0  # no job waits, as at the site
    assert figures[dfrs]["makespan_s"] >= 3632.0


def test_batch_policies_replay_cores_as_nodes(run, tmp_path, caplog):
    (tmp_path / "sacct.txt").write_text(SACCT_SAMPLE)
    run(
        "trace",
        "convert",
        "sacct.txt",
        "cores.csv",
        "--from",
        "sacct",
        "--cores-per-node",
        "1",
        "--node-memory-gb",
        "4",
    )
    assert {job.cpu_need_frac for job in load_trace(tmp_path / "cores.csv")} == {1.0}
    assert not any("--cores-per-node" in message for message in caplog.messages)
    figures = json.loads(run("simulate", "cores.csv", "--nodes", "40", "--policy", "EASY", "--json").stdout)
    assert figures["EASY"]["makespan_s"] == 3632.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["s.txt", "out.csv", "--from", "sacct"], r"--from sacct: expected --cores-per-node N beside it"),
        (["s.txt", "out.csv", "--cores-per-node", "4"], r"--cores-per-node 4: expected --from sacct or --from qacct"),
        (["s.txt", "out.csv", "--timezone", "UTC"], r"--timezone UTC: expected --from sacct or --from qacct beside it"),
        (
            ["s.txt", "out.csv", "--from", "sacct", "--reading", "hpc2n"],
            r"--reading hpc2n: expected none beside --from",
        ),
        (
            ["s.txt", "out.swf", "--from", "sacct", "--cores-per-node", "4"],
            r"out\.swf: traces are written as job tables",
        ),
        (["no.txt", "out.csv", "--from", "sacct", "--cores-per-node", "4"], r"no\.txt: no such file"),
        (["s.txt", "out.csv", "--from", "sacct", "--cores-per-node", "0"], r"--cores-per-node 0: expected 1 to 4096"),
        (
            ["s.txt", "out.csv", "--from", "sacct", "--cores-per-node", "4", "--node-memory-gb", "nan"],
            r"--node-memory-gb nan: expected 0\.001 to",
        ),
        (
            ["s.txt", "out.csv", "--from", "sacct", "--cores-per-node", "4", "--timezone", "Europe/Berlim"],
            r"--timezone 'Europe/Berlim': expected a time zone .*; nearest: Europe/Berlin",
        ),
        (
            ["latin.txt", "out.csv", "--from", "sacct", "--cores-per-node", "4"],
            r"latin\.txt:2: text = b'\\xe9': expected UTF-8",
        ),
        (["s.txt", "out.csv", "--from", "qacct", "--cores-per-node", "4"], r"s\.txt: content = '0 records': expected"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_nothing_is_written(run, tmp_path, words, message):
    (tmp_path / "s.txt").write_text(SACCT_SAMPLE)
    (tmp_path / "latin.txt").write_bytes(table("|caf\xe9", "JobID|Submit|ElapsedRaw|NCPUS|Partition").encode("latin-1"))
    with pytest.raises(UserError, match=message):
        run("trace", "convert", *words)
    assert {path.name for path in tmp_path.iterdir()} == {"s.txt", "latin.txt"}
