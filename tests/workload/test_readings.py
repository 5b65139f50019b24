import logging
from collections import Counter

import pytest

from testbed.errors import UserError
from testbed.workload.readings import READINGS, find_reading, hpc2n
from testbed.workload.segments import cut, weeks
from testbed.workload.swf import parse_swf

GIB_KIB = 1024 * 1024


def _log(*rows):
    """A log of (number, submit, run, allocated, used memory, requested, requested memory, status) a row."""
    lines = [
        f"{number} {submit} 0 {run} {allocated} -1 {used} {requested} 3600 {wanted} {status} 1 1 1 1 1 -1 -1"
        for number, submit, run, allocated, used, requested, wanted, status in rows
    ]
    return parse_swf("\n".join(lines), "t.swf")


@pytest.mark.parametrize(
    ("allocated", "used", "requested", "wanted", "expected"),
    [
        (4, GIB_KIB // 2, 4, -1, (2, 1.0, 0.5)),  # even and below half a node: two cores a task
        (4, GIB_KIB // 2, 4, GIB_KIB * 3 // 4, (2, 1.0, 0.75)),  # the larger of used and requested memory
        (4, GIB_KIB, 4, -1, (4, 0.5, 0.5)),  # exactly half is not below it
        (4, f"{GIB_KIB - 1}.5", 4, -1, (2, 1.0, (GIB_KIB - 0.5) / GIB_KIB)),
        (3, 10, 3, 10, (3, 0.5, 0.1)),  # odd; at least a tenth
        (2, 10, 2, 10, (1, 1.0, 0.2)),  # the least memory is a processor's, so it doubles as well
        (1, -1, 1, -1, (1, 0.5, 0.1)),  # no memory known
        (9, -1, 8, -1, (4, 1.0, 0.2)),  # requested processors rule
        (6, -1, -1, -1, (3, 1.0, 0.2)),  # allocated ones serve where the request is not known
        (1, 5 * GIB_KIB, 1, -1, (1, 0.5, 1.0)),  # no task is larger than a node
    ],
)
def test_hpc2n_reading_of_one_job(allocated, used, requested, wanted, expected):
    (job,) = hpc2n(_log((5, 100, 60, allocated, used, requested, wanted, 1)))
    assert (job.tasks, job.cpu_need_frac, job.mem_req_frac) == expected
    assert (job.job_id, job.submit_time_s, job.run_time_s, job.estimate_s) == (5, 100.0, 60.0, None)


def test_records_without_a_job_and_adjusted_ones_are_told(caplog):
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
        jobs = hpc2n(_log(*rows))
    assert [(job.job_id, job.run_time_s) for job in jobs] == [(5, 30.0), (6, 30.0), (1, 1.0)]
    assert Counter(message.split(" of 7 records ")[1] for message in caplog.messages) == Counter(
        [
            "have run time 0, taken as 1 s",
            "never ran (no run time or no processors) and were left out",
            "are parts of a job and were left out",
            "need more than 2 GiB a processor, taken as 2 GiB",
        ]
    )
    assert "reading hpc2n: 3 of 7 records never ran" in caplog.text


def test_unusable_logs_are_refused():
    job = (1, 0, 60, 1, -1, 1, -1, 1)
    with pytest.raises(UserError, match="SWF job 1 is in the log twice"):
        hpc2n(_log(job, job))
    with pytest.raises(UserError, match="no job that ran"):
        hpc2n(_log((1, 0, -1, 1, -1, 1, -1, 5)))


def test_readings_are_found_by_name():
    assert find_reading("hpc2n") is READINGS["hpc2n"] is hpc2n
    with pytest.raises(UserError, match=r"no reading 'hpc2'; there is: .*; nearest: hpc2n"):
        find_reading("hpc2")


def test_hpc2n_log_gives_the_known_figures(hpc2n_log, caplog):
    with caplog.at_level(logging.WARNING):
        jobs = hpc2n(hpc2n_log)
    assert caplog.messages == []
    assert Counter(job.cpu_need_frac for job in jobs) == {1.0: 115_738, 0.5: 87_133}
    assert all(0.1 <= job.mem_req_frac <= 1 and job.run_time_s >= 1 for job in jobs)
    every_week = weeks(jobs)
    assert len(every_week) == 182
    cuts = [cut(jobs, week) for week in every_week]
    assert sum(map(len, cuts)) == 202_871
    assert all(0 <= job.submit_time_s < 604_800 for segment in cuts for job in segment)
