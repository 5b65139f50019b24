"""The event loops: exact times of hand-made cases, the same bits in both loops, invariants of all policies."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.simulation.scripted import Scripted, by_views, on_arrays

from testbed.errors import RunError, UserError
from testbed.scheduling.compiler import can_compile
from testbed.scheduling.metrics import normalised_underutilisation
from testbed.scheduling.policies.catalogue import available, parse
from testbed.scheduling.policies.dfrs import DfrsPolicy
from testbed.scheduling.simulation import compiling
from testbed.scheduling.simulation import loop as driver
from testbed.scheduling.simulation.compiling import NEVER, Compiling, When
from testbed.scheduling.simulation.loop import run_loop
from testbed.scheduling.simulation.measures import measure
from testbed.scheduling.simulation.named import named
from testbed.scheduling.simulation.overheads import constant, linear
from testbed.scheduling.simulation.run import MIGRATION, PREEMPTION
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.synthetic import synthetic_trace

LOOPS = pytest.mark.parametrize("loop", [by_views, on_arrays])
FIELDS = ["start_s", "end_s", "virtual_time_s", "preemptions", "migrations", "penalty_s", "tasks_moved"]


def job(job_id, submit_s, run_s, tasks=1, cpu=0.5, mem=0.5):
    return Job(job_id, float(submit_s), tasks, cpu, mem, float(run_s))


def assert_same(one, other):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    for name in ("time_s", "row", "kind", "tasks"):
        np.testing.assert_array_equal(getattr(one.moves, name), getattr(other.moves, name), err_msg=name)
    assert one.decisions == other.decisions
    if one.recording is not None:
        assert list(one.decided()) == list(other.decided())


@LOOPS
def test_a_penalty_starts_anew_inside_a_penalty_and_the_first_start_is_free(loop):
    policy = Scripted({0: {0: (0, 1.0)}, 10: {0: (1, 1.0)}, 20: {0: (0, 1.0)}}, period_s=10.0)
    run = loop([job(0, 0, 100)], 2, policy, constant(15).table(8.0))
    assert run.start_s[0] == 0.0
    assert run.end_s[0] == 35.0 + 90.0  # 10 s of progress, moved at 10 and 20, free at 35
    assert run.penalty_s[0] == 25.0
    assert run.moves.time_s.tolist() == [10.0, 20.0]
    assert run.migrations[0] == 2
    assert [time_s for time_s, *_ in policy.seen] == [10.0 * k for k in range(13)]


@LOOPS
def test_pauses_resumes_and_the_order_at_one_instant(loop):
    everywhere = {0: (0, 0.5), 1: (1, 1.0)}
    script = {0: {0: (0, 0.5)}, 40: everywhere, 50: {1: (1, 1.0)}, 80: everywhere}
    policy = Scripted(script, period_s=40.0)
    jobs = [job(0, 0, 30), job(1, 40, 40, cpu=1.0), job(2, 50, 1000), job(3, 80, 7)]
    policy.script[1000] = {2: (0, 1.0), 3: (1, 1.0)}
    run = loop(jobs, 2, policy, constant(6).table(8.0))
    # Job 0: 20 s by 40, 25 s by 50, paused; resumed at 80, free at 86, 5 s left at half speed.
    assert run.end_s[0] == 96.0
    assert run.penalty_s[0] == 6.0
    assert (run.preemptions[0], run.migrations[0]) == (1, 0)
    assert run.end_s[1] == 80.0
    # At 80: job 1 completed, job 3 was submitted, and it is a multiple of the period: one decision.
    assert (80.0, True, 1, True) in policy.seen
    assert (run.start_s[3], run.end_s[3]) == (1000.0, 1007.0)
    assert run.moves.kind.tolist() == [PREEMPTION]
    assert run.moves.time_s.tolist() == [50.0]


@LOOPS
def test_tasks_are_interchangeable_and_only_those_that_moved_count(loop):
    script = {0: {0: ([0, 1, 2], 1.0)}, 10: {0: ([2, 0, 1], 1.0)}, 20: {0: ([1, 3, 0], 1.0)}}
    run = loop([job(0, 0, 100, tasks=3, mem=1.0)], 4, Scripted(script, 10.0), linear(1, 8.0).table(8.0))
    assert run.moves.time_s.tolist() == [20.0]
    assert run.moves.tasks.tolist() == [1]
    assert run.moves.kind.tolist() == [MIGRATION]
    assert run.end_s[0] == 103.0  # 1 s + 2 * 8 GB / 8 GB/s
    figures = measure(run, None, 8.0)
    assert figures.migration_gb_per_s == pytest.approx(2 * 8.0 / 103.0)
    assert figures.preemption_gb_per_s == 0.0
    assert figures.migrations_per_hour == pytest.approx(3600 / 103.0)
    steps = normalised_underutilisation([0, 20, 23, 103], [1.5] * 3, [1.5, 0.0, 1.5], 4, 150.0)
    assert figures.underutilization == pytest.approx(steps)
    assert next(run.job_rows(8.0))[-2] == 16_000_000_000


@LOOPS
def test_passes_are_at_absolute_multiples_and_none_while_the_cluster_is_empty(loop):
    policy = Scripted({0: {0: (0, 1.0), 1: (0, 1.0)}}, period_s=600.0)
    loop([job(0, 601, 700), job(1, 3600, 10)], 1, policy, constant(0).table(8.0))
    assert policy.seen == [(601.0, False, 1, False), (1200.0, False, 0, True), (3600.0, False, 1, True)]


@LOOPS
@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ({0: (0, 0.5), 1: (0, 0.5)}, "memory"),
        ({0: ([0, 0], 1.0)}, "CPU"),
        ({0: ([0, -1], 0.5)}, "task"),
        ({0: ([0, 1], 1.5)}, "yield"),
        ({0: (-1, 0.5)}, "yield"),
    ],
)
def test_debug_names_the_instant_and_the_job_of_a_decision_that_is_not_sound(loop, answer, word):
    mem = 0.6 if word == "memory" else 0.1
    jobs = [job(0, 5, 100, tasks=2 if word != "memory" else 1, cpu=0.9, mem=mem), job(1, 5, 100, cpu=0.1, mem=mem)]
    with pytest.raises(RunError, match=rf"at 5 s: job 0 .*{word}"):
        loop(jobs, 2, Scripted({0: answer}), constant(0).table(8.0))


@LOOPS
def test_jobs_that_wait_for_ever_are_an_error(loop):
    with pytest.raises(RunError, match=r"at 7 s: jobs are left to wait for ever: jobs? 3"):
        loop([job(3, 7, 1)], 1, Scripted({0: {}}), constant(0).table(8.0))


def test_penalties_without_end_are_an_error(monkeypatch):
    monkeypatch.setattr(driver, "_PATIENCE", 40)
    monkeypatch.setattr(driver, "_TURN", 10)
    policy = Scripted({10 * k: {0: (k % 2, 1.0)} for k in range(200)}, period_s=10.0)
    with pytest.raises(RunError, match="no job progresses any more: jobs 0"):
        on_arrays([job(0, 0, 100)], 2, policy, constant(60).table(8.0))


def test_the_log_grows_and_the_loop_goes_on(monkeypatch):
    policy = Scripted({10 * k: {0: (k % 2, 1.0)} for k in range(2000)}, period_s=10.0)
    jobs = [job(0, 0, 1000)]
    monkeypatch.setattr(driver, "_TURN", 7)
    one = on_arrays(jobs, 2, policy, constant(9).table(8.0))
    assert one.migrations[0] == one.moves.row.size > 900  # more than the initial size of the log
    assert_same(one, by_views(jobs, 2, policy, constant(9).table(8.0)))


def test_equipartition_shares_the_platform():
    jobs = [job(1, 0, 10, tasks=2, cpu=1.0, mem=1.0), job(2, 0, 10, tasks=2, cpu=1.0, mem=1.0), job(3, 4, 3, cpu=0.5)]
    run = named("EQUIPARTITION").simulate(jobs, 2)
    # Half of the platform each until 4; then 0.5 for job 3, which it can use whole, and 0.75 for the others.
    assert run.end_s[2] == 7.0
    assert run.end_s[:2] == pytest.approx([7.0 + 2 * (10 - 2 - 3 * 0.375), 20.75])
    assert run.start_s.tolist() == [0.0, 0.0, 4.0]


def test_a_job_that_can_never_run_is_named():
    with pytest.raises(UserError, match="job 8 can never run on 2 nodes under Greedy"):
        simulate([job(7, 0, 1), job(8, 1, 1, tasks=5)], 2, parse("Greedy */OPT=MIN"))
    with pytest.raises(UserError, match="job 8 is submitted before job 7"):
        simulate([job(7, 1, 1), job(8, 0, 1)], 2, parse("FCFS"))


FRACTIONAL = [name for name in available() if isinstance(parse(name), DfrsPolicy)]


@st.composite
def traces(draw):
    jobs, time_s = [], 0.0
    for number in range(draw(st.integers(1, 10))):
        time_s += draw(st.sampled_from([0.0, 1.0, 37.3, 100.0, 600.0]))
        jobs.append(
            Job(
                number + 1,
                time_s,
                draw(st.integers(1, 4)),
                draw(st.sampled_from([0.25, 0.5, 1.0])),
                draw(st.sampled_from([0.1, 0.3, 0.5, 0.7, 1.0])),
                draw(st.sampled_from([1.0, 30.0, 777.7, 3000.0])),
            )
        )
    return jobs


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    traces(),
    st.sampled_from(FRACTIONAL),
    st.sampled_from([100.0, 600.0]),
    st.sampled_from([constant(0), constant(300), linear(5, 0.1, 0.3)]),
)
def test_both_loops_come_to_the_same_bits_under_every_policy(jobs, name, period_s, overheads):
    policy, table = parse(name, period_s), overheads.table(8.0)
    one = run_loop(jobs, 4, policy, table, debug=True, compiling=NEVER, record=True)
    assert_same(one, run_loop(jobs, 4, policy, table, debug=True, record=True, views=True))
    np.testing.assert_array_equal(one.virtual_time_s, [each.run_time_s for each in jobs])
    assert np.all(one.end_s - one.start_s >= one.run_time_s + one.penalty_s - 1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not can_compile(), reason="numba is an extra")
def test_the_compiled_loop_comes_to_the_bits_of_the_plain_one(monkeypatch):
    # A twin that finds after its first iteration that compiled code would be faster.
    monkeypatch.setattr(compiling, "is_cached", lambda _function: False)
    monkeypatch.setattr(compiling, "COMPILE_S", 0.0)
    monkeypatch.setattr(compiling, "_LOOK_S", 0.0)
    jobs = synthetic_trace(16, 60, 3)
    for name in ("GreedyPM */per/OPT=MIN/MINVT=600", "Greedy */OPT=AVG", "/stretch-per/OPT=MAX", "DYNMCB8", "GREEDY"):
        policy, table = parse(name), linear(20, 0.1, 1.0).table(8.0)
        plain = run_loop(jobs, 16, policy, table, record=True, compiling=NEVER)
        assert_same(plain, run_loop(jobs, 16, policy, table, record=True, debug=True))
        midway = Compiling(When.IF_SOONER)
        assert_same(plain, run_loop(jobs, 16, policy, table, record=True, compiling=midway))
        assert plain.decisions > 100
