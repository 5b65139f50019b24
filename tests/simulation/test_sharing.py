"""Jobs that compete by shares in virtual time: by hand, against the paper's experiment, and at random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.ranks import SharingModel
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job

MODES = ("none", "distributed", "bank")
WORK_S = 150.0  # work of the first task, in seconds alone on its node
LINE = SharingModel(("linear",), "1/i")


def run(jobs, nodes, mode="none", model=LINE, **options):
    return simulate(jobs, nodes, parse(f"DPS/{mode}"), sharing=model, **options)


def response_s(cores, mode, topology="linear", work_s=WORK_S):
    """Return the time of the paper's parallel job on four nodes, half of each booked by an endless serial job."""
    jobs = [Job(number, 0.0, 1, 0.5, 0.3, 1e5) for number in range(1, 5)]
    found = run([*jobs, Job(5, 1.0, 4, cores, 0.3, work_s / cores)], 4, mode, SharingModel((topology,), "1/i"))
    return found.end_s[4] - found.start_s[4]


def test_a_job_alone_has_all_of_its_node():
    assert run([Job(1, 7.0, 1, 0.5, 0.1, 100.0)], 1).end_s.tolist() == [57.0]


def test_two_serial_jobs_share_a_node_by_their_shares():
    """Shares of 0.5 and 0.25 CPU get 0.67 and 0.33 of it [DPS III.B]; the remaining job then gets all."""
    found = run([Job(1, 0.0, 1, 0.5, 0.1, 100.0), Job(2, 0.0, 1, 0.25, 0.1, 200.0)], 1)
    assert found.end_s == pytest.approx([75.0, 100.0])
    assert found.start_s.tolist() == [0.0, 0.0]


def test_a_parallel_job_advances_with_its_slowest_task():
    jobs = [Job(1, 0.0, 1, 0.5, 0.1, 1e4), Job(2, 0.0, 2, 0.25, 0.6, 300.0)]
    found = run(jobs, 2, model=SharingModel())
    # one of its tasks is alone on its node; the other one has 1/3 of a node, which is 4/3 of the booked share
    assert found.end_s[1] == pytest.approx(225.0)


def test_shares_are_booked_so_a_job_waits_for_them():
    jobs = [Job(1, 0.0, 1, 0.7, 0.1, 70.0), Job(2, 0.0, 1, 0.4, 0.1, 10.0), Job(3, 0.0, 1, 0.1, 0.1, 10.0)]
    assert run(jobs, 1).start_s == pytest.approx([0.0, 49.0, 49.0])


@pytest.mark.parametrize(("cores", "least", "most"), [(0.1, 0.36, 0.42), (0.2, 0.30, 0.36), (0.4, 0.08, 0.12)])
def test_the_bank_cuts_the_response_time_as_in_the_paper(cores, least, most):
    """[DPS Figure 4]: nearly 38 % at 0.1 CPU per node; less if the slowest task already has more of its node."""
    cut = 1 - response_s(cores, "bank") / response_s(cores, "none")
    assert least < cut < most


def test_the_bank_is_sooner_only_where_the_waiting_is_far_from_the_work():
    """In a line, shares move from task to task; if all tasks communicate with all, they arrive directly [DPS V.C]."""
    line = response_s(0.1, "distributed") / response_s(0.1, "bank")
    all_to_all = response_s(0.1, "distributed", "all-to-all") / response_s(0.1, "bank", "all-to-all")
    assert line > 1.15
    assert 1.0 <= all_to_all < line


@pytest.mark.parametrize("mode", MODES)
def test_the_slowest_task_cannot_have_more_than_all_of_its_node_leaves(mode):
    assert response_s(0.5, mode) == pytest.approx(2 * WORK_S)


def test_decisions_are_recorded():
    jobs = [Job(1, 0.0, 1, 0.7, 0.1, 70.0), Job(2, 5.0, 2, 0.4, 0.6, 10.0)]
    found = run(jobs, 2, "bank", record=True)
    decided = [
        (time_s, [(each.row, each.nodes, each.yield_frac) for each in changed]) for time_s, changed in found.decided()
    ]
    assert decided == [(0.0, [(0, (0,), 1.0)]), (5.0, []), (pytest.approx(49.0), [(1, (0, 1), 1.0)])]
    assert found.decisions == 3


@given(
    st.lists(
        st.tuples(
            st.integers(0, 50), st.integers(1, 3), st.sampled_from([0.1, 0.25, 0.3, 0.5, 1.0]), st.integers(1, 100)
        ),
        min_size=1, max_size=8,
    ),
    st.sampled_from(MODES), st.sampled_from(["linear", "ring", "all-to-all", "tree", "mesh"]),
    st.sampled_from(["uniform", "1/i"]),
)  # fmt: skip
def test_every_job_ends_and_without_an_exchange_none_is_slower_than_what_it_has_booked(rows, mode, topology, imbalance):
    jobs = [
        Job(number, float(submit), tasks, need, 0.1, float(length))
        for number, (submit, tasks, need, length) in enumerate(sorted(rows), start=1)
    ]
    found = run(jobs, 3, mode, SharingModel((topology,), imbalance))
    took_s = found.end_s - found.start_s
    assert np.isfinite(found.end_s).all()
    assert (found.start_s >= found.submit_s).all()
    assert (took_s > 0).all()
    if mode == "none":
        assert (took_s <= found.run_time_s * (1 + 1e-6)).all()
