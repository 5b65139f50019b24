"""Checks of nodes' reports by the controller: checksums, the rate of work, and which nodes may report."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.control.rehearsal import five_jobs, rehearse
from support.live_jobs import live_job

from node_agent.drivers.null import NullDriver, _Guest
from node_agent.programs.expected import expected_checksum
from node_agent.programs.task import TOPOLOGIES, Task
from node_agent.result_checks import compare_claims
from testbed.bus.guest_details import report_of
from testbed.bus.messages import GuestEvent, GuestSpec, ProgramSpec
from testbed.bus.results import Claim, Verdicts
from testbed.control import session
from testbed.control.cluster import LiveJob
from testbed.control.result_checks import NO_CHECKSUMS, check_results, claims_of
from testbed.control.work_rates import SLACK_S, TOLERANCE, Allowance, CpuAccounts, MeasuredRates, WorkRates
from testbed.lab.guest_events import GuestEvents
from testbed.lab.job import LabJob
from testbed.run.phases import Phase
from testbed.scheduling.workload.jobs import Job

UNTIL_DONE_S = 1e9


def specs_of(job_id: int, ranks: int, topology: str = "ring", **program: object) -> tuple[GuestSpec, ...]:
    return tuple(
        GuestSpec(
            guest=f"g{job_id}-{rank}", run="t", job=job_id, task=rank, cpu_cores=1.0, memory_mib=64,
            program=ProgramSpec(**{
                "name": "patterns" if ranks > 1 else "eatcpu", "work_units": 40, "units_per_iteration": 7, "seed": 3,
                "rank": rank, "ranks": ranks, "topology": topology, "message_bytes": 64, **program,
            }),
        )
        for rank in range(ranks)
    )  # fmt: skip


def right_claim(job_id: int, ranks: int, topology: str = "ring", **program: object) -> Claim:
    specs = specs_of(job_id, ranks, topology, **program)
    tasks = [Task.from_spec(msgspec.to_builtins(spec)) for spec in specs]
    return Claim(job_id, specs, {task.task: expected_checksum(task) for task in tasks})


# --- checksums


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(1, 5), topology=st.sampled_from(TOPOLOGIES), imbalance=st.sampled_from(["uniform", "1/i"]),
    workers=st.integers(1, 2), data=st.data(),
)  # fmt: skip
def test_a_wrong_checksum_of_any_rank_is_found(
    ranks: int, topology: str, imbalance: str, workers: int, data: st.DataObject
) -> None:
    claim = right_claim(1, ranks, topology, imbalance=imbalance, workers=workers)
    assert compare_claims([claim], UNTIL_DONE_S) == Verdicts(right=1)
    liar = data.draw(st.integers(0, ranks - 1))
    told = data.draw(st.sampled_from(["", "0" * 16, "null"]))
    wrong = replace(claim, checksums={**claim.checksums, liar: told})
    verdicts = compare_claims([wrong], UNTIL_DONE_S)
    expected = f"task {liar}: it is done with checksum {told}: expected {claim.checksums[liar]}"
    assert (verdicts.right, verdicts.wrong, verdicts.unchecked) == (0, {1: expected}, {})


@settings(max_examples=25, deadline=None)
@given(ranks=st.lists(st.integers(1, 3), max_size=8), steps=st.integers(0, 60), order=st.randoms())
def test_every_job_has_one_verdict_and_parallel_ones_wait_for_the_others(
    ranks: list[int], steps: int, order: object
) -> None:
    claims = [right_claim(number, each) for number, each in enumerate(ranks)]
    clock = count()
    verdicts = compare_claims(claims, steps, now_s=lambda: float(next(clock)), shuffle=order.shuffle)
    assert verdicts.right + len(verdicts.unchecked) == len(claims)
    assert verdicts.wrong == {}
    if any(ranks[job_id] == 1 for job_id in verdicts.unchecked):
        assert verdicts.right <= ranks.count(1)  # no parallel job was compared


def test_what_does_not_fit_the_time_is_left_out_and_another_job_is_compared() -> None:
    long = right_claim(1, 2)
    long = replace(long, specs=tuple(
        msgspec.structs.replace(spec, program=msgspec.structs.replace(spec.program, work_units=10**12))
        for spec in long.specs
    ))  # fmt: skip
    verdicts = compare_claims([long, right_claim(2, 2)], 3600.0, shuffle=lambda _claims: None)
    assert verdicts == Verdicts(right=1, unchecked={1: "not among those drawn for 3600 s of comparing"})


def test_programs_that_the_controller_does_not_know_are_told() -> None:
    claim = right_claim(1, 1)
    program = msgspec.structs.replace(claim.specs[0].program, name="of-the-node")
    strange = replace(claim, specs=(msgspec.structs.replace(claim.specs[0], program=program),))
    reason = "program 'of-the-node' is not installed where the controller runs"
    assert compare_claims([strange], UNTIL_DONE_S) == Verdicts(unchecked={1: reason})
    assert Verdicts(1, {4: "no"}, {3: reason, 1: reason}).summary() == {
        "right": 1, "wrong": {"4": "no"}, "unchecked": {reason: [1, 3]}
    }  # fmt: skip


def done_job(job_id: int, *, phase: Phase = Phase.DONE, verified: bool = True) -> LiveJob:
    claim = right_claim(job_id, 1)
    job = Job(job_id, 0.0, 1, 1.0, 0.1, 10.0)
    return live_job(job, claim.specs, verified=verified, phase=phase, checksums=dict(claim.checksums))


def test_jobs_that_are_done_are_compared_and_no_others() -> None:
    jobs = [done_job(1), done_job(2, phase=Phase.FAILED), done_job(3, verified=False), done_job(4)]
    jobs[3].state.checksums[0] = "0" * 16
    assert [claim.job_id for claim in claims_of(jobs)] == [1, 4]
    verdicts = asyncio.run(check_results(jobs, [("start", "checksums")], UNTIL_DONE_S))
    assert (verdicts.right, list(verdicts.wrong), verdicts.unchecked) == (1, [4], {})
    untold = asyncio.run(check_results(jobs, [("start",)], UNTIL_DONE_S))
    assert untold == Verdicts(unchecked={1: NO_CHECKSUMS, 4: NO_CHECKSUMS})


def test_a_job_whose_result_the_controller_finds_wrong_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(jobs: object, capabilities: object, budget_s: float) -> Verdicts:
        assert len(list(capabilities)) == 2
        assert budget_s == 20.0
        assert all(live.state.ended for live in jobs), "a measurement is still active"
        return Verdicts(4, {2: "task 1: it is done with checksum 1; its work comes to 2"})

    monkeypatch.setattr(session, "check_results", found)
    result, journal = rehearse(tmp_path, five_jobs())
    assert result.summary["failed"] == {"2": "task 1: it is done with checksum 1; its work comes to 2"}
    assert result.summary["failure_codes"] == {"2": "wrong-result"}
    assert result.summary["done"] == 4
    assert result.summary["results"]["right"] == 4
    (entry,) = [entry for entry in journal if entry["kind"] == "results"]
    assert list(entry["wrong"]) == ["2"]


# --- the maximum rate of work


steps = st.lists(st.tuples(st.floats(0.01, 10), st.floats(0, 4)), max_size=12)


@given(steps, st.floats(0.1, 4), st.floats(0, 5))
def test_cpu_time_is_bounded_by_what_is_told_and_by_what_is_allowed(
    samples: list[tuple[float, float]], limit_cores: float, rest_s: float
) -> None:
    accounts, allowed = CpuAccounts(), Allowance(limit_cores, 4.0, 100.0, 0.0)
    now_s, told_s = 100.0, 0.0
    for elapsed_s, used_s in samples:
        now_s, told_s = now_s + elapsed_s, told_s + used_s
        accounts.sample("g", 1, now_s, told_s, allowed)
    most_s, nodes = accounts.end("g", 1, now_s + rest_s, allowed)
    burst_s = SLACK_S * limit_cores
    assert most_s <= burst_s + told_s + rest_s * limit_cores + 1e-6
    assert most_s <= burst_s + (now_s + rest_s - 100.0) * limit_cores + 1e-6
    assert most_s >= burst_s + min(told_s, sum(min(u, e * limit_cores) for e, u in samples)) - 1e-6
    assert nodes == {1}


def test_cpu_time_of_all_lives_counts_and_none_of_the_pauses() -> None:
    accounts = CpuAccounts()
    first, second = Allowance(0.5, 2.0, 10.0, 0.0), Allowance(1.0, 2.0, 500.0, 16.0)
    accounts.sample("g", 0, 15.0, 2.0, first)  # 2 s are reported, 2.5 are possible
    accounts.sample("g", 1, 502.0, 9.0, second)  # then 1 s of saving on 2 cores; 9 s are reported, 2 are possible
    most_s, nodes = accounts.end("g", 1, 504.0, second)
    assert most_s == pytest.approx(2.0 + 2.0 + 2.0 + 2.0 + SLACK_S * (0.5 + 1.0))
    assert nodes == {0, 1}


def test_counters_of_another_node_begin_anew() -> None:
    accounts, allowed = CpuAccounts(), Allowance(1.0, 1.0, 0.0, 0.0)
    accounts.sample("g", 0, 10.0, 8.0, allowed)
    accounts.sample("g", 1, 12.0, 0.5, allowed)  # the guest migrated live
    accounts.sample("g", 1, 11.0, 0.4, allowed)  # late
    assert accounts.end("g", 1, 12.0, allowed) == (pytest.approx(8.5 + SLACK_S), {0, 1})


def test_a_short_task_may_use_two_periods_of_its_cap_at_once() -> None:
    accounts, allowed = CpuAccounts(), Allowance(0.25, 1.0, 100.0, 0.0)
    burst_s = 2 * 0.1 * allowed.limit_cores  # the end of one period and the begin of the next, on a free core
    most_s, _ = accounts.end("g", 0, 100.0 + burst_s, allowed)
    assert most_s >= burst_s


PROGRAM = specs_of(1, 1, work_units=10_000)[0].program
HERE, ELSEWHERE = frozenset({0}), frozenset({1})


@pytest.mark.parametrize(
    ("measured", "probed", "probe", "fastest"),
    [
        (MeasuredRates(), HERE, 0.0, 0.0),
        (MeasuredRates(), HERE, 900.0, 900.0),  # measured with the code of the guests themselves
        (MeasuredRates(), ELSEWHERE, 900.0, 0.0),  # guests there run other code, perhaps emulated
        (MeasuredRates(500.0, {1: 700.0}, 0.0), ELSEWHERE, 900.0, 700.0),
        (MeasuredRates(500.0, {1: 400.0}, 300.0), ELSEWHERE, 900.0, 1500.0),  # three times its measured speed
        (MeasuredRates(500.0, {1: 400.0}, 300.0), ELSEWHERE, 200.0, 500.0),
    ],
)
def test_the_fastest_core_that_is_known(
    measured: MeasuredRates, probed: frozenset[int], probe: float, fastest: float
) -> None:
    rates = WorkRates(measured, probed)
    rates.probe(0, probe)
    rates.probe(0, probe / 2)
    rates.probe(1, 1e6)  # a node where the guest never was
    assert rates.fastest(1, "eatcpu", HERE) == pytest.approx(fastest)
    if not fastest:
        assert rates.doubt(1, PROGRAM, 1e-9, HERE) == ""
    else:
        enough_s = PROGRAM.work_units / fastest / TOLERANCE
        assert rates.doubt(1, PROGRAM, enough_s * 1.01, HERE) == ""
        assert "expected at most 3 times that" in rates.doubt(1, PROGRAM, enough_s * 0.99, HERE)


def test_units_of_plug_ins_are_not_those_of_the_probe() -> None:
    rates = WorkRates(MeasuredRates(500.0, {2: 5e6}, 0.0), HERE)
    rates.probe(0, 900.0)
    assert rates.fastest(1, "counter", HERE) == 0.0
    assert rates.fastest(2, "counter", HERE) == 5e6


def test_ranks_with_less_to_do_may_be_done_sooner() -> None:
    rates = WorkRates(MeasuredRates(1000.0))
    third = msgspec.structs.replace(PROGRAM, rank=4, ranks=5, imbalance="1/i", name="patterns")
    assert rates.doubt(1, third, 0.7, HERE) == ""  # a fifth of 10,000 units
    assert rates.doubt(1, msgspec.structs.replace(third, imbalance="uniform"), 0.7, HERE)


def test_programs_that_need_less_by_their_profile_may_be_done_sooner() -> None:
    rates = WorkRates(MeasuredRates(1000.0))
    quarter_s = PROGRAM.work_units / 1000.0 / 4 / TOLERANCE
    for profile in ("0.25", "0.4,0.1@0.5"):
        paced = msgspec.structs.replace(PROGRAM, profile=profile)
        assert rates.doubt(1, paced, quarter_s * 1.01, HERE) == ""
        assert rates.doubt(1, paced, quarter_s * 0.99, HERE)


def test_a_node_that_tells_its_guests_done_at_once_is_doubted_and_honest_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, _ = rehearse(tmp_path, five_jobs())
    assert "doubts" not in honest.summary
    arm = NullDriver._arm

    def lie(self: NullDriver, found: _Guest) -> None:
        arm(self, found)
        if found.end is not None and found.spec.job == 3 and "alone" not in found.spec.guest:
            found.end.cancel()
            found.end = asyncio.get_running_loop().call_later(0.5, self._done, found)

    monkeypatch.setattr(NullDriver, "_arm", lie)
    result, journal = rehearse(tmp_path, five_jobs())
    assert list(result.summary["doubts"]) == ["3"]
    assert "expected at most 3 times that" in result.summary["doubts"]["3"]
    (entry,) = [entry for entry in journal if entry["kind"] == "doubt"]
    assert (entry["job"], entry["task"]) == (3, 0)


# --- which nodes may report


def test_progress_of_a_job_alone_counts_from_its_own_nodes() -> None:
    async def main() -> None:
        job = LabJob(SimpleNamespace(guest_events=GuestEvents()), specs_of(1, 2), (0, 1), verified=False)
        job._expect_progress()
        first, second = (
            report_of(GuestEvent(node="n", guest=guest, event="progress", mono_ns=1)) for guest in job.guests
        )
        job._hear(0, first)
        for node in (0, 2):
            job._hear(node, second)
        assert not job._progressed.is_set()
        job._hear(1, second)
        assert job._progressed.is_set()

    asyncio.run(main())


def test_the_end_of_a_measured_guest_is_told_by_its_own_node() -> None:
    async def main() -> None:
        job = LabJob(SimpleNamespace(), specs_of(1, 2), (0, 2), verified=True)
        said: dict[str, object] = {"reason": "I say so"}
        end = report_of(GuestEvent(node="n", guest="g1-1", event="failed", mono_ns=1, detail=said))
        for node in (0, 1):
            job._hear(node, end)
        assert job.ends == {}
        job._hear(2, end)
        assert job.ends == {"g1-1": end}

    asyncio.run(main())
