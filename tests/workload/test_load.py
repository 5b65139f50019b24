import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.workload.workload_strategies import deterministic, traces

from testbed.errors import UserError
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import cpu_load, offered_load, scale_load
from testbed.scheduling.workload.statistics import describe

# Without the extremes of floating point: a span that vanishes relative to the first submission cannot be stretched.
modest_traces = traces(
    min_size=2, submit_times_s=st.integers(0, 10**6).map(float), run_times_s=st.floats(1.0, 1e6)
).filter(lambda jobs: jobs[0].submit_time_s < jobs[-1].submit_time_s)


@deterministic
@given(modest_traces, st.integers(1, 1000), st.floats(0.05, 2))
def test_scaling_gives_the_load_that_was_asked_for(jobs, nodes, load):
    scaled = scale_load(jobs, nodes, load)
    span_s = scaled[-1].submit_time_s - scaled[0].submit_time_s
    assume(span_s > 1e-6 * scaled[0].submit_time_s)
    assert math.isclose(offered_load(scaled, nodes), load, rel_tol=1e-8)
    assert scaled[0].submit_time_s == jobs[0].submit_time_s
    assert all(a.submit_time_s <= b.submit_time_s for a, b in pairwise(scaled))
    back = [replace(job, submit_time_s=old.submit_time_s) for job, old in zip(scaled, jobs, strict=True)]
    assert back == jobs


@deterministic
@given(modest_traces, st.integers(1, 1000))
def test_cpu_load_never_exceeds_the_offered_load(jobs, nodes):
    assert 0 < cpu_load(jobs, nodes) <= offered_load(jobs, nodes) * (1 + 1e-12)


def test_loads_of_a_trace_worked_out_by_hand():
    jobs = [Job(1, 100.0, 2, 0.5, 0.1, 300.0), Job(2, 200.0, 4, 1.0, 0.1, 100.0)]
    assert offered_load(jobs, 10) == (600 + 400) / (10 * 100)
    assert cpu_load(jobs, 10) == (300 + 400) / (10 * 100)
    assert [job.submit_time_s for job in scale_load(jobs, 10, 0.5)] == [100.0, 300.0]


@pytest.mark.parametrize("load", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_load_is_refused(load):
    with pytest.raises(UserError, match="finite number above 0"):
        scale_load([Job(1, 0.0, 1, 1.0, 1.0, 1.0), Job(2, 9.0, 1, 1.0, 1.0, 1.0)], 4, load)


@pytest.mark.parametrize("nodes", [0, -3])
def test_an_impossible_cluster_is_refused(nodes):
    jobs = [Job(1, 0.0, 1, 1.0, 1.0, 1.0), Job(2, 9.0, 1, 1.0, 1.0, 1.0)]
    for load in (offered_load, cpu_load, lambda jobs, nodes: scale_load(jobs, nodes, 0.5)):
        with pytest.raises(UserError, match=f"{nodes} nodes: expected 1 or more"):
            load(jobs, nodes)


def test_jobs_at_one_instant_have_no_load():
    jobs = [Job(1, 5.0, 1, 1.0, 1.0, 1.0), Job(2, 5.0, 1, 1.0, 1.0, 1.0)]
    for instant in (jobs, jobs[:1], []):
        with pytest.raises(UserError, match=f"of {len(instant)} jobs submitted at one instant"):
            offered_load(instant, 4)
    assert describe(jobs, 4).offered_load is None


def test_statistics_worked_out_by_hand():
    jobs = [
        Job(1, 10.0, 1, 0.5, 0.1, 30.0, "b"),
        Job(2, 20.0, 6, 1.0, 0.4, 10.0, "a"),
        Job(3, 50.0, 8, 1.0, 1.0, 20.0, "b"),
    ]
    found = describe(jobs, 4)
    assert (found.jobs, found.tasks, found.tasks_mean, found.tasks_median, found.tasks_max) == (3, 15, 5.0, 6.0, 8)
    assert (found.first_submit_time_s, found.span_s, found.inter_arrival_mean_s, found.weeks) == (10.0, 40.0, 20.0, 1)
    assert (found.one_task_frac, found.power_of_two_frac) == (1 / 3, 2 / 3)
    assert (found.run_time_mean_s, found.run_time_median_s, found.run_time_max_s) == (20.0, 20.0, 30.0)
    assert (found.mem_req_mean_frac, found.mem_req_max_frac, found.cpu_need_mean_frac) == (0.5, 1.0, 2.5 / 3)
    assert found.jobs_by_class == {"a": 1, "b": 2}
    assert (found.offered_load, found.cpu_load) == (250 / 160, 235 / 160)
    assert found.jobs_beyond_cluster == 1  # eight tasks with a node's memory each, on four nodes
    assert describe(jobs, 7).jobs_beyond_cluster == 1
    assert describe(jobs, 8).jobs_beyond_cluster == 0
    assert describe(jobs).offered_load is describe(jobs).nodes is describe(jobs).jobs_beyond_cluster is None


def test_statistics_of_nothing_are_refused():
    with pytest.raises(UserError, match="without jobs"):
        describe([])
    with pytest.raises(UserError, match="0 nodes"):
        describe([Job(1, 0.0, 1, 1.0, 1.0, 1.0)], 0)
