import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.workload.workload_strategies import deterministic, traces

from testbed.errors import UserError
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.segments import WEEK_S, JobRange, Week, Window, cut, weeks

whole_seconds = st.integers(0, 5 * WEEK_S).map(float)
whole_traces = traces(submit_times_s=whole_seconds)


def _ids(jobs):
    return [job.job_id for job in jobs]


@deterministic
@given(whole_traces, st.data())
def test_a_range_of_jobs_starts_at_zero_and_keeps_gaps(jobs, data):
    first = data.draw(st.integers(0, len(jobs) - 1))
    count = data.draw(st.integers(1, len(jobs) - first))
    segment = cut(jobs, JobRange(first, count))
    assert _ids(segment) == _ids(jobs[first : first + count])
    assert segment[0].submit_time_s == 0
    shift_s = jobs[first].submit_time_s
    assert [job.submit_time_s + shift_s for job in segment] == [
        job.submit_time_s for job in jobs[first : first + count]
    ]


@deterministic
@given(whole_traces, whole_seconds, st.integers(1, 10**6))
def test_a_window_holds_exactly_its_jobs(jobs, start_s, duration_s):
    inside = [job for job in jobs if start_s <= job.submit_time_s < start_s + duration_s]
    if not inside:
        with pytest.raises(UserError, match="no job was submitted in window"):
            cut(jobs, Window(start_s, duration_s))
        return
    segment = cut(jobs, Window(start_s, duration_s))
    assert _ids(segment) == _ids(inside)
    assert [job.submit_time_s + start_s for job in segment] == [job.submit_time_s for job in inside]


@deterministic
@given(whole_traces)
def test_weeks_split_a_trace(jobs):
    segments = [(week, cut(jobs, week)) for week in weeks(jobs)]
    assert [job_id for _, segment in segments for job_id in _ids(segment)] == _ids(jobs)
    assert all(0 <= job.submit_time_s < WEEK_S for _, segment in segments for job in segment)
    back = [job.submit_time_s + week.index * WEEK_S for week, segment in segments for job in segment]
    assert back == [job.submit_time_s for job in jobs]


def test_other_fields_of_a_job_stay():
    job = Job(3, WEEK_S + 5.5, 2, 0.5, 0.25, 7.0, "batch", 9.0)
    assert cut([job], Week(1)) == [Job(3, 5.5, 2, 0.5, 0.25, 7.0, "batch", 9.0)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: JobRange(-1, 5), "FIRST >= 0"),
        (lambda: JobRange(0, 0), "COUNT >= 1"),
        (lambda: Window(-1, 5), "START >= 0"),
        (lambda: Window(0, 0), "DURATION > 0"),
        (lambda: Window(math.nan, 1), "finite"),
        (lambda: Window(0, math.inf), "finite"),
        (lambda: Week(-1), "expected 0 or more"),
        (lambda: cut([Job(1, 0.0, 1, 1.0, 1.0, 1.0)], JobRange(0, 2)), "past the end: the trace has 1 jobs"),
        (
            lambda: cut([Job(1, 0.0, 1, 1.0, 1.0, 1.0)], Week(3)),
            "no job was submitted in week 3; the trace spans 0 to 0 s",
        ),
    ],
)
def test_bad_segments_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()
