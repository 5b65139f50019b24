"""Needs that differ from the declared ones, and estimated needs, in virtual time: by hand, and in whole runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import UserError
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.compiling import NEVER
from testbed.scheduling.simulation.needs import NeedsModel
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.run import SimulatedRun
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.simulation.speeds import NodeSpeeds
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.misdeclared import misdeclared
from testbed.scheduling.workload.table import format_table, parse_table

BASE = "Greedy */OPT=MIN"
FOUND = f"{BASE}/NEEDS=discovered"
EXACT = NeedsModel(error_frac=0.0, window_s=10.0)


def run(jobs: list[Job], policy: str, model: NeedsModel = EXACT, nodes: int = 1) -> SimulatedRun:
    return simulate(jobs, nodes, parse(policy), constant(0.0), debug=True, compiling=NEVER, needs=model)


def job(number: int, need: float, run_time_s: float = 1000.0, *, told: float | None = None, tasks: int = 1) -> Job:
    return Job(number, 0.0, tasks, need if told is None else told, 0.1, run_time_s, true_need_frac=need)


def test_a_need_that_was_declared_too_low_slows_a_job_down_and_one_too_high_takes_from_others() -> None:
    low = run([job(1, 0.5, told=0.25)], BASE)
    assert low.end_s.tolist() == pytest.approx([2000.0])
    assert low.needs.short_cpu_s == pytest.approx(2000.0 * 0.25)
    high = run([job(1, 0.5, told=1.0), job(2, 1.0, told=1.0)], BASE)  # yields of 1/2, of which the first uses all
    assert high.end_s.tolist() == pytest.approx([1000.0, 1500.0])
    idle = run([job(1, 0.25, told=1.0), job(2, 1.0, told=1.0)], BASE)
    assert idle.needs.unused_cpu_s == pytest.approx(1000.0 * 0.25)
    assert idle.needs.overcommitted_s == pytest.approx(1000.0 * 0.25)


def test_needs_are_found_after_a_window_and_what_others_lacked_is_given_to_them() -> None:
    found = run([job(1, 0.25, told=1.0), job(2, 1.0, told=1.0)], FOUND)
    # 10 s at yields of 1/2; then the first is known to need 0.25, 0.295 with headroom, and the second all of a node.
    level = 1.0 / 1.295
    assert found.end_s[0] == pytest.approx(10.0 + 990.0 / min(level * 0.295 / 0.25, 1.0))
    assert found.needs.found_s == pytest.approx([0.0, 10.0])  # the need of the second job was declared right
    right = run([job(1, 0.25), job(2, 1.0)], BASE)  # yields of 0.8
    assert right.needs.overcommitted_s == pytest.approx(1250.0 * 0.25), "needs beyond a node, with right needs too"
    assert (right.needs.unused_cpu_s, right.needs.short_cpu_s) == pytest.approx((0.0, 0.0), abs=1e-6)
    plain = simulate([job(1, 0.25), job(2, 1.0)], 1, parse(BASE), constant(0.0), compiling=NEVER)
    assert plain.needs is None
    assert right.end_s == pytest.approx(plain.end_s)


def test_a_need_that_changes_on_the_way_is_found_again() -> None:
    model = replace(EXACT, profile=((0.0, 1.0), (0.5, 0.5)))
    found = run([job(1, 0.8)], FOUND, model)
    assert found.end_s.tolist() == pytest.approx([1000.0])
    assert found.needs.found_s == pytest.approx([0.0, 10.0])
    assert found.needs.unused_cpu_s == pytest.approx(10.0 * (0.9 - 0.4) + 490 * 0.06 + 490 * 0.1, rel=0.2)


def test_a_need_that_changes_again_before_it_was_found_was_not_found() -> None:
    model = replace(EXACT, profile=((0.0, 1.0), (0.5, 0.5), (0.501, 0.25)))
    found = run([job(1, 0.8)], FOUND, model)
    assert found.needs.found_s == pytest.approx([0.0, 10.0])
    assert found.needs.not_found == 1


def test_without_a_node_that_tells_how_long_caps_hold_needs_are_found_by_raising_caps() -> None:
    untold = run([job(1, 0.5, told=0.1)], FOUND, replace(EXACT, reports_throttling=False))
    assert untold.needs.found_s == pytest.approx([40.0])
    assert untold.end_s[0] == pytest.approx(40.0 + 1000.0 - 10.0 * (0.2 + 0.4 + 0.8 + 1.0))


def test_what_is_not_modelled_is_refused() -> None:
    speeds = NodeSpeeds(np.zeros(1), np.ones((1, 1)))
    with pytest.raises(UserError, match="CPU needs that are not as declared"):
        simulate([job(1, 0.5, told=0.1)], 1, parse(BASE), constant(0.0), speeds=speeds)
    with pytest.raises(UserError, match="CPU needs that are not as declared"):
        simulate([job(1, 0.5, told=0.1)], 1, parse("DPS/none"), constant(0.0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("FCFS/NEEDS=discovered", "policy FCFS: expected NEEDS=discovered last, after a DFRS policy"),
        (f"{BASE}/NEEDS=told", "NEEDS='told': expected /NEEDS=discovered"),
        (f"{BASE}/NEEDS=discovered/WITHIN=dps", "expected NEEDS=discovered last"),
        (f"{BASE}/LEAST=jobs/NEEDS=discovered", "expected NEEDS=discovered without LEAST="),
    ],
)
def test_nonsense_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(name)
    assert message in str(refused.value)


def test_names_are_printed_as_they_are_parsed() -> None:
    name = "GreedyPM */per/OPT=MIN/MINVT=600/KNOWS=cost/NEEDS=discovered"
    assert parse(name).name == name
    assert parse(name.casefold()).name == name


JOBS = st.lists(
    st.tuples(
        st.integers(0, 2000), st.integers(1, 4), st.sampled_from((0.1, 0.25, 0.5, 1.0)),
        st.sampled_from((0.1, 0.3, 0.6)), st.integers(1, 3000),
    ),
    min_size=1, max_size=8,
)  # fmt: skip
POLICIES = (BASE, "GreedyPM */per/OPT=MIN/MINVT=600", "MCB8 */per/OPT=AVG", "DYNMCB8-ASAP-PER")
PROFILES = (((0.0, 1.0),), ((0.0, 0.5), (0.3, 1.0)), ((0.0, 1.0), (0.25, 0.2), (0.7, 0.9)))


def made(rows: list[tuple[int, int, float, float, int]]) -> list[Job]:
    return [
        Job(number, float(submit), tasks, need, memory, float(run))
        for number, (submit, tasks, need, memory, run) in enumerate(sorted(rows))
    ]


@given(JOBS, st.sampled_from(POLICIES), st.sampled_from(PROFILES), st.booleans(), st.integers(0, 9))
def test_all_jobs_end_whatever_was_declared_and_cpu_is_accounted_for(
    rows: list, policy: str, profile: tuple, told: bool, seed: int
) -> None:
    jobs, model = made(rows), NeedsModel(profile, reports_throttling=told, seed=seed)
    wrong = misdeclared(jobs, 2.0, seed)
    for name in (policy, f"{policy}/NEEDS=discovered"):
        done = simulate(wrong, 4, parse(name), constant(60.0), debug=True, compiling=NEVER, needs=model)
        assert np.all(np.isfinite(done.end_s))
        assert np.all(done.end_s - done.submit_s >= done.run_time_s * (1 - 1e-9))
        ends = [*(begin for begin, _ in profile[1:]), 1.0]
        factor = sum(by * (end - begin) for (begin, by), end in zip(profile, ends, strict=True))
        work = sum(each.tasks * each.real_need_frac * each.run_time_s * factor for each in wrong)
        assert done.needs.used_cpu_s == pytest.approx(work, rel=1e-6)
        assert done.needs.unused_cpu_s >= -1e-9


@given(JOBS, st.sampled_from(POLICIES))
def test_needs_as_declared_are_simulated_as_ever(rows: list, policy: str) -> None:
    jobs = made(rows)
    model = NeedsModel(profile=((0.0, 1.0), (0.5, 1.0)))
    plain = simulate(jobs, 4, parse(policy), constant(60.0), compiling=NEVER)
    forced = simulate(
        [replace(each, true_need_frac=each.cpu_need_frac * (1 - 1e-12)) for each in jobs], 4, parse(policy),
        constant(60.0), compiling=NEVER, needs=model,
    )  # fmt: skip
    assert forced.needs is not None
    assert forced.end_s == pytest.approx(plain.end_s, rel=1e-6)


def test_misdeclared_needs_are_wrong_by_the_factor_and_written_to_tables() -> None:
    jobs = [Job(number, 0.0, 1, 0.5, 0.1, 60.0) for number in range(40)]
    wrong = misdeclared(jobs, 2.0, 1)
    assert {each.cpu_need_frac for each in wrong} == {0.25, 1.0}
    assert {each.real_need_frac for each in wrong} == {0.5}
    assert parse_table(format_table(wrong), "table") == wrong
    with pytest.raises(ValueError, match="expected a finite one of at least 1"):
        misdeclared(jobs, 0.5, 1)
