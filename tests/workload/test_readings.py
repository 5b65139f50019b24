import logging
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.workload.workload_strategies import deterministic

from testbed.errors import InputError, UserError
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.readings import READINGS, find_reading
from testbed.scheduling.workload.segments import cut, weeks
from testbed.scheduling.workload.swf import parse_swf

GIB_KIB = 1024 * 1024


def read(name, log):
    return find_reading(name)(log.records, "t.swf")


def _log(*rows):
    """A log with rows of (number, submit, run, allocated, used memory, requested, requested memory, status)."""
    lines = [
        f"{number} {submit} 0 {run} {allocated} -1 {used} {requested} 3600 {wanted} {status} 1 1 1 1 1 -1 -1"
        for number, submit, run, allocated, used, requested, wanted, status in rows
    ]
    return parse_swf("\n".join(lines), "t.swf")


@pytest.mark.parametrize(
    ("allocated", "used", "requested", "wanted", "expected"),
    [
        (4, GIB_KIB // 2, 4, -1, (2, 1.0, 0.5)),  # even and below half a node: two cores per task
        (4, GIB_KIB // 2, 4, GIB_KIB * 3 // 4, (2, 1.0, 0.75)),  # the larger of used and requested memory
        (4, GIB_KIB, 4, -1, (4, 0.5, 0.5)),  # exactly half is not below it
        (4, f"{GIB_KIB - 1}.5", 4, -1, (2, 1.0, (GIB_KIB - 0.5) / GIB_KIB)),
        (3, 10, 3, 10, (3, 0.5, 0.1)),  # odd; at least a tenth
        (2, 10, 2, 10, (1, 1.0, 0.2)),  # the least memory is a processor's, so it doubles as well
        (1, -1, 1, -1, (1, 0.5, 0.1)),  # no memory known
        (9, -1, 8, -1, (4, 1.0, 0.2)),  # requested processors take precedence
        (6, -1, -1, -1, (3, 1.0, 0.2)),  # allocated ones count if the request is unknown
        (1, 5 * GIB_KIB, 1, -1, (1, 0.5, 1.0)),  # no task is larger than a node
    ],
)
def test_hpc2n_reading_of_one_job(allocated, used, requested, wanted, expected):
    (job,) = read("hpc2n", _log((5, 100, 60, allocated, used, requested, wanted, 1)))
    assert (job.tasks, job.cpu_need_frac, job.mem_req_frac) == expected
    assert (job.job_id, job.submit_time_s, job.run_time_s, job.estimate_s) == (5, 100.0, 60.0, None)


@pytest.mark.parametrize("name", READINGS)
def test_records_without_a_job_and_adjusted_ones_are_told(name, caplog):
    rows = [
        (1, 50, 0, 1, -1, 1, -1, 1),
        (2, 10, -1, 1, -1, 1, -1, 5),
        (3, 10, 20, -1, -1, -1, -1, 0),
        (4, 10, 20, 0, -1, 0, -1, 0),
        (5, 20, 30, 1, -1, 1, -1, 1),
        (5, 20, 10, 1, -1, 1, -1, 2),
        (6, 20, 30, 1, -1, 1, 3 * GIB_KIB, 1),
    ]
    with caplog.at_level(logging.WARNING):
        jobs = read(name, _log(*rows))
    assert [(job.job_id, job.run_time_s) for job in jobs] == [(5, 30.0), (6, 30.0), (1, 1.0)]
    told = {
        "have run time 0, taken as 1 s": 1,
        "never ran (no run time or no processors) and were left out": 3,
        "are parts of a job and were left out": 1,
    }
    if name == "hpc2n":
        told["need more than 2 GiB per processor, taken as 2 GiB"] = 1
    assert sorted(caplog.messages) == sorted(
        f"t.swf: reading {name}: {count} of 7 records {note}" for note, count in told.items()
    )


_row = st.tuples(
    st.integers(0, 100),  # submit
    st.integers(-1, 50) | st.sampled_from(["0.0", "0.5", "-1.00"]),  # run
    st.integers(-1, 9),  # allocated
    st.integers(-1, 9),  # requested
    st.integers(-1, 60),  # requested time
    st.integers(-1, 5),  # status
)


@deterministic
@given(st.lists(_row, min_size=1, max_size=12))
def test_processors_are_nodes_taken_whole(rows):
    lines = [
        f"{number} {submit} 7 {run} {allocated} -1 99 {requested} {wanted} 77 {status} 1 1 1 1 1 -1 -1"
        for number, (submit, run, allocated, requested, wanted, status) in enumerate(rows)
    ]
    log = parse_swf("\n".join(lines), "t.swf")
    expected = []
    for number, (submit, run, allocated, requested, wanted, status) in enumerate(rows):
        size = requested if requested > 0 else allocated
        if size > 0 and float(run) >= 0 and status not in {2, 3, 4}:
            run_time_s = float(run) or 1.0
            estimate_s = float(wanted) if wanted > 0 else None
            expected.append(Job(number, float(submit), size, 1.0, 1.0, run_time_s, None, estimate_s))
    expected.sort(key=lambda job: job.submit_time_s)
    if not expected:
        with pytest.raises(InputError, match=rf"t\.swf: content = '{len(rows)} records': expected at least one job"):
            read("processors", log)
        return
    with_estimates = read("processors-estimates", log)
    assert with_estimates == expected
    plain = read("processors", log)
    assert all(job.estimate_s is None and job.batch_estimate_s == job.run_time_s for job in plain)
    assert [replace(job, estimate_s=None) for job in expected] == plain


def test_requested_times_stay_even_if_a_job_ran_longer(caplog):
    rows = ["1 0 0 100 1 -1 -1 1 60 -1 1 1 1 1 1 1 -1 -1", "2 0 0 100 1 -1 -1 1 -1 -1 1 1 1 1 1 1 -1 -1"]
    with caplog.at_level(logging.WARNING):
        jobs = read("processors-estimates", parse_swf("\n".join(rows), "t.swf"))
    assert [job.batch_estimate_s for job in jobs] == [60.0, 100.0]
    assert caplog.messages == [
        "t.swf: reading processors-estimates: 1 of 2 records request no time and are estimated at their run time"
    ]


@pytest.mark.parametrize("name", READINGS)
def test_unusable_logs_are_refused(name):
    job = (1, 0, 60, 1, -1, 1, -1, 1)
    with pytest.raises(InputError, match=r"t\.swf: job_number = 1: expected one line per job"):
        read(name, _log(job, job))
    with pytest.raises(InputError, match=r"t\.swf: content = '1 records': expected at least one job that ran"):
        read(name, _log((1, 0, -1, 1, -1, 1, -1, 5)))


def test_readings_are_found_by_name():
    assert {name: find_reading(name).name for name in READINGS} == {name: name for name in READINGS}
    assert set(READINGS) == {"hpc2n", "processors", "processors-estimates"}
    with pytest.raises(UserError, match=r"no reading 'hpc2'; there is: .*; nearest: hpc2n"):
        find_reading("hpc2")


def test_hpc2n_log_gives_the_known_figures(hpc2n_log, caplog):
    with caplog.at_level(logging.WARNING):
        jobs = find_reading("hpc2n")(hpc2n_log.records, "hpc2n.swf")
    assert caplog.messages == []
    assert Counter(job.cpu_need_frac for job in jobs) == {1.0: 115_738, 0.5: 87_133}
    assert all(0.1 <= job.mem_req_frac <= 1 and job.run_time_s >= 1 for job in jobs)
    every_week = weeks(jobs)
    assert len(every_week) == 182
    cuts = [cut(jobs, week) for week in every_week]
    assert sum(map(len, cuts)) == 202_871
    assert all(0 <= job.submit_time_s < 604_800 for segment in cuts for job in segment)  # speed: time in a trace


def test_the_whole_hpc2n_log_takes_little_memory(hpc2n_path):
    code = (
        "import sys; from testbed.scheduling.workload.trace import load_trace\n"
        "jobs = load_trace(sys.argv[1], 'processors')\n"
        "(line,) = [line for line in open('/proc/self/status') if line.startswith('VmHWM')]\n"
        "print(len(jobs), line.split()[1])"
    )
    result = subprocess.run([sys.executable, "-c", code, hpc2n_path], capture_output=True, text=True, check=True)
    jobs, peak_kib = map(int, result.stdout.split())
    assert jobs == 202_871
    assert peak_kib < 160 * 1024, "the log must be streamed, not loaded into memory as a whole"
