"""Two virtual clusters on the same nodes: started and paused jobs, and the active slot of each node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.policies.policy_views import Row, node_usage, places_of, view_of, views
from support.policies.xge_reference import XgeReference, decided

from testbed.errors import UserError
from testbed.scheduling.compiler import can_compile
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import Event, JobState, can_ever_run
from testbed.scheduling.simulation.compiling import AT_ONCE, NEVER
from testbed.scheduling.simulation.loop import run_loop
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.marc import MarcModel, marc_trace

CORE, MEM = 0.25, 0.2


def serial(node=None, **more):
    return Row(1, cpu=CORE, mem=MEM, nodes=() if node is None else (node,), **more)


def parallel(tasks, nodes=(), **more):
    return Row(tasks, cpu=CORE, mem=MEM, nodes=nodes, **more)


def places(rows, nodes=4, name="XGE", down=()):
    view = view_of(rows, nodes, down=down)
    return [sorted(found) for found in places_of(parse(name).decide(view, Event()), view)]


def test_serial_jobs_fill_their_partition_before_idle_parallel_nodes_are_lent():
    assert places([serial()] * 5) == [[2], [2], [2], [2], [3]]
    assert places([serial()] * 9) == [[2]] * 4 + [[3]] * 4 + [[1]]
    assert places([serial()] * 9, name="XGE/LEND=no")[-1] == []


def test_parallel_jobs_stay_in_their_partition_and_share_its_nodes():
    assert places([parallel(6), parallel(2)]) == [[0] * 4 + [1] * 2, [1] * 2]
    assert places([parallel(6), parallel(3)]) == [[0] * 4 + [1] * 2, []]


def test_nobody_goes_ahead_of_the_head_of_a_queue():
    assert places([parallel(6), parallel(4), parallel(2)]) == [[0] * 4 + [1] * 2, [], []]
    big = Row(1, cpu=1.0, mem=MEM)
    taken = [serial(node) for node in (2, 3)]
    assert places([*taken, big, serial()], name="XGE/LEND=no") == [[2], [3], [], []]


def test_nothing_is_lent_while_a_parallel_job_waits():
    rows = [parallel(4), *[serial()] * 9]
    assert places(rows)[-1] == [1]
    assert places([parallel(4), parallel(5), *[serial()] * 9])[-1] == []


def test_a_parallel_job_takes_lent_nodes_back_and_the_emptiest_first():
    lent = [serial(0), serial(0), serial(1)]
    assert places([*lent, parallel(4)]) == [[0], [0], [2], [1] * 4]  # the paused job resumes on another node
    busy = [serial(node) for node in (2, 2, 2, 2, 3, 3, 3, 3)]
    assert places([*lent, *busy, parallel(4)])[:3] == [[0], [0], [0]]
    assert places([*lent, *busy, parallel(8)])[:3] == [[], [], []]


def test_paused_jobs_are_resumed_before_others_are_started():
    rows = [serial(2), serial(2), serial(2), serial(), serial(paused=True)]
    assert places(rows, name="XGE/LEND=no/PARALLEL=0.75", nodes=3) == [[2], [2], [2], [], [2]]


def test_an_urgent_job_takes_serial_nodes_too():
    rows = [serial(2, estimate=9000.0), serial(3, estimate=100.0)]
    assert places([*rows, parallel(12, urgent=True)])[-1] == [0] * 4 + [1] * 4 + [2] * 4
    assert places([*rows, parallel(12, urgent=True)], name="XGE/LONG=6000") == [[3], [3], [0] * 4 + [1] * 4 + [2] * 4]
    assert places([*rows, parallel(16, urgent=True)], name="XGE/LONG=6000")[-1] == []
    assert places([*rows, parallel(12)])[-1] == []


def test_an_urgent_job_goes_to_idle_nodes_before_anybody_is_paused_for_it():
    rows = [serial(0), serial(1), parallel(8, urgent=True)]
    assert places(rows) == [[0], [1], [2] * 4 + [3] * 4]


def test_an_urgent_job_goes_ahead_in_its_queue():
    rows = [parallel(6, nodes=(0, 0, 0, 0, 1, 1)), parallel(8), parallel(4, urgent=True)]
    assert places(rows)[1:] == [[], [1, 1, 2, 2]]


def test_a_job_whose_node_is_lost_goes_back_to_its_queue():
    rows = [parallel(4, nodes=(0, 0, 1, 1)), serial(2)]
    assert places(rows, down=(0,)) == [[1] * 4, [2]]
    assert places(rows, down=(2,))[1] == [3]


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("xge", "XGE"), (" XGE / parallel=0.25 / lend=NO ", "XGE/PARALLEL=0.25/LEND=no"), ("XGE/LEND=yes", "XGE"),
        ("XGE/LONG=6000/PARALLEL=.3", "XGE/PARALLEL=0.3/LONG=6000"), ("XGE/PARALLEL=1", "XGE/PARALLEL=1"),
    ],
)  # fmt: skip
def test_names(name, printed):
    assert parse(name).name == printed
    assert parse(printed).name == printed


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("XGE/LEND=maybe", "LEND=maybe.*expected"),
        ("XGE/PARALLEL=2", "PARALLEL=2.*expected after XGE"),
        ("XGE/LONG=1/LONG=1", "at most once"),
        ("XGE/", "expected after XGE"),
    ],
)
def test_a_wrong_name_is_refused(name, says):
    with pytest.raises(UserError, match=says):
        parse(name)


def test_what_can_ever_run():
    def runs(tasks, cpu, mem, nodes=4, name="XGE", *, urgent=False):
        return can_ever_run(parse(name), Job(1, 0.0, tasks, cpu, mem, 1.0, urgent=urgent), nodes)

    assert runs(8, 0.25, 0.1)
    assert not runs(9, 0.25, 0.1)
    assert runs(16, 0.25, 0.1, urgent=True)
    assert not runs(17, 0.25, 0.1, urgent=True)
    assert not runs(3, 0.6, 0.1)
    assert runs(1, 1.0, 1.0)
    assert not runs(1, 1.0, 1.0, name="XGE/LEND=no/PARALLEL=1")


def test_a_lent_node_goes_back_and_its_job_pays_for_the_pause():
    jobs = [
        Job(1, 0.0, 1, 1.0, 0.2, 100.0), Job(2, 0.0, 1, 1.0, 0.2, 100.0), Job(3, 10.0, 2, 0.5, 0.2, 50.0),
    ]  # fmt: skip
    found = simulate(jobs, 2, parse("XGE"), constant(30.0), debug=True, compiling=NEVER)
    assert found.preemptions.tolist() == [0, 1, 0]
    assert found.end_s.tolist() == [100.0, 180.0, 60.0]  # paused from 10 to 60, and at work again after 30 s


JOBS = st.lists(
    st.tuples(
        st.integers(0, 30), st.sampled_from([1, 1, 1, 2, 3, 6]), st.sampled_from([0.25, 0.5, 1.0]),
        st.sampled_from([0.1, 0.25]), st.integers(1, 40), st.booleans(), st.integers(1, 40),
    ),
    min_size=1, max_size=25,
)  # fmt: skip


NAMES = ["XGE", "XGE/LEND=no", "XGE/PARALLEL=0.3/LONG=20"]


def trace_of(found, policy, nodes):
    jobs = [
        Job(number, float(come), tasks, cpu, mem, float(run_s), None, float(estimate_s), urgent and tasks > 1)
        for number, (come, tasks, cpu, mem, run_s, urgent, estimate_s) in enumerate(sorted(found))
    ]
    return [job for job in jobs if can_ever_run(policy, job, nodes)]


@given(JOBS, st.integers(2, 6), st.sampled_from(NAMES))
def test_every_job_ends_and_no_node_ever_has_both_slots_active(found, nodes, name):
    policy = parse(name)
    if not (jobs := trace_of(found, policy, nodes)):
        return
    run = simulate(jobs, nodes, policy, constant(5.0), debug=True, compiling=NEVER, record=True)
    assert np.isfinite(run.end_s).all()
    parallel_rows = np.array([job.tasks > 1 for job in jobs])
    assert not run.preemptions[parallel_rows].any()
    stand = [()] * len(jobs)
    for now_s, changes in run.decided():
        for change in changes:
            stand[change.row] = change.nodes
        there = [() if run.end_s[row] <= now_s else nodes for row, nodes in enumerate(stand)]
        slots = [
            {node for row in np.flatnonzero(kind) for node in there[row]} for kind in (parallel_rows, ~parallel_rows)
        ]
        assert not slots[0] & slots[1]
        task_node = np.array([node for each in there for node in each], dtype=np.int64)
        tasks = np.array([len(each) for each in there])
        needs = np.array([job.cpu_need_frac for job in jobs])
        assert (node_usage(task_node, tasks, needs, nodes) <= 1 + 1e-6).all()
        home = policy.partition(nodes)
        allowed = {row: range(nodes) if jobs[row].urgent else range(home) for row in np.flatnonzero(parallel_rows)}
        assert all(node in allowed[row] for row in allowed for node in there[row])


TABLE = constant(5.0).table(8.0)


@given(JOBS, st.integers(2, 6), st.sampled_from(NAMES))
def test_the_kernel_decides_as_the_reference_does(found, nodes, name):
    policy = parse(name)
    if not (jobs := trace_of(found, policy, nodes)):
        return
    run = run_loop(jobs, nodes, policy, TABLE, compiling=NEVER, record=True)
    assert list(run.decided()) == list(run_loop(jobs, nodes, XgeReference(policy), TABLE, record=True).decided())
    assert list(run.decided()) == list(run_loop(jobs, nodes, policy, TABLE, record=True, views=True).decided())


def with_one_slot(view):
    """Return a view in which each node has serial or parallel jobs, and neither kind exceeds its CPU."""
    keep = view.state.copy()
    offset = np.concatenate([[0], np.cumsum(view.tasks)])
    task_node = view.task_node.copy()
    cpu, kind = np.zeros(view.node_available.size), {}
    for row, tasks in enumerate(view.tasks):
        nodes = task_node[offset[row] : offset[row + 1]]
        if nodes[0] < 0:
            continue
        after = cpu + np.bincount(nodes, minlength=cpu.size) * view.cpu_need_frac[row]
        if after.max() > 1 + 1e-9 or any(kind.get(node, tasks > 1) != (tasks > 1) for node in nodes):
            keep[row], nodes[:] = JobState.PAUSED, -1
        else:
            cpu = after
            kind.update(dict.fromkeys(nodes.tolist(), tasks > 1))
    urgent = (view.tasks > 1) & (view.estimate_s == 10.0)
    return replace(view, state=keep, task_node=task_node, urgent=urgent)


@given(views(), st.sampled_from(NAMES))
def test_it_decides_on_views_as_the_reference_does_also_when_nodes_are_lost(drawn, name):
    view, event = drawn
    view = with_one_slot(view)
    policy = parse(name)
    mine, other = policy.decide(view, event), decided(policy, view)
    assert [sorted(each) for each in places_of(mine, view)] == [sorted(each) for each in places_of(other, view)]
    assert mine.yield_frac.tolist() == other.yield_frac.tolist()


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(), reason="numba is an extra")
@pytest.mark.parametrize("name", ["XGE", "XGE/LEND=no", "XGE/LONG=259200"])
def test_the_kernel_is_compiled_to_the_same_decisions(name):
    jobs = marc_trace(1, 1, MarcModel(rate=0.05, farm_jobs=50.0, urgent_s=7200.0))
    runs = [simulate(jobs, 6, parse(name), compiling=compiling, record=True) for compiling in (NEVER, AT_ONCE)]
    assert list(runs[0].decided()) == list(runs[1].decided())
    assert runs[0].end_s.tobytes() == runs[1].end_s.tobytes()
    assert runs[0].preemptions.any() or name == "XGE/LEND=no"
