"""The bound: against a linear program, by hand, and invariants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import coo_array

from testbed.scheduling.bound.max_stretch import ACCURACY, COMPILED_FROM_JOBS, bound
from testbed.scheduling.bound.transport import unserved
from testbed.scheduling.compiler import compiled
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import scale_load
from testbed.scheduling.workload.synthetic import synthetic_trace


def job(submit_s, tasks, cpu, run_s):
    return Job(0, submit_s, tasks, cpu, 0.1, run_s)


def feasible(jobs, nodes, stretch, tau_s, *, fluid=False):
    """Linear System (1) of [RR] as printed; its variables alpha[j, t] are those that (1b) and (1c) permit."""
    deadline = [j.submit_time_s + stretch * max(j.run_time_s, tau_s) for j in jobs]
    times = np.unique([*(j.submit_time_s for j in jobs), *deadline])
    lengths = np.diff(times)
    rows, steps, most, used = [], [], [], []
    for row, item in enumerate(jobs):
        inside = np.flatnonzero((times[:-1] >= item.submit_time_s) & (times[1:] <= deadline[row]))
        rows += [row] * inside.size
        steps += inside.tolist()
        most += [1.0] * inside.size if fluid else (lengths[inside] / item.run_time_s).tolist()
        used += [item.run_time_s * item.cpu_need_frac * item.tasks] * inside.size
    columns = np.arange(len(rows))
    got = linprog(
        np.zeros(len(rows)),
        A_ub=coo_array((used, (steps, columns)), shape=(lengths.size, len(rows))),
        b_ub=nodes * lengths,
        A_eq=coo_array((np.ones(len(rows)), (rows, columns)), shape=(len(jobs), len(rows))),
        b_eq=np.ones(len(jobs)),
        bounds=np.column_stack((np.zeros(len(rows)), most)),
    )
    assert got.status in {0, 2}, got.message
    return got.status == 0


JOBS = st.lists(
    st.builds(
        job,
        st.integers(0, 60).map(float),
        st.integers(1, 4),
        st.sampled_from([0.25, 0.5, 1.0]),
        st.sampled_from([0.5, 1.0, 5.0, 10.0, 30.0, 200.0]),
    ),
    min_size=1,
    max_size=7,
)


def assert_is_least(least, jobs, nodes, tau_s, *, fluid):
    """Feasible just above the bound; infeasible just below it, unless it is 1."""
    assert feasible(jobs, nodes, least * (1 + 1.01 * ACCURACY), tau_s, fluid=fluid)
    assert least == 1.0 or not feasible(jobs, nodes, least * (1 - 1e-5), tau_s, fluid=fluid)


@settings(max_examples=60, deadline=None)
@given(JOBS, st.integers(1, 3), st.sampled_from([1.0, 10.0]), st.booleans())
def test_a_linear_program_agrees(jobs, nodes, tau_s, fluid):
    assert_is_least(bound(jobs, nodes, tau_s, "fluid" if fluid else "theorem1"), jobs, nodes, tau_s, fluid=fluid)


@pytest.mark.parametrize(("seed", "load"), [(2, 0.9), (4, 3.0)])
def test_a_linear_program_agrees_on_traces(seed, load):
    """On these (1d) binds."""
    jobs = scale_load(synthetic_trace(128, 150, seed), 128, load)
    least = bound(jobs, 128)
    assert 1 < bound(jobs, 128, kind="fluid") < least
    assert_is_least(least, jobs, 128, 10.0, fluid=False)
    assert_is_least(bound(jobs, 128, kind="fluid"), jobs, 128, 10.0, fluid=True)


@settings(max_examples=50, deadline=None)
@given(JOBS, st.integers(1, 3))
def test_fluid_is_looser_and_more_nodes_never_hurt(jobs, nodes):
    least = bound(jobs, nodes)
    assert least >= 1
    assert bound(jobs, nodes, kind="fluid") <= least * (1 + ACCURACY)
    assert bound(jobs, nodes + 1) <= least * (1 + ACCURACY)
    later = [job(j.submit_time_s + 1e6, j.tasks, j.cpu_need_frac, j.run_time_s) for j in jobs]
    assert bound(later, nodes) == pytest.approx(least, rel=2 * ACCURACY)


@pytest.mark.parametrize(
    ("jobs", "nodes", "theorem1", "fluid"),
    [
        # One job, alone.
        ([job(0, 2, 1.0, 100)], 2, 1.0, 1.0),
        # Two equal jobs on one node: the second to end takes twice its time.
        ([job(0, 1, 1.0, 100), job(0, 1, 1.0, 100)], 1, 2.0, 2.0),
        # Two tasks too many for the node: no job can be faster than the work permits.
        ([job(50, 3, 1.0, 100)], 1, 3.0, 3.0),
        # 10 s and 100 s of work on one node: both deadlines hold from 110 = 100 S on (and 10 S >= 10).
        ([job(0, 1, 1.0, 100), job(0, 1, 1.0, 10)], 1, 1.1, 1.1),
        # The short job counts with tau: 1 s of work, at most 10 s late is no stretch above 1: 101 = 100 S.
        ([job(0, 1, 1.0, 100), job(0, 1, 1.0, 1)], 1, 1.01, 1.01),
        # Two nodes. The wide job needs 20 node seconds by 10 S, which leaves the narrow one 20 S - 20 of that
        # time; (1d) holds it to one node for the other 90 S, so 100 = 110 S - 20. Fluid, two nodes serve it.
        ([job(0, 2, 1.0, 10), job(0, 1, 1.0, 100)], 2, 120 / 110, 1.0),
        # A burst long after an undisturbed job: three equal jobs share one node.
        ([job(0, 1, 1.0, 50), *[job(900, 1, 1.0, 20)] * 3], 1, 3.0, 3.0),
        # Half a CPU each: two run at the same time, and with the third the demand is 1.5 nodes.
        ([job(0, 1, 0.5, 100)] * 3, 1, 1.5, 1.5),
    ],
)
def test_by_hand(jobs, nodes, theorem1, fluid):
    assert bound(jobs, nodes) == pytest.approx(theorem1, rel=2 * ACCURACY)
    assert bound(jobs, nodes, kind="fluid") == pytest.approx(fluid, rel=2 * ACCURACY)


def test_what_cannot_be_bounded():
    with pytest.raises(ValueError, match="0 jobs"):
        bound([], 3)
    with pytest.raises(ValueError, match="0 nodes"):
        bound([job(0, 1, 1.0, 1)], 0)
    with pytest.raises(ValueError, match=r"accuracy.* 0\.0"):
        bound([job(0, 1, 1.0, 1)], 1, accuracy=0.0)


def test_two_hundred_jobs_of_very_different_lengths():
    """The bound is at least the cut of every single job, and no sequential schedule is below it."""
    random = np.random.default_rng(7)
    submit_s = np.cumsum(random.exponential(60.0, 200)).round()
    jobs = [
        job(float(at), int(2 ** random.integers(0, 6)), 1.0, float(np.exp(random.uniform(0, 10)).round()))
        for at in submit_s
    ]
    least = bound(jobs, 32)
    assert 1 < least < 1000
    end_s, worst = 0.0, 1.0
    for item in jobs:
        end_s = max(end_s, item.submit_time_s) + item.run_time_s
        worst = max(worst, max(end_s - item.submit_time_s, 10) / max(item.run_time_s, 10))
    assert least <= worst


@st.composite
def windows(draw):
    """Jobs as arrays of integers: release, deadline, work, rate; and the number of nodes."""
    jobs = draw(st.lists(st.tuples(*[st.integers(low, 9) for low in (0, 1, 1, 1)]), min_size=1, max_size=7))
    release_s, window_s, work, rate = np.array(jobs, dtype=np.float64).T.copy()
    return release_s, release_s + window_s, work * 3, rate, float(draw(st.integers(1, 12)))


# The greedy schedule leaves work that only an augmenting path can send, which is rare in small instances.
NEEDS_PATHS = (
    np.array([1.0, 5.0, 4.0, 0.0, 0.0, 4.0, 2.0]),
    np.array([6.0, 10.0, 10.0, 9.0, 3.0, 12.0, 11.0]),
    np.array([4.0, 7.0, 5.0, 7.0, 2.0, 15.0, 8.0]),
    np.array([2.0, 2.0, 2.0, 2.0, 1.0, 2.0, 1.0]),
    4.0,
)


@settings(max_examples=150, deadline=None)
@example(NEEDS_PATHS)
@given(windows())
def test_the_cut_of_the_flow_is_a_cut(instance):
    """Jobs on the source side demand more than they can get; if there are none, no set of jobs does [Hall]."""
    release_s, deadline_s, work, rate, nodes = instance
    inside = (release_s[:, None] <= np.arange(20)) & (np.arange(20) < deadline_s[:, None])
    lack = lambda some: work[some].sum() - np.minimum((inside[some] * rate[some, None]).sum(axis=0), nodes).sum()  # noqa: E731 - short for two uses
    cut = unserved(*instance)
    lacks = [
        lack(np.array([rows >> job & 1 for job in range(work.size)], dtype=np.bool_)) for rows in range(2**work.size)
    ]
    assert lack(cut) == pytest.approx(max(lacks), abs=1e-6)  # the empty set lacks 0


@settings(max_examples=60, deadline=None)
@given(windows(), JOBS, st.integers(1, 3), st.sampled_from(["theorem1", "fluid"]))
def test_the_compiled_kernels_come_to_the_same_bits(instance, jobs, nodes, kind):
    pytest.importorskip("numba", reason="the extra simulate")
    assert np.array_equal(compiled(unserved)(*instance), unserved(*instance))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("testbed.scheduling.bound.max_stretch.COMPILED_FROM_JOBS", 0)
        fast = bound(jobs, nodes, kind=kind)
    assert fast == bound(jobs, nodes, kind=kind)


def test_a_long_trace_is_bounded_as_its_kernels_stand(monkeypatch):
    """The number of jobs chooses machine code or not, never the value."""
    jobs = scale_load(synthetic_trace(128, COMPILED_FROM_JOBS + 50, 5), 128, 0.9)
    least = bound(jobs, 128)
    monkeypatch.setattr("testbed.scheduling.bound.max_stretch.COMPILED_FROM_JOBS", len(jobs) + 1)
    assert bound(jobs, 128) == least > 1
    assert bound(jobs[::-1], 128) == pytest.approx(least, rel=2 * ACCURACY)  # the order of jobs does not matter
