"""The bound: against a linear program, by hand, and in what it must never do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from testbed.measure.bound import ACCURACY, bound
from testbed.measure.transport import unserved
from testbed.workload.jobs import Job


def job(submit_s, tasks, cpu, run_s):
    return Job(0, submit_s, tasks, cpu, 0.1, run_s)


def feasible(jobs, nodes, stretch, tau_s, *, fluid=False):
    """Linear System (1) of [RR] as it is printed, with variables alpha[j, t], for a linear program."""
    deadline = [j.submit_time_s + stretch * max(j.run_time_s, tau_s) for j in jobs]
    times = np.unique([*(j.submit_time_s for j in jobs), *deadline])
    lengths = np.diff(times)
    count, steps = len(jobs), lengths.size
    each_job, each_step = np.zeros((count, count * steps)), np.zeros((steps, count * steps))
    bounds = []
    for row, item in enumerate(jobs):
        for step in range(steps):
            column = row * steps + step
            inside = item.submit_time_s <= times[step] and deadline[row] >= times[step + 1]
            most = 1.0 if fluid else lengths[step] / item.run_time_s
            bounds.append((0.0, most if inside else 0.0))
            each_job[row, column] = 1.0
            each_step[step, column] = item.run_time_s * item.cpu_need_frac * item.tasks
    got = linprog(
        np.zeros(count * steps),
        A_ub=each_step,
        b_ub=nodes * lengths,
        A_eq=each_job,
        b_eq=np.ones(count),
        bounds=bounds,
    )
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


@settings(max_examples=60, deadline=None)
@given(JOBS, st.integers(1, 3), st.sampled_from([1.0, 10.0]), st.booleans())
def test_a_linear_program_agrees(jobs, nodes, tau_s, fluid):
    """Feasible just above the bound; infeasible just below it, unless it is 1."""
    least = bound(jobs, nodes, tau_s, "fluid" if fluid else "theorem1")
    assert feasible(jobs, nodes, least * (1 + 1.01 * ACCURACY), tau_s, fluid=fluid)
    assert least == 1.0 or not feasible(jobs, nodes, least * (1 - 1e-5), tau_s, fluid=fluid)


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
        # Two tasks too many for the node: nobody can be faster than the work allows.
        ([job(50, 3, 1.0, 100)], 1, 3.0, 3.0),
        # 10 s and 100 s of work on one node: both deadlines hold from 110 = 100 S on (and 10 S >= 10).
        ([job(0, 1, 1.0, 100), job(0, 1, 1.0, 10)], 1, 1.1, 1.1),
        # The short job counts with tau: 1 s of work, at most 10 s late is no stretch above 1: 101 = 100 S.
        ([job(0, 1, 1.0, 100), job(0, 1, 1.0, 1)], 1, 1.01, 1.01),
        # Two nodes. The wide job needs 20 node seconds by 10 S, which leaves the narrow one 20 S - 20 of that
        # time; (1d) holds it to one node for the other 90 S, so 100 = 110 S - 20. Fluid, two nodes serve it.
        ([job(0, 2, 1.0, 10), job(0, 1, 1.0, 100)], 2, 120 / 110, 1.0),
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


def test_two_hundred_jobs_of_very_different_lengths():
    """The bound holds every job's own cut, and a schedule one job after the other reaches no less."""
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


@settings(max_examples=100)
@given(st.data())
def test_the_cut_of_the_flow_is_a_cut(data):
    """If jobs are left unserved, those on the source side want more than their arcs and intervals can take."""
    jobs, steps = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    whole = st.integers(0, 9).map(float)
    draw = lambda size: np.array(data.draw(st.lists(whole, min_size=size, max_size=size)))  # noqa: E731 - short for three draws
    work, arcs, room = draw(jobs) + 1.0, draw(jobs * steps).reshape(jobs, steps), draw(steps)
    arcs[:, 0] += 0.5
    cut = unserved(work, arcs, room)
    most = np.minimum(arcs[cut].sum(axis=0), room).sum()
    if cut.any():
        assert work[cut].sum() > most
    else:
        for rows in range(1, 2**jobs):  # Hall's condition, for every set of jobs
            some = np.array([rows >> j & 1 for j in range(jobs)], dtype=np.bool_)
            assert work[some].sum() <= np.minimum(arcs[some].sum(axis=0), room).sum() + 1e-6
