"""Live policies that know what moves cost: views tell them, the journal keeps it, and both worlds decide alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.compare.compared_runs import dry_run, quickstart_jobs

from testbed.control.move_costs import MoveCosts
from testbed.control.replay_decisions import replay_decisions
from testbed.errors import UserError
from testbed.run.events import Decision
from testbed.run.journal import read_events
from testbed.scheduling.simulation.overheads import constant
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
    """Null drivers move jobs at once, so that an overhead of 0 is known and charged."""
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
    assert MoveCosts(str(path), 4.0, 60.0).of([job]).tolist() == [300.0]
    assert MoveCosts("constant:300", 4.0, 60.0).of([job]).tolist() == [300.0]


@pytest.mark.parametrize(
    ("overheads", "message"),
    [
        ({}, "overheads: policy GreedyPM */per/OPT=MIN/KNOWS=cost knows what moves cost: expected a model"),
        ({"overheads": "constnat:3"}, "no overheads 'constnat': expected a .toml file"),
    ],
)
def test_a_scenario_names_the_model(tmp_path: Path, overheads: dict, message: str) -> None:
    with pytest.raises(UserError) as refused:
        dry_run(tmp_path / "unknown", KNOWS, **overheads)
    assert message in str(refused.value)
