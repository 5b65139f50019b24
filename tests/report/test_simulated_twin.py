"""The simulation of a run: its results, a schedule that explains them, and the differences to the run."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.control.rehearsal import BEST, five_jobs, rehearse
from support.entries import whole
from support.simulation.scripted import Scripted
from support.timelines import read_timeline

from testbed.errors import UserError
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.compiling import NEVER
from testbed.scheduling.simulation.overheads import constant, linear
from testbed.scheduling.simulation.overheads_parser import parse_overheads
from testbed.scheduling.simulation.run import MIGRATION
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.synthetic import synthetic_trace
from testbed.study.report.run.difference import Cell, difference
from testbed.study.report.run.schedule import RESTORE, RUN, SAVE, JobFacts, Schedule, Span
from testbed.study.report.run.simulated import Simulation, simulate_run, simulate_schedule

FIELDS = ("start_s", "end_s", "virtual_time_s", "preemptions", "migrations", "penalty_s", "tasks_moved")
NAMES = ("a", "b", "c", "d")
POLICIES = [BEST, "MCB8 */OPT=MIN/MINVT=600", "/stretch-per/OPT=MAX", "GREEDY", "DYNMCB8", "FCFS", "EASY"]


def dense_trace() -> list[Job]:
    """40 jobs at four times the model's rate of submissions."""
    return [replace(job, submit_time_s=job.submit_time_s / 4) for job in synthetic_trace(4, 40, 3)]


@pytest.mark.parametrize("overheads", [constant(300.0), linear(2.0, 0.1, 0.2)], ids=["constant", "linear"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_schedule_explains_the_very_results_of_the_simulation(policy: str, overheads) -> None:
    jobs = dense_trace()
    plain = simulate(jobs, 4, parse(policy), overheads, debug=True, compiling=NEVER)
    twin = simulate_schedule(jobs, NAMES, parse(policy), overheads, node_memory_gb=8.0, time_scale=50.0)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(plain, name), getattr(twin.run, name), err_msg=name)
    for name in ("time_s", "row", "kind", "tasks"):
        np.testing.assert_array_equal(getattr(plain.moves, name), getattr(twin.run.moves, name), err_msg=name)
    assert plain.decisions == twin.run.decisions
    if policy not in {"FCFS", "EASY", "GREEDY"}:
        assert twin.run.preemptions.sum() > 0
    explain(twin)


def explain(twin: Simulation) -> None:
    """Assert that spans and facts, on a 50 times shorter axis, agree with the results."""
    own: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in twin.schedule.spans:
        own[span.job, span.task].append(span)
    changes: dict[int, list[tuple[float, int, float, float]]] = defaultdict(list)
    for row, job in enumerate(twin.run.jobs):
        facts = twin.schedule.jobs[job.job_id]
        assert facts.end_s * 50 == pytest.approx(twin.run.end_s[row])
        moved = 0
        for task in range(job.tasks):
            spans = sorted(own.pop((job.job_id, task)), key=lambda span: span.begin_s)
            assert all(one.end_s <= other.begin_s + 1e-9 for one, other in pairwise(spans))
            assert spans[0].begin_s * 50 == pytest.approx(twin.run.start_s[row])
            assert spans[-1].end_s * 50 == pytest.approx(twin.run.end_s[row])
            worked_s = sum((s.end_s - s.begin_s) * s.yield_frac for s in spans if s.kind == RUN) * 50
            assert worked_s == pytest.approx(job.run_time_s, rel=1e-6)
            held_up_s = sum(s.end_s - s.begin_s for s in spans if s.kind == RESTORE) * 50
            assert held_up_s == pytest.approx(twin.run.penalty_s[row], abs=1e-6)
            moved += sum(one.node != other.node and other.begin_s - one.end_s < 1e-9 for one, other in pairwise(spans))
            for span in spans:
                cpu = span.yield_frac * job.cpu_need_frac
                changes[span.node] += [
                    (round(span.begin_s, 9), 1, cpu, job.mem_req_frac),
                    (round(span.end_s, 9), 0, -cpu, -job.mem_req_frac),
                ]
        log = twin.run.moves
        assert moved == log.tasks[(log.row == row) & (log.kind == MIGRATION)].sum(), "no task moves without need"
    assert own == {}
    for each in changes.values():
        used = np.cumsum([(cpu, memory) for _, _, cpu, memory in sorted(each)], axis=0)
        assert used.max() <= 1.0 + 1e-6, "CPU or memory of a node is given away twice"


def test_tasks_are_interchangeable_and_stay_where_they_can() -> None:
    script = {0: {0: ([0, 1, 2], 1.0)}, 10: {0: ([2, 0, 1], 1.0)}, 20: {0: ([1, 3, 0], 1.0)}}
    jobs = [Job(0, 0.0, 3, 0.5, 1.0, 100.0)]
    twin = simulate_schedule(jobs, NAMES, Scripted(script, 10.0), constant(5.0), node_memory_gb=8.0)
    spans = sorted(twin.schedule.spans, key=lambda span: (span.task, span.begin_s))
    assert [(s.task, s.node, s.begin_s, s.end_s, s.kind) for s in spans] == [
        (0, 0, 0, 20, RUN), (0, 0, 20, 25, RESTORE), (0, 0, 25, 105, RUN),
        (1, 1, 0, 20, RUN), (1, 1, 20, 25, RESTORE), (1, 1, 25, 105, RUN),
        (2, 2, 0, 20, RUN), (2, 3, 20, 25, RESTORE), (2, 3, 25, 105, RUN),
    ]  # fmt: skip


CALIBRATION = """
[overheads]
concurrent_per = "node"
concurrent_tasks = [1, 2]
memory_gb = [1.0, 2.0]
start_s = [[1, 1], [2, 2]]
save_s = [[1, 2], [2, 3]]
resume_s = [[3, 5], [6, 10]]
migration_s = [[6, 10], [12, 20]]
[overheads.progress]
yield_frac = [0.5, 1.0]
serial = [0.4, 1.0]
parallel = [0.6, 1.0]
"""


@pytest.mark.parametrize("policy", ["MCB8 */OPT=MIN/MINVT=600", BEST, "EASY"])
def test_the_twin_knows_all_of_a_calibration_and_tells_every_decision(policy: str, tmp_path: Path) -> None:
    (tmp_path / "calibration.toml").write_text(CALIBRATION)
    overheads = parse_overheads(f"{tmp_path / 'calibration.toml'}#extrapolate").scaled(50.0)
    jobs = dense_trace()
    plain = simulate(jobs, 4, parse(policy), overheads, debug=True, compiling=NEVER)
    twin = simulate_schedule(jobs, NAMES, parse(policy), overheads, node_memory_gb=8.0, time_scale=50.0)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(plain, name), getattr(twin.run, name), err_msg=name)
    assert plain.penalty_s.min() >= 50.0
    assert len(twin.decisions) == plain.decisions - (policy == "EASY")  # it also decides when the last job ends
    # The running jobs and their nodes, by decisions, explain the starts, ends and changes of nodes in the results.
    first: dict[int, float] = {}
    moved = 0
    for before, after in pairwise([None, *twin.decisions]):
        assert after is not None
        for job_id, (nodes, share) in after.placements.items():
            first.setdefault(job_id, after.time_s)
            assert 0.0 <= share <= 1.0
            if before is not None and job_id in before.placements:
                moved += sorted(before.placements[job_id][0]) != sorted(nodes)
    assert [first[job.job_id] for job in twin.run.jobs] == twin.run.start_s.tolist()
    assert moved == twin.run.migrations.sum()
    for span in twin.schedule.spans:
        if span.kind == RUN:
            middle_s = (span.begin_s + span.end_s) * 25.0
            now = [each for each in twin.decisions if each.time_s <= middle_s][-1]
            nodes, share = now.placements[span.job]
            assert (span.node in nodes, span.yield_frac) == (True, share)


def test_a_calibration_is_in_seconds_of_the_lab_other_models_are_not(tmp_path: Path) -> None:
    result, _ = rehearse(tmp_path, five_jobs())
    (tmp_path / "calibration.toml").write_text(CALIBRATION)
    text = str(tmp_path / "calibration.toml")
    scale = json.loads((result.path / "manifest.json").read_text())["clocks"]["time_scale"]
    assert scale > 1
    twin = simulate_run(result.path, parse_overheads(text))
    assert twin.overheads.resume_s.tolist() == [[3 * scale, 5 * scale], [6 * scale, 10 * scale]]
    assert twin.schedule.name == f"simulated, {text} x {scale:g}"
    assert twin.run.penalty_s.min() >= scale  # starts cost 1 s of the lab
    one = simulate_run(result.path, parse_overheads(f"{text}#constant")).overheads
    assert one.resume_s[0, 0] == pytest.approx(parse_overheads(text).mean_penalty_s * scale)
    assert simulate_run(result.path, constant(7.0)).overheads.resume_s.tolist() == [[7.0]]


@pytest.mark.parametrize(
    ("addresses", "per_node"), [(("127.0.0.1", "127.0.0.1"), False), (("192.0.2.1", "192.0.2.2"), True)]
)
def test_nodes_of_one_machine_share_what_moving_takes(
    tmp_path: Path, addresses: tuple[str, str], per_node: bool
) -> None:
    result, _ = rehearse(tmp_path, five_jobs())
    path = result.path / "manifest.json"
    manifest = json.loads(path.read_text())
    for facts, address in zip(manifest["nodes"].values(), addresses, strict=True):
        facts["address"] = address
    path.write_text(json.dumps(manifest))
    (tmp_path / "calibration.toml").write_text(CALIBRATION)
    twin = simulate_run(result.path, parse_overheads(str(tmp_path / "calibration.toml")))
    assert twin.overheads.per_node is per_node


@pytest.mark.parametrize(
    ("work", "old", "measured"),
    [("units", None, True), ("cpu-time", None, False), (None, "cpu-time", False), (None, "units", True)],
)
def test_work_that_is_cpu_time_progresses_at_the_yield(
    tmp_path: Path, work: str | None, old: str | None, measured: bool
) -> None:
    """Manifests of earlier versions have the measure in their scenario only."""
    result, _ = rehearse(tmp_path, five_jobs())
    path = result.path / "manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["work"] == "units"  # a dry run
    manifest["scenario"]["programs"]["work"] = old
    del manifest["work"]
    path.write_text(json.dumps(manifest if work is None else {**manifest, "work": work}))
    (tmp_path / "calibration.toml").write_text(CALIBRATION)
    twin = simulate_run(result.path, parse_overheads(str(tmp_path / "calibration.toml")))
    assert (twin.overheads.progress is not None) == measured


def test_a_dry_run_and_its_simulation_agree(tmp_path: Path) -> None:
    result, _ = rehearse(tmp_path, five_jobs())
    found = difference(read_timeline(result.path).schedule(), simulate_run(result.path).schedule)
    assert found.agreement_frac > 0.999
    for job in found.jobs:
        assert abs(job.start_shift_s) < 1.0
        assert abs(job.end_shift_s) < 1.0
        assert (job.preemptions_first, job.migrations_first) == (job.preemptions_second, job.migrations_second)
        assert job.tasks_elsewhere == 0
    assert sum(job.preemptions_first + job.migrations_first for job in found.jobs) > 0


def test_penalties_default_to_the_mean_that_was_measured_and_batch_policies_get_their_estimates(tmp_path: Path) -> None:
    result, _ = rehearse(tmp_path, five_jobs())
    journal = result.path / "events.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    penalties = iter([1.0, 3.0, *[2.0] * 20])
    for entry in lines:
        if entry["kind"] == "rescheduling":
            entry["penalty_s"] = next(penalties)
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    twin = simulate_run(result.path)
    assert twin.overheads.resume_s.tolist() == [[2.0 * 60]]
    assert twin.schedule.name == "simulated, penalty 120 s"
    assert simulate_run(result.path, constant(7.0)).overheads.name == "constant:7"
    behind = [
        Job(1, 0, 1, 1.0, 0.1, 1000, estimate_s=1500),
        Job(2, 1, 2, 1.0, 0.1, 100),
        Job(3, 2, 1, 1.0, 0.1, 1200),  # by its estimate it ends before job 1, so it may overtake job 2
    ]
    easy, _ = rehearse(tmp_path, behind, policy="EASY")
    twin = simulate_run(easy.path)
    assert [job.estimate_s for job in twin.run.jobs] == [1500, 100, 1200]
    assert twin.run.start_s.tolist() == [0.0, 1202.0, 2.0]


def test_what_cannot_be_simulated_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no schedule by nodes"):
        simulate_schedule(five_jobs(), NAMES, parse("EQUIPARTITION"), constant(0), node_memory_gb=1.0)
    with pytest.raises(UserError, match="job 1 can never run on 1 nodes under EASY"):
        simulate_schedule([Job(1, 0, 2, 1.0, 1.0, 9)], ["a"], parse("EASY"), constant(0), node_memory_gb=1.0)
    result, _ = rehearse(tmp_path, five_jobs()[:1])
    jobs = result.path / "jobs.csv"
    text = jobs.read_text()
    jobs.write_text(text.replace("1200", "many"))
    with pytest.raises(UserError, match=r"jobs\.csv: expected the columns and numbers.*many"):
        simulate_run(result.path)
    jobs.write_text(text.splitlines()[0])
    with pytest.raises(UserError, match="no jobs"):
        simulate_run(result.path)
    jobs.unlink()
    with pytest.raises(UserError, match=r"jobs\.csv: cannot read"):
        simulate_run(result.path)
    (result.path / "manifest.json").write_text('{"nodes": {}}')
    with pytest.raises(UserError, match=r"manifest\.json: expected the manifest of a run"):
        simulate_run(result.path)


def schedule(name: str, spans: list[Span], ends: dict[int, float] | None = None, nodes: int = 3) -> Schedule:
    jobs = {job: JobFacts(job, "done", 1, 1.0, 0.5, 0.0, 1.0, end_s) for job, end_s in (ends or {}).items()}
    return Schedule(name, spans, jobs, nodes, (), 10.0, 100.0)


def test_differences_are_cells_shifts_and_places() -> None:
    first = [Span(1, 0, 0, 1, 5, RUN, 1.0), Span(1, 0, 0, 5, 6, SAVE, 0.0), Span(1, 1, 0, 1, 5, RUN, 0.5)]
    second = [Span(1, 0, 0, 2, 4, RUN, 1.0), Span(1, 0, 0, 4, 7, RUN, 0.5), Span(1, 1, 2, 2, 4, RUN, 1.0)]
    found = difference(schedule("x", first, {1: 6.0, 2: 9.0}), schedule("y", second, {1: 7.5}))
    assert found.cells == (
        Cell(0, 1, 1, 2, 2), Cell(0, 1, 2, 5, 1), Cell(0, 1, 5, 7, -1), Cell(2, 1, 2, 4, -1),
    )  # fmt: skip
    assert (found.both_task_s, found.first_only_task_s, found.second_only_task_s) == (30.0, 50.0, 40.0)
    assert found.agreement_frac == 0.25
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    one, two = data["jobs"]
    assert (one["start_shift_s"], one["end_shift_s"]) == (0.0, -15.0)
    assert (one["turnaround_first_s"], one["turnaround_second_s"], one["tasks_elsewhere"]) == (60.0, 75.0, 1)
    assert (two["job"], two["end_shift_s"], two["turnaround_second_s"]) == (2, None, None)
    with pytest.raises(UserError, match="expected schedules of the same nodes"):
        difference(schedule("x", first), schedule("y", second, nodes=2))


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    out = []
    for job, task in ((1, 0), (1, 1), (2, 0)):
        times = sorted(draw(st.lists(st.integers(0, 20), max_size=6, unique=True)))
        for begin_s, end_s in pairwise(times):
            out.append(
                Span(job, task, draw(st.integers(0, 2)), begin_s, end_s, draw(st.sampled_from([RUN, SAVE])), 1.0)
            )
    return out


@settings(max_examples=40)
@given(spans(), spans())
def test_differences_agree_with_counting_second_by_second(first: list[Span], second: list[Span]) -> None:
    found, back = (
        difference(schedule("x", one), schedule("y", other)) for one, other in [(first, second), (second, first)]
    )
    assert [replace(cell, more=-cell.more) for cell in back.cells] == list(found.cells)
    assert back.agreement_frac == pytest.approx(found.agreement_frac)

    def running(own: list[Span], node: int, job: int, time_s: float) -> int:
        return sum(s.kind == RUN and (s.node, s.job) == (node, job) and s.begin_s < time_s < s.end_s for s in own)

    both_s = 0
    for node in range(3):
        for job in (1, 2):
            for second_s in range(20):
                one, other = (running(own, node, job, second_s + 0.5) for own in (first, second))
                both_s += min(one, other)
                more = [
                    c.more for c in found.cells if (c.node, c.job) == (node, job) and c.begin_s <= second_s < c.end_s
                ]
                assert more == ([one - other] if one != other else [])
    assert found.both_task_s == both_s * 10


def test_jobs_of_a_served_lab_are_simulated_with_all_that_was_told_of_them(tmp_path: Path) -> None:
    """The jobs came one by one; an urgent one of three tasks fits only on nodes of both partitions."""
    jobs = [Job(1, 0.0, 1, 1.0, 0.3, 300.0), Job(2, 60.0, 3, 1.0, 0.3, 120.0, urgent=True)]
    (tmp_path / "served").mkdir()
    result, _ = rehearse(tmp_path / "served", jobs, count=4, policy="XGE")
    path = result.path / "events.jsonl"
    entries = []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if entry["kind"] == "replay":
            told, entry["trace"] = entry["trace"], []
            entries += [entry, *({"kind": "arrived", "t_s": entry["t_s"], "trace_s": entry["trace_s"], "arrival": job,
                                  "by": "root", "addresses": []} for job in told)]  # fmt: skip
        else:
            entries.append(entry)
    path.write_text("".join(json.dumps(whole(entry)) + "\n" for entry in entries))
    twin = simulate_run(result.path)
    assert [job.urgent for job in twin.run.jobs] == [False, True]
    assert np.isfinite(twin.run.end_s).all()
