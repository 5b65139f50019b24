"""Hypothesis strategies that make jobs, shared by the tests of `workload`."""

from hypothesis import settings
from hypothesis import strategies as st

from testbed.bus.limits import MOST_TRACE_S
from testbed.scheduling.workload.jobs import Job

deterministic = settings(deadline=None, derandomize=True, max_examples=150)

_FRACTION = st.floats(min_value=0, max_value=1, exclude_min=True)
_SECONDS = st.floats(min_value=0, max_value=MOST_TRACE_S)
_POSITIVE_S = st.floats(min_value=0, max_value=MOST_TRACE_S, exclude_min=True)


def traces(min_size=1, max_size=30, submit_times_s=_SECONDS, run_times_s=_POSITIVE_S):
    """Lists of jobs sorted by submission, ids in no order."""
    job = st.builds(
        Job,
        job_id=st.integers(0, 2**63 - 1),
        submit_time_s=submit_times_s,
        tasks=st.integers(1, 10**6),
        cpu_need_frac=_FRACTION,
        mem_req_frac=_FRACTION,
        run_time_s=run_times_s,
        job_class=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
        estimate_s=st.none() | _POSITIVE_S,
    )
    jobs = st.lists(job, min_size=min_size, max_size=max_size, unique_by=lambda job: job.job_id)
    return jobs.map(lambda jobs: sorted(jobs, key=lambda job: job.submit_time_s))
