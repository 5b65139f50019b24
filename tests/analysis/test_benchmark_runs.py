"""What the benchmarks read from live runs, on runs in virtual time whose figures are known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.compare.compared_runs import dry_run

from testbed.scheduling.workload.jobs import Job

ROOT = Path(__file__).resolve().parents[2]
PAIRED = "Greedy */OPT=MIN"
OWN = (
    "cases", "guest_samples", "intervals", "lab", "live_run", "needs", "price_of_moves", "rows", "services", "tables"
)  # fmt: skip


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[Any]:
    """The modules of benchmarks, which import others of their folder; one node has one core in these runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        import needs
        import price_of_moves
        import services

        patch.setattr(needs, "LIVE_CORES", 1.0)
        patch.setattr(needs, "LIVE_NODES", 2)
        yield SimpleNamespace(needs=needs, services=services, price=price_of_moves)
    for name in OWN:
        sys.modules.pop(name, None)


def jobs() -> list[Job]:
    """Two jobs on each of two nodes; the first and the last need a quarter of what they declare."""
    return [Job(n, 0.0, 1, 1.0, 0.2, 120.0, true_need_frac=0.25 if n in (1, 4) else 1.0) for n in range(1, 5)]


def paced(folder: Path, policy: str, profile: str = "1") -> Path:
    return dry_run(folder, policy, jobs(), time_scale=1, programs={"profile": profile})


def test_wrong_needs_leave_caps_unused_and_others_short(benchmarks: Any, tmp_path: Path) -> None:
    run = paced(tmp_path / "wrong", PAIRED)
    found = benchmarks.needs.live_needs(run, jobs(), ((0.0, 1.0),), estimates=False)
    assert 1.2 < found["need off by"] < 2.0, "4 for half of the jobs, and 1 for those that run on after them"
    assert found["overcommitted frac"] > 0.1
    # yields of 1/2 until the first jobs end: they use 0.25 of caps of 0.5
    assert 0.1 < found["unused frac"] < 0.6
    assert found["short frac"] < 0.05
    assert "found s" not in found


def test_estimated_needs_are_found_and_close(benchmarks: Any, tmp_path: Path) -> None:
    run = paced(tmp_path / "found", f"{PAIRED}/NEEDS=discovered")
    found = benchmarks.needs.live_needs(run, jobs(), ((0.0, 1.0),), estimates=True)
    assert found["need off by"] < 1.4
    assert found["found frac"] == 1.0
    assert 0.0 < found["found s"] <= 15.0
    benchmarks.needs.keep_run(run, tmp_path / "kept/1")
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"1.events.jsonl.xz", "1.guests.lp.xz"}


def test_a_need_that_falls_is_judged_by_what_is_needed_then(benchmarks: Any, tmp_path: Path) -> None:
    run = paced(tmp_path / "falls", f"{PAIRED}/NEEDS=discovered", "1,0.4@0.5")
    found = benchmarks.needs.live_needs(run, jobs(), benchmarks.needs.phases_of("1,0.4@0.5"), estimates=True)
    assert found["need off by"] < 1.5
    assert found["found frac"] > 0.8


def test_progress_is_measured_between_two_times(benchmarks: Any, tmp_path: Path) -> None:
    two = [Job(1, 0.0, 1, 1.0, 0.2, 120.0), Job(2, 0.0, 1, 0.5, 0.2, 120.0)]
    run = dry_run(tmp_path / "run", PAIRED, two, time_scale=1)
    rates = benchmarks.services.progress(run, 10.0, 60.0)
    assert rates[1] / rates[2] == pytest.approx(2.0, rel=0.05)


def test_waits_for_room_are_read(benchmarks: Any, tmp_path: Path) -> None:
    moves = [Job(n, 5.0 * n, 1, 1.0, 0.45, 60.0) for n in range(1, 7)]
    run = dry_run(tmp_path / "run", "GreedyPM */per/OPT=MIN/KNOWS=cost", moves, time_scale=1, period_s=10,
                  overheads="constant:1")  # fmt: skip
    found = benchmarks.price.prices(run)
    assert found["waited s"] == pytest.approx(0.0, abs=0.01), "nodes that do nothing save at once"
    assert found.keys() == {"waited s", "felt to known"}
