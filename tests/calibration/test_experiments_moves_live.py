"""Experiments on guests that start, stop, are saved and sent: with real processes."""

from __future__ import annotations

import asyncio
from math import isfinite, prod
from pathlib import Path

import pytest

from testbed.bus.messages import ListGuests
from testbed.calibration.bench import open_bench
from testbed.calibration.experiment import LabFacts
from testbed.calibration.registry import find_experiments
from testbed.control.scenario import check_scenario

NAMES = ("enactment", "start", "save-restore", "mpi-save-restore", "transfer")
MOST_DISTURBED_S = -2.0  # what others' CPU time may take off what a job feels: testbed/calibration/experiments/felt.py


def smallest(condition):
    """Order conditions by how much they ask for; what moves or is cold comes before what is not."""
    amounts = [condition.get(name, 1) for name in ("memory_mib", "concurrent", "guests", "tasks")]
    return prod(amounts), -condition.get("moved", 0), condition.get("cache", "")


@pytest.mark.slow
def test_experiments_on_real_processes(tmp_path):
    table = {
        "name": "moves",
        "lab": "moves",
        "policy": "GreedyPM */per/OPT=MIN/MINVT=600",
        "workload": {},
        "broker": {"address": "embedded"},
        "nodes": [{"name": name, "cpus": 1.0, "memory_mib": 320} for name in ("node-a", "node-b")],
    }
    scenario = check_scenario(table, Path("moves.toml"))
    seen = {}

    async def main():
        loop = asyncio.get_running_loop()
        async with open_bench(scenario, tmp_path) as bench:
            lab = LabFacts(scenario, bench.facts)
            for experiment in find_experiments(NAMES):
                assert experiment.why_not(lab) == ""
                condition = min(experiment.conditions(lab, quick=False), key=smallest)
                begin_s = loop.time()
                observations = await experiment.run(bench, condition)
                seen[experiment.name] = (condition, observations, loop.time() - begin_s)
                for node in range(2):
                    assert (await bench.fleet.call(node, ListGuests(), 10.0))["guests"] == [], experiment.name
            (live,) = find_experiments(["live-migration"])
            assert "capability 'live'" in live.why_not(lab)

    asyncio.run(main())
    for _, observations, elapsed_s in seen.values():
        for one in observations:
            assert all(isfinite(value) for value in one.values())
            assert all(
                0.0 <= value < elapsed_s for name, value in one.items() if name.endswith("_s") and name != "felt_s"
            )
    for name in ("save-restore", "mpi-save-restore"):
        condition, (one,), elapsed_s = seen[name]
        assert one["hold_s"] + one["write_reported_s"] + one["sync_reported_s"] <= one["save_s"] + 0.01
        assert one["penalty_s"] == pytest.approx(one["save_s"] + one["restore_s"] + one["first_progress_s"])
        assert MOST_DISTURBED_S < one["felt_s"] < elapsed_s - one["pause_s"]
        assert 0.0 < one["image_mib"] < condition["memory_mib"] * condition.get("tasks", 1)
        assert 0.0 <= one["cached_frac"] <= 1.0
    assert seen["mpi-save-restore"][0]["moved"] == 1
    assert seen["mpi-save-restore"][1][0]["pause_s"] > 0.0
    assert seen["transfer"][1][0]["image_mib"] == pytest.approx(seen["save-restore"][1][0]["image_mib"], abs=0.01)
