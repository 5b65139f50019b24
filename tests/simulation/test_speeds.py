"""Nodes whose speed changes over time: by hand, and compared with the loop without speeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import UserError
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.progress import Progress
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.simulation.speeds import NodeSpeeds, Pace
from testbed.scheduling.workload.jobs import Job

POLICIES = ("FCFS", "EASY", "Greedy */OPT=MIN", "GreedyPM */per/OPT=MIN/MINVT=600", "/stretch-per/OPT=MAX/MINVT=600")


def speeds(at_s: list[float], *rows: list[float]) -> NodeSpeeds:
    return NodeSpeeds(np.array(at_s), np.array(rows))


def test_a_job_takes_as_long_as_its_slowest_node_needs() -> None:
    changing = speeds([0.0, 100.0, 200.0], [1.0, 1.0], [0.5, 1.0], [1.0, 0.25])
    serial, parallel = Job(1, 0.0, 1, 1.0, 0.2, 200.0), Job(1, 0.0, 2, 1.0, 0.2, 200.0)
    alone = simulate([serial], 2, parse("FCFS"), speeds=changing)
    assert alone.end_s[0] == pytest.approx(100 + 100 + 50)  # node 0: full, half, full speed
    both = simulate([parallel], 2, parse("FCFS"), speeds=changing)
    assert both.end_s[0] == pytest.approx(100 + 100 + 50 / 0.25)


def test_penalties_are_times_of_the_clock() -> None:
    """Job 2 has more priority and does not fit beside job 1, which then makes no progress for 60 s at any speed."""
    jobs = [Job(1, 0.0, 1, 1.0, 0.6, 1000.0), Job(2, 100.0, 1, 1.0, 0.6, 50.0)]
    half = speeds([0.0], [0.5])
    run = simulate(jobs, 1, parse("GreedyP */OPT=MIN"), constant(60.0), speeds=half, debug=True)
    assert run.preemptions.tolist() == [1, 0]
    assert run.end_s == pytest.approx([100 + 100 + 60 + (1000 - 50) / 0.5, 100 + 50 / 0.5])
    assert run.penalty_s == pytest.approx([60.0, 0.0])


JOBS = st.lists(
    st.tuples(
        st.integers(0, 2000), st.integers(1, 4), st.sampled_from((0.25, 0.5, 1.0)), st.sampled_from((0.1, 0.3, 0.6)),
        st.integers(1, 3000),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


def made(rows: list[tuple[int, int, float, float, int]]) -> list[Job]:
    return [
        Job(number, float(submit), tasks, need, memory, float(run))
        for number, (submit, tasks, need, memory, run) in enumerate(sorted(rows))
    ]


@given(JOBS, st.sampled_from(POLICIES), st.floats(0.0, 500.0), st.lists(st.integers(1, 9000), max_size=5, unique=True))
def test_full_speed_changes_nothing(rows: list, policy: str, penalty_s: float, instants: list[int]) -> None:
    jobs, always = made(rows), speeds([0.0, *sorted(instants)], *[[1.0] * 4] * (len(instants) + 1))
    plain = simulate(jobs, 4, parse(policy), constant(penalty_s), debug=True)
    paced = simulate(jobs, 4, parse(policy), constant(penalty_s), debug=True, speeds=always)
    assert paced.end_s == pytest.approx(plain.end_s, rel=1e-9)
    assert paced.penalty_s == pytest.approx(plain.penalty_s, abs=1e-6)


@given(JOBS, st.sampled_from(("FCFS", "Greedy */OPT=MIN")), st.floats(0.1, 4.0))
def test_nodes_of_another_speed_are_as_jobs_of_another_length(rows: list, policy: str, factor: float) -> None:
    """Without penalties and periods, and with all jobs submitted at once, time itself is scaled."""
    jobs = [Job(job.job_id, 0.0, job.tasks, job.cpu_need_frac, job.mem_req_frac, job.run_time_s) for job in made(rows)]
    plain = simulate(jobs, 4, parse(policy), constant(0.0))
    paced = simulate(jobs, 4, parse(policy), constant(0.0), debug=True, speeds=speeds([0.0], [factor] * 4))
    assert paced.end_s * factor == pytest.approx(plain.end_s, rel=1e-6)


@given(
    st.lists(st.tuples(st.floats(0.01, 100.0), st.floats(0.05, 20.0)), min_size=1, max_size=6),
    st.floats(-50.0, 300.0), st.floats(0.0, 500.0),
)  # fmt: skip
def test_a_pace_finds_the_instant_at_which_so_much_is_done(
    steps: list[tuple[float, float]], from_s: float, full_s: float
) -> None:
    at_s = np.cumsum([length for length, _ in steps])
    pace = Pace(NodeSpeeds(at_s, np.array([[speed] for _, speed in steps])), [0])
    end_s = pace.after(from_s, full_s)
    assert end_s >= from_s - 1e-9
    assert pace.between(from_s, end_s) == pytest.approx(full_s, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("at_s", "relative", "what"),
    [
        ([], np.zeros((0, 1)), "must be finite and increase"),
        ([1.0, 1.0], np.ones((2, 1)), "must be finite and increase"),
        ([1.0, np.inf], np.ones((2, 1)), "must be finite and increase"),
        ([1.0], np.ones((2, 1)), "expected a row for each of 1 instants"),
        ([1.0], np.zeros((1, 1)), "must be finite and more than 0"),
        ([1.0], np.full((1, 1), np.nan), "must be finite and more than 0"),
    ],
)  # fmt: skip
def test_speeds_that_are_none_are_refused(at_s: list[float], relative: np.ndarray, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        NodeSpeeds(np.array(at_s), relative)


def test_a_policy_or_a_number_of_nodes_without_a_model_is_told() -> None:
    job, one = Job(1, 0.0, 1, 0.5, 0.2, 10.0), speeds([0.0], [1.0])
    with pytest.raises(UserError, match=r"^speeds of 1 nodes: expected those of 2$"):
        simulate([job], 2, parse("FCFS"), speeds=one)
    for name in ("DPS/bank", "Greedy */OPT=MIN/WITHIN=dps"):
        with pytest.raises(UserError, match="nodes whose speed changes: expected a policy without shares that move"):
            simulate([job], 1, parse(name), speeds=one)


def test_measured_progress_counts_beside_the_speed() -> None:
    half = np.array([0.5, 1.0])
    model = replace(constant(0.0), progress=Progress(half, np.array([0.4, 1.0]), half))
    jobs = [Job(number, 0.0, 1, 1.0, 0.2, 100.0) for number in (1, 2)]  # both at a yield of 0.5, at a rate of 0.4
    run = simulate(jobs, 1, parse("Greedy */OPT=MIN"), model, speeds=speeds([0.0], [0.8]))
    assert run.end_s == pytest.approx([100 / (0.4 * 0.8)] * 2)
