"""Accounting of Grid Engine becomes jobs: the forms of its versions, missing values, and invalid text."""

import json
import logging

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st
from support.workload.site_jobs import (
    CORES_PER_NODE,
    NODE_BYTES,
    assert_jobs_or_error,
    close_to,
    expected_jobs,
    mutations,
    qacct_text,
    site_jobs,
)
from support.workload.workload_strategies import deterministic

from testbed.cli.main import cli
from testbed.errors import InputError
from testbed.scheduling.simulation import compiling
from testbed.scheduling.workload.accounting import SiteNode
from testbed.scheduling.workload.accounting_values import Clock
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.sites import accounting_jobs
from testbed.scheduling.workload.trace import load_trace

NODE = SiteNode(CORES_PER_NODE, NODE_BYTES / 1e9)
RULE = "=" * 62 + "\n"

SUN = """\
qname        short.q
hostname     node-7
group        users
owner        ada
project      NONE
department   defaultdepartment
jobname      fit
jobnumber    9599700
taskid       undefined
account      sge
priority     0
qsub_time    Mon Mar 21 14:48:26 2011
start_time   Mon Mar 21 14:53:46 2011
end_time     Mon Mar 21 14:54:06 2011
granted_pe   NONE
slots        1
failed       100 : assumedly after job
exit_status  137
ru_wallclock 20
ru_utime     1.976
ru_maxrss    0
cpu          2.690
mem          3.431
maxvmem      2.062G
arid         undefined
"""
NEVER_STARTED = """\
qname        short.q
hostname     node-7
jobname      fit
jobnumber    9599701
taskid       3
qsub_time    Mon Mar 21 14:48:20 2011
start_time   -/-
end_time     -/-
granted_pe   NONE
slots        1
failed       26  : opening input/output file
ru_wallclock 0
maxvmem      0.000
"""
SON = """\
qname        all.q
jobnumber    9599702
taskid       12
pe_taskid    NONE
qsub_time    Mon Mar  7 09:00:00 2011
start_time   Mon Mar  7 09:00:10 2011
end_time     Mon Mar  7 09:20:17 2011
granted_pe   mpi
slots        4
failed       0
exit_status  0
ru_wallclock 1207s
cpu          1080.635s
maxvmem      341.039MB
category     -u ada -l h_rt=1:00:00,h_vmem=4G -pe mpi 4 -P rse
"""
UNIVA = """\
qname        gpu
jobnumber    19290502
taskid       1
pe_taskid    NONE
cwd          /home/ada
submit_cmd   qsub -l h_rt=2:0:0 -t 1-1 -pe smp 2 slots.sh
qsub_time    03/21/2011 14:48:26.994
start_time   03/21/2011 14:48:36.612
end_time     03/21/2011 14:48:44.776
granted_pe   smp
slots        2
failed       0
deleted_by   NONE
exit_status  0
ru_wallclock 8.164
wallclock    9.182
maxvmem      320.895M
maxrss       128M
"""
GRIDWARE = """\
qname                              all.q
jobnumber                          8
taskid                             97
pe_taskid                          NONE
qsub_time                          2011-03-21 14:48:26.421951
start_time                         2011-03-21 14:48:27.272221
end_time                           2011-03-21 14:48:28.801865
granted_pe                         NONE
slots                              1
failed                             0
ru_wallclock                       1
maxvmem                            21045248
maxrss                             10547200
"""
SUMMARY = """\
Total System Usage
    WALLCLOCK         UTIME         STIME           CPU             MEMORY                 IO                IOW
================================================================================================================
         1228        25.861        12.399        38.259              0.284              0.000              0.000
"""


def read(text, node=NODE, clock=None):
    return accounting_jobs(text, "q.txt", "qacct", node, clock or Clock())


def changed(key, value, text=SON):
    """A block in which one key has another value, or is missing if there is no value."""
    lines = [line for line in text.splitlines(keepends=True) if line.split()[0] != key]
    return "".join(lines) + ("" if value is None else f"{key:<13}{value}\n")


def test_blocks_of_all_versions_in_one_file(caplog):
    with caplog.at_level(logging.WARNING):
        jobs = read(SUN + RULE + NEVER_STARTED + RULE + SON + RULE + UNIVA + SUMMARY + RULE + GRIDWARE + SUMMARY)
    week_s = 14 * 86400 + 5 * 3600 + 48 * 60 + 26.0  # after the first, of 7 March
    gib = 2**30 / NODE_BYTES
    assert jobs == close_to(
        [
            Job(959970212, 0.0, 4, 1 / 16, 4 * gib, 1207.0, "all.q", 3600.0),
            Job(959970000, week_s, 1, 1 / 16, 2.062 * gib, 20.0, "short.q", None),
            Job(897, week_s + 0.421951, 1, 1 / 16, 10547200 / NODE_BYTES, 1.0, "all.q", None),
            Job(1929050201, week_s + 0.994, 2, 1 / 16, gib / 16, 8.164, "gpu", 7200.0),
        ]
    )
    assert sorted(caplog.messages) == [
        "q.txt: qacct: 1 of 5 records never ran (no start, no run time or no cores) and were left out",
        "q.txt: qacct: 2 of 5 records have no time limit and are estimated at their run time",
    ]


@pytest.mark.parametrize("form", ["sun", "son", "univa", "gridware"])
@deterministic
@given(site_jobs)
def test_what_a_site_ran_is_read_back(form, ran):
    assert read(qacct_text(ran, form)) == close_to(expected_jobs(ran))


@pytest.mark.parametrize(
    ("start", "end", "wallclock", "seconds"),
    [
        ("Mon Mar  7 09:00:10 2011", "Mon Mar  7 09:20:17 2011", "0s", 1207.0),
        ("Mon Mar  7 09:00:10 2011", "Mon Mar  7 09:20:17 2011", None, 1207.0),
        ("Mon Mar  7 09:00:10 2011", "Mon Mar  7 08:20:17 2011", "1207.5", 1207.5),  # the clocks were set back
        ("Mon Mar  7 09:00:10 2011", "Mon Mar  7 09:00:10 2011", "0", 1.0),
    ],
)
def test_run_times(start, end, wallclock, seconds):
    text = changed("start_time", start, changed("end_time", end, changed("ru_wallclock", wallclock)))
    assert [job.run_time_s for job in read(text)] == [seconds]


@pytest.mark.parametrize(
    ("key", "value", "note"),
    [
        ("start_time", "-/-", "never ran (no start, no run time or no cores) and were left out"),
        ("start_time", "UNKNOWN", "never ran (no start, no run time or no cores) and were left out"),
        ("start_time", "Thu Jan  1 01:00:00 1970", "never ran (no start, no run time or no cores) and were left out"),
        ("slots", "0", "never ran (no start, no run time or no cores) and were left out"),
    ],
)
def test_blocks_without_a_job(key, value, note, caplog):
    with caplog.at_level(logging.WARNING):
        jobs = read(changed(key, value) + RULE + SUN)
    assert [job.job_id for job in jobs] == [9599700]
    assert f"q.txt: qacct: 1 of 2 records {note}" in caplog.messages


def test_a_job_that_failed_before_it_ran_or_has_no_end_is_left_out(caplog):
    failed = changed("failed", "8   : in prolog", changed("ru_wallclock", "0", changed("end_time", None)))
    at_once = changed("end_time", "Mon Mar  7 09:00:10 2011", failed)
    with caplog.at_level(logging.WARNING):
        assert [job.job_id for job in read(failed + RULE + at_once + RULE + SUN)] == [9599700]
    assert "q.txt: qacct: 1 of 3 records had not ended and were left out" in caplog.messages
    assert any("1 of 3 records never ran" in message for message in caplog.messages)


def test_slave_tasks_are_memory_of_their_job(caplog):
    slave = changed("pe_taskid", "1.node-8", changed("maxvmem", "20.000G"))
    old_slave = changed("qsub_time", "Thu Jan  1 01:00:00 1970", changed("maxvmem", "1G", changed("pe_taskid", None)))
    with caplog.at_level(logging.WARNING):
        (job,) = read(slave + RULE + SON + RULE + old_slave)
    assert job.tasks == 4
    assert job.mem_req_frac == pytest.approx((21 * 2**30 + 341.039 * 2**20) / 4 / NODE_BYTES, rel=1e-12)
    assert "q.txt: qacct: 2 of 3 records are slave tasks of a parallel job and were left out" in caplog.messages


def test_a_job_that_is_started_again_is_one_job_and_one_with_its_number_later_another(caplog):
    again = changed("start_time", "Mon Mar  7 10:00:00 2011", changed("ru_wallclock", "300s"))
    with caplog.at_level(logging.WARNING):
        assert [job.run_time_s for job in read(again + RULE + SON)] == [300.0]
    assert "q.txt: qacct: 1 of 2 records are earlier runs or copies of a job and were left out" in caplog.messages
    later = changed("qsub_time", "Mon Mar  7 09:30:00 2011")
    jobs = read(later + RULE + SON)
    assert [(job.job_id, job.submit_time_s) for job in jobs] == [(1, 0.0), (2, 1800.0)]
    assert any("2 of 2 records have new numbers, 1 for the first" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("category", "estimate_s", "core_bytes"),
    [
        ("-l h_rt=57600,h_vmem=16000M,mem_free=1M", 57600.0, 16000 * 2**20),
        ("-l h_vmem=1.5g -l h_rt=0:30:0", 1800.0, 1.5e9),
        ("-l h_rt=::90", 90.0, None),
        ("-l h_rt=60 -l h_rt=120", 120.0, None),
        ("-l h_rt=INFINITY,h_vmem=INFINITY", None, None),
        ("-l s_rt=60,xh_rt=70,h_rt=7x", None, None),
        ("-l h_rt=0", None, None),
        ("", None, None),
    ],
)
def test_requests(category, estimate_s, core_bytes):
    (job,) = read(changed("category", category, changed("maxvmem", "0.000B")))
    assert job.estimate_s == estimate_s
    assert job.mem_req_frac == pytest.approx(1 / 16 if core_bytes is None else core_bytes / NODE_BYTES, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"q\.txt: content = '0 records': expected at least one job that ran"),
        ("error: job id 5 not found\n", r"q\.txt: content = '0 records'"),
        (SUMMARY, r"q\.txt: content = '0 records'"),
        (NEVER_STARTED, r"q\.txt: content = '1 records': expected at least one job that ran"),
        (
            changed("slots", None, SUN) + RULE,
            r"q\.txt:1: keys = 'qname, jobnumber.*': expected also slots in this block",
        ),
        (
            SUN + RULE + "failed 7\n",
            r"q\.txt:27: keys = 'failed': expected also jobnumber, qsub_time, start_time, slots",
        ),
        (SUN + SON, r"q\.txt:26: qname = 'all\.q': expected each key once between two lines of '='"),
        (changed("slots", "many"), r"q\.txt:15: slots = 'many': expected a whole number such as 16"),
        (changed("slots", "9999999999"), r"q\.txt:15: slots = '9999999999': expected at most 4096000000"),
        (changed("jobnumber", 10**40), r"q\.txt:15: jobnumber = '10+': expected a whole number .* at most 18 digits"),
        (changed("jobnumber", "NONE"), r"q\.txt:15: jobnumber = 'NONE': expected the number of a job"),
        (changed("qsub_time", "yesterday"), r"q\.txt:15: qsub_time = 'yesterday': expected a time such as"),
        (changed("qsub_time", "Mon Foo  7 09:00:00 2011"), r"qsub_time = .*: expected a time that exists"),
        (changed("start_time", "31/01/2011 09:00:00"), r"start_time = .*: expected a time that exists"),
        (changed("ru_wallclock", "1h"), r"ru_wallclock = '1h': expected a number of seconds"),
        (changed("failed", "yes"), r"failed = 'yes': expected a code"),
        (changed("maxvmem", "12GBs"), r"maxvmem = '12GBs': expected a size"),
        (changed("qname", "q" * 10**6), r"qname = 'q+… \(1000002 characters\): expected a name of at most 200"),
        (changed("qname", "a\0b"), r"qname = 'a\\x00b': expected a name of at most 200 printable characters"),
        (
            changed("end_time", "Mon Mar  7 08:00:00 2011", changed("ru_wallclock", "0")),
            r"end_time = .*: expected a time from Mon Mar  7 09:00:10 2011, the start, on; clocks that were put back",
        ),
    ],
)
def test_what_is_no_accounting_is_refused_in_a_line(text, message):
    with pytest.raises(InputError, match=message) as caught:
        read(text)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


def test_grid_engine_has_no_nodes_to_make_tasks_of():
    with pytest.raises(InputError, match=r"q\.txt:1: nodes = None: expected .*; Grid Engine records no nodes"):
        read(SUN, SiteNode(16, task="node"))


@deterministic
@given(st.text() | mutations(SUN + RULE + NEVER_STARTED + RULE + UNIVA + SUMMARY + RULE + SON))
@example(RULE * 3)
@example("jobnumber ٣\nqsub_time 1\nstart_time 1\nslots 1")
@example(changed("category", "-l h_rt=999999999:999999999:999999999"))
def test_any_text_gives_jobs_or_an_error_of_the_user(text):
    assert_jobs_or_error(read, text)


def test_a_site_is_converted_and_replayed(tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "can_compile", lambda: False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qacct.txt").write_text(SON + RULE + SUN)

    def run(*words):
        return CliRunner().invoke(cli, list(words), catch_exceptions=False, standalone_mode=False)

    words = ["qacct.txt", "site.csv", "--from", "qacct", "--cores-per-node", "4", "--timezone", "Europe/Berlin"]
    assert run("trace", "convert", *words).stderr.endswith("site.csv: 2 jobs\n")
    jobs = load_trace(tmp_path / "site.csv")
    assert [(job.tasks, job.cpu_need_frac, job.mem_req_frac) for job in jobs] == [(4, 0.25, 0.25), (1, 0.25, 0.25)]
    figures = json.loads(run("simulate", "site.csv", "--nodes", "1", "--policy", "Greedy */OPT=MIN", "--json").stdout)
    assert figures["Greedy */OPT=MIN"]["max_stretch"] == 1.0
