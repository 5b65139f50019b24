"""Live policies that know the cost of moves: views and journal contain it; live and simulated decisions agree."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.compare.compared_runs import dry_run, quickstart_jobs

from testbed.control.move_costs import MoveCosts, WayCosts
from testbed.control.replay_decisions import replay_decisions
from testbed.errors import UserError
from testbed.run.events import Decision, Rescheduling
from testbed.run.journal import read_events
from testbed.scheduling.policies.view import JobState
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.overheads_parser import parse_overheads
from testbed.scheduling.workload.jobs import Job
from testbed.study.compare.live import read_live
from testbed.study.compare.pairs import pair

KNOWS = "GreedyPM */per/OPT=MIN/KNOWS=cost"


def test_a_run_tells_its_policy_what_moves_cost_and_can_be_made_again(tmp_path: Path) -> None:
    run = dry_run(tmp_path / "knows", KNOWS, quickstart_jobs(), time_scale=50, overheads="constant:40")
    seen = [event.view for event in read_events(run / "events.jsonl") if isinstance(event, Decision)]
    assert all(view.move_cost_s == (40.0,) * len(view.job_id) for view in seen)
    assert any(view.job_id for view in seen)
    number, different = replay_decisions(run)
    assert (number, different) == (len(seen), [])
    plain = dry_run(tmp_path / "plain", KNOWS.removesuffix("/KNOWS=cost"), quickstart_jobs(), time_scale=50)
    assert all(
        view.view.move_cost_s == () for view in read_events(plain / "events.jsonl") if isinstance(view, Decision)
    )


def test_both_worlds_decide_alike_where_moves_are_free(tmp_path: Path) -> None:
    """Null drivers move jobs at once, so an overhead of 0 is known and charged."""
    jobs = [Job(n, 5.0 + 40.0 * n, 1 + n % 2, 1.0, 0.25, 900.0 + 150.0 * n) for n in range(6)]
    found = pair(read_live(dry_run(tmp_path / "free", KNOWS, jobs, time_scale=50, overheads="constant:0")), constant(0))
    assert found.alignment.same_frac == 1.0
    assert found.one_step is not None
    assert found.one_step.same_frac == 1.0


def test_models_of_the_clock_are_taken_times_the_time_scale(tmp_path: Path) -> None:
    path = tmp_path / "measured.toml"
    path.write_text(
        "[overheads]\nconcurrent_tasks = [1]\nmemory_gb = [1.0, 2.0]\nresume_s = [[1, 2]]\nmigration_s = [[3, 5]]\n"
    )
    job = Job(1, 0.0, 1, 0.5, 0.5, 100.0)
    assert MoveCosts(str(path), 4.0, 60.0).of([job], [0.0]).tolist() == [300.0]
    assert MoveCosts("constant:300", 4.0, 60.0).of([job], [0.0]).tolist() == [300.0]


@pytest.mark.parametrize(("per", "cost_s"), [("node", 3.0), ("cluster", 8.0)])
def test_tasks_on_nodes_of_their_own_move_as_fast_as_one(tmp_path: Path, per: str, cost_s: float) -> None:
    path = tmp_path / "measured.toml"
    path.write_text(
        f'[overheads]\nconcurrent_tasks = [1, 8]\nconcurrent_per = "{per}"\nmemory_gb = [1.0, 2.0]\n'
        "resume_s = [[1, 1], [1, 1]]\nmigration_s = [[3, 3], [8, 8]]\n"
    )
    assert MoveCosts(str(path), 4.0, 1.0).of([Job(1, 0.0, 8, 0.5, 0.25, 100.0)], [0.0]).tolist() == [cost_s]


@pytest.mark.parametrize(
    ("overheads", "message"),
    [
        ({}, "overheads: policy GreedyPM */per/OPT=MIN/KNOWS=cost uses the cost of moves: expected a model"),
        ({"overheads": "constnat:3"}, "no overheads 'constnat': expected a .toml file"),
    ],
)
def test_a_scenario_names_the_model(tmp_path: Path, overheads: dict, message: str) -> None:
    with pytest.raises(UserError) as refused:
        dry_run(tmp_path / "unknown", KNOWS, **overheads)
    assert message in str(refused.value)


WAYS = """
[overheads]
memory_gb = [1.0, 2.0]
resume_s = [[1, 2]]
migration_s = [[9, 9]]

[migration_ways_s]
save-restore = [[2, 4]]
live = [[3, 3]]
"""


def test_a_job_migrates_live_where_that_stops_it_for_less_time(tmp_path: Path) -> None:
    path = tmp_path / "measured.toml"
    path.write_text(WAYS)
    ways = WayCosts(str(path), 2.0)
    assert [ways.live_is_cheaper(Job(1, 0.0, 1, 0.5, memory, 9.0), 0.0) for memory in (0.5, 0.75, 0.8, 1.0)] == [
        False, False, True, True,
    ]  # fmt: skip
    cheaper = parse_overheads(f"{path}#cheaper")
    assert cheaper.memory_gb.tolist() == [1, 1.5, 2]
    assert cheaper.migration_s.tolist() == [[2, 3, 3]]
    assert cheaper.resume_s.tolist() == [[1, 1.5, 2]]


SENT = "\n[live_migration]\nmib_per_s = 100.0\n"


def test_memory_that_is_written_meanwhile_is_sent_again(tmp_path: Path) -> None:
    path, unknown = tmp_path / "measured.toml", tmp_path / "unknown.toml"
    text = WAYS.replace("live = [[3, 3]]", "live = [[1, 2]]")
    path.write_text(text + SENT)
    unknown.write_text(text)
    ways, job = WayCosts(str(path), 2.0), Job(1, 0.0, 1, 0.5, 0.5, 9.0)
    assert ways.of(job, 0.0) == (1.0, 2.0)
    assert ways.of(job, 50.0) == (2.0, 2.0)
    assert ways.of(job, 75.0) == (4.0, 2.0)
    assert ways.of(job, 100.0) == (inf, 2.0)
    assert [ways.live_is_cheaper(job, rate) for rate in (0.0, 49.0, 51.0, 1e15)] == [True, True, False, False]
    assert WayCosts(str(unknown), 2.0).of(job, 75.0) == (1.0, 2.0)
    costs = MoveCosts(f"{path}#live", 2.0, 60.0, ways)
    assert costs.of([job, job, job], [0.0, 49.0, 75.0]).tolist() == pytest.approx([60.0, 60.0 * 100 / 51, 120.0])


@pytest.mark.parametrize("rate", ["0.0", "-1.0", "inf", "nan", '"fast"'])
def test_a_rate_that_makes_no_sense_is_refused(tmp_path: Path, rate: str) -> None:
    path = tmp_path / "measured.toml"
    path.write_text(WAYS + f"\n[live_migration]\nmib_per_s = {rate}\n")
    with pytest.raises(UserError, match=r"live_migration\.mib_per_s"):
        WayCosts(str(path), 2.0)


@given(
    st.lists(st.tuples(*[st.floats(0.0, 100.0)] * 4), min_size=2, max_size=4),
    st.lists(st.floats(0.0, 8.0), min_size=1, max_size=20),
)
def test_the_cheaper_way_costs_the_least_at_every_memory(rows: list[tuple[float, ...]], memory_gb: list[float]) -> None:
    points = [float(2**index) for index in range(len(rows))]
    live, by_images = [row[0] for row in rows], [row[1] for row in rows]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.toml"
        path.write_text(
            f"[overheads]\nmemory_gb = {points}\nresume_s = [{[row[2] for row in rows]}]\n"
            f"start_s = [{[row[3] for row in rows]}]\nmigration_s = [{live}]\n"
            f"[migration_ways_s]\nsave-restore = [{by_images}]\nlive = [{live}]\n"
        )
        cheaper = parse_overheads(f"{path}#cheaper")
        plain = parse_overheads(str(path))
    for each in memory_gb:
        memory = min(max(each, points[0]), points[-1])
        expected_s = min(np.interp(memory, points, live), np.interp(memory, points, by_images))
        assert np.interp(memory, cheaper.memory_gb, cheaper.migration_s[0]) == pytest.approx(expected_s, abs=1e-3)
        for kind in ("resume_s", "start_s"):
            after, before = getattr(cheaper, kind)[0], getattr(plain, kind)[0]
            assert np.interp(memory, cheaper.memory_gb, after) == pytest.approx(np.interp(memory, points, before))


def test_a_policy_that_knows_costs_is_told_those_of_the_way_that_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(WAYS.replace("1.0, 2.0", "0.1, 0.4"))  # live migration is cheaper from 0.25 GB on
    told = []
    for way in ("save-restore", "live", "cheaper"):
        run = dry_run(
            tmp_path / way, "GreedyPM */per/OPT=MIN/KNOWS=cost", overheads=str(path), migration={"mechanism": way},
            extras="whole,live", time_scale=50,
        )  # fmt: skip
        decisions = [event for event in read_events(run / "events.jsonl") if isinstance(event, Decision)]
        told.append({cost_s for event in decisions for cost_s in event.view.move_cost_s})
    assert sorted(told[0]) == pytest.approx([171.524, 206.477, 241.429], abs=0.01)
    assert sorted(told[1]) == pytest.approx([150.0])
    assert sorted(told[2]) == pytest.approx([150.0])


@pytest.mark.parametrize(
    ("overheads", "text", "message"),
    [
        ("constant:300", "", "expected the file of a calibration with live migrations"),
        ("m.toml", WAYS.partition("[migration_ways_s]")[0], "no table [migration_ways_s]"),
        ("m.toml", WAYS.replace("live = [[3, 3]]", ""), "migration_ways_s.live"),
        ("m.toml", WAYS.replace("[[3, 3]]", "[[3]]"), "migration_ways_s.live = [[3.0]]: expected rows as those of"),
    ],
)
def test_what_was_not_measured_cannot_be_compared(tmp_path: Path, overheads: str, text: str, message: str) -> None:
    (tmp_path / "m.toml").write_text(text)
    name = overheads if overheads.startswith("constant") else str(tmp_path / overheads)
    with pytest.raises(UserError) as refused:
        dry_run(tmp_path / "r", overheads=name, migration={"mechanism": "cheaper"})
    assert message in str(refused.value)


def test_a_policy_that_knows_costs_sees_the_images_of_paused_jobs(tmp_path: Path) -> None:
    run = dry_run(tmp_path / "r", "MCB8 */per/OPT=MIN/KNOWS=cost", overheads="constant:10", time_scale=60)
    stood: dict[int, tuple[int, ...]] = {}  # the nodes to which each job was last placed
    paused = 0
    for event in read_events(run / "events.jsonl"):
        if not isinstance(event, Decision):
            continue
        seen, first = event.view, 0
        for job, tasks, state in zip(seen.job_id, seen.tasks, seen.state, strict=True):
            images = seen.image_node[first : first + tasks]
            if state == JobState.PAUSED:
                paused += 1
                assert sorted(images) == sorted(stood[job])
            else:
                assert images == (-1,) * tasks
            nodes = event.decision.task_node[first : first + tasks]
            if min(nodes) >= 0:
                stood[job] = nodes
            first += tasks
    assert paused, "a job was paused"


def test_a_run_takes_the_cheaper_way_for_each_job(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(WAYS.replace("1.0, 2.0", "0.1, 0.4"))  # live migration is cheaper from 0.25 GB on
    ways = WayCosts(str(path), 1000 * 2**20 / 1e9)
    jobs = [replace(job, mem_req_frac=0.3) if job.job_id == 79 else job for job in quickstart_jobs()]
    run = dry_run(
        tmp_path / "r",
        "MCB8 */OPT=MIN",
        jobs,
        time_scale=50,
        overheads=str(path),
        migration={"mechanism": "cheaper"},
        extras="whole,live",
    )
    live = {job.job_id: ways.live_is_cheaper(job, 0.0) for job in jobs}
    found = [event for event in read_events(run / "events.jsonl") if isinstance(event, Rescheduling)]
    moved = {(event.job, event.mechanism) for event in found if event.reason == "migration"}
    assert {mechanism for _, mechanism in moved} == {"live", "save-restore"}
    assert all(live[job] for job, mechanism in moved if mechanism == "live")
    assert any(not live[job] for job, _ in moved)


@pytest.mark.parametrize(("mib_per_s", "mechanism"), [(1000.0, "live"), (40.0, "save-restore")])
def test_a_job_that_writes_faster_than_memory_is_sent_moves_by_images(
    tmp_path: Path, mib_per_s: float, mechanism: str
) -> None:
    """The jobs write 50 MiB/s and more at full speed; live migration is always cheaper for those that do not write."""
    path = tmp_path / "m.toml"
    path.write_text(
        WAYS.replace("1.0, 2.0", "0.1, 0.4").replace("live = [[3, 3]]", "live = [[1, 1]]")
        + f"\n[live_migration]\nmib_per_s = {mib_per_s}\n"
    )
    run = dry_run(
        tmp_path / "r", "MCB8 */OPT=MIN", time_scale=50, overheads=str(path), migration={"mechanism": "cheaper"},
        extras="whole,live,dirty",
    )  # fmt: skip
    found = [event for event in read_events(run / "events.jsonl") if isinstance(event, Rescheduling)]
    assert {event.mechanism for event in found if event.reason == "migration"} == {mechanism}
    points = (run / "points.lp").read_text().splitlines()
    rates = [line for line in points if line.startswith("guest,") and "dirty_mib_per_s=" in line]
    assert rates
