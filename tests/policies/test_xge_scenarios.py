"""The scenarios of XGE: at any cost of suspending, nodes are lent, taken back, and taken for the urgent job."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.scenario.jobs import load_jobs
from testbed.scenario.schema import load_scenario
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.overheads import constant
from testbed.study.report.run.simulated import simulate_schedule
from testbed.study.report.run.slots import slots_of

SCENARIOS = Path(__file__).parents[2] / "scenarios"


@pytest.mark.parametrize("penalty_s", [0.0, 20.0, 120.0])
@pytest.mark.parametrize("name", ["xge", "xge-guests"])
def test_nodes_are_lent_taken_back_and_taken(name: str, penalty_s: float) -> None:
    path = SCENARIOS / f"{name}.toml"
    scenario = load_scenario(path)
    (policy,) = scenario.policy
    jobs = load_jobs(scenario, path)
    names = [node.name for node in scenario.nodes]
    found = simulate_schedule(jobs, names, parse(policy), constant(penalty_s), node_memory_gb=0.4)
    run = {job.job_id: row for row, job in enumerate(jobs)}
    (urgent,) = (job for job in jobs if job.urgent)
    assert found.run.start_s[run[urgent.job_id]] == urgent.submit_time_s, "an urgent job does not wait"
    assert not any(found.run.preemptions[run[job.job_id]] for job in jobs if job.tasks > 1)
    slots = slots_of(found.schedule)
    assert slots is not None
    assert slots.partitions.parallel == len(names) // 2
    ours, others = slots.nodes[: len(names) // 2], slots.nodes[len(names) // 2 :]
    assert all(node.counts.taken_back >= 2 for node in ours), "for an ordinary and for the urgent job"
    assert all(node.counts.taken == 0 for node in ours)
    assert sum(node.counts.taken for node in others) == 1
    assert slots.total.suspended == slots.total.resumed > 0
    wall_min = max(found.run.end_s) / scenario.time_scale / 60.0
    assert wall_min == pytest.approx({"xge": 2.75, "xge-guests": 8.75}[name], rel=0.1)


def test_an_urgent_job_leaves_a_node_whose_serial_jobs_are_not_all_long() -> None:
    path = SCENARIOS / "xge.toml"
    jobs = load_jobs(load_scenario(path), path)
    found = simulate_schedule(jobs, "abcd", parse("XGE/LONG=3000"), constant(0.0), node_memory_gb=0.4)
    (urgent,) = (job for job in jobs if job.urgent)
    placed = next(each.placements[urgent.job_id] for each in found.decisions if urgent.job_id in each.placements)
    assert set(placed[0]) == {0, 1, 3}
    plain = simulate_schedule(jobs, "abcd", parse("XGE"), constant(0.0), node_memory_gb=0.4)
    placed = next(each.placements[urgent.job_id] for each in plain.decisions if urgent.job_id in each.placements)
    assert set(placed[0]) == {0, 1, 2}, "without a limit it takes the first serial node"
