"""Experiments on guests that start, stop, are saved and transferred: with real processes."""

from __future__ import annotations

import asyncio
from math import isfinite, prod
from pathlib import Path

import pytest
from support.deadlines import PATIENT
from support.live import HANG_S

from testbed.bus.messages import ListGuests
from testbed.lab.job import LabJob
from testbed.lab.opening import open_lab
from testbed.scenario.schema import check_scenario
from testbed.study.calibration.experiment import LabFacts
from testbed.study.calibration.registry import find_experiments

NAMES = ("enactment", "start", "beside", "save-restore", "mpi-save-restore", "transfer")


def smallest(condition):
    """Order conditions by their demands; cold ones come before warm ones."""
    amounts = [condition.get(name, 1) for name in ("memory_mib", "concurrent", "guests", "tasks")]
    return prod(amounts), condition.get("cache", "")


@pytest.fixture
def edges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Return the samples of progress that the experiments take, as (time, units)."""
    found: list[tuple[float, int]] = []
    edge = LabJob.edge

    async def note(self: LabJob) -> tuple[float, int]:
        clock = asyncio.get_running_loop().time
        begin_s = clock()
        found.append(await edge(self))
        assert begin_s <= found[-1][0] <= clock()
        return found[-1]

    monkeypatch.setattr(LabJob, "edge", note)
    return found


@pytest.mark.slow
def test_experiments_on_real_processes(tmp_path, edges):
    table = {
        "name": "moves",
        "lab": "moves",
        "policy": "GreedyPM */per/OPT=MIN/MINVT=600",
        "workload": {},
        "broker": {"address": "embedded"},
        "deadlines": PATIENT,
        "nodes": [{"name": name, "cpus": 1.0, "memory_mib": 320} for name in ("node-a", "node-b")],
    }
    scenario = check_scenario(table, Path("moves.toml"))
    seen = {}

    async def main():
        loop = asyncio.get_running_loop()
        async with open_lab(scenario, folder=tmp_path) as lab:
            facts = LabFacts(scenario, lab.facts)
            for experiment in find_experiments(NAMES):
                assert experiment.why_not(facts) == ""
                conditions = experiment.conditions(facts, quick=False)
                moved = [condition for condition in conditions if condition.get("moved")]
                condition = min(moved or conditions, key=smallest)
                edges.clear()
                begin_s = loop.time()
                observations = await experiment.trial(lab, condition)
                seen[experiment.name] = (condition, observations, loop.time() - begin_s, tuple(edges))
                for node in range(2):
                    assert (await lab.fleet.call(node, ListGuests(), HANG_S))["guests"] == [], experiment.name
            (live,) = find_experiments(["live-migration"])
            assert "capability 'live'" in live.why_not(facts)

    asyncio.run(main())
    for _, observations, elapsed_s, _ in seen.values():
        for one in observations:
            assert all(isfinite(value) for value in one.values())
            assert all(
                0.0 <= value < elapsed_s for name, value in one.items() if name.endswith("_s") and name != "felt_s"
            )
    for name in ("save-restore", "mpi-save-restore"):
        condition, (one,), _, edges_of_it = seen[name]
        # write and sync are each of the slowest task, but the two tasks may differ
        parts_s = one["write_reported_s"], one["sync_reported_s"]
        rest_s = sum(parts_s) if condition.get("tasks", 1) == 1 else max(parts_s)
        assert one["hold_s"] + rest_s <= one["save_s"] + 0.01
        assert one["penalty_s"] == pytest.approx(one["save_s"] + one["restore_s"] + one["first_progress_s"])
        check_felt(one, edges_of_it)
        assert 0.0 < one["image_mib"] < condition["memory_mib"] * condition.get("tasks", 1)
        assert 0.0 <= one["cached_frac"] <= 1.0
    assert seen["mpi-save-restore"][0]["moved"] == 1
    assert seen["mpi-save-restore"][1][0]["pause_s"] > 0.0
    moved_mib, saved_mib = (seen[name][1][0]["image_mib"] for name in ("transfer", "save-restore"))
    assert seen["transfer"][0]["memory_mib"] == seen["save-restore"][0]["memory_mib"]
    assert 0.5 * saved_mib < moved_mib < seen["transfer"][0]["memory_mib"]
    # each program fills memory in whole MiB above its own use, which may vary by a page
    assert moved_mib - saved_mib == pytest.approx(round(moved_mib - saved_mib), abs=0.01)


def check_felt(one, edges_of_it):
    """Assert that the job progressed before the interruption and continued from there, and that `felt_s` follows.

    The distance of `felt_s` from the interruption's cost depends more on the machine than on the experiment, so
    test_experiments_moves.py compares it with known costs in virtual time.
    """
    (begin_s, begin_units), (from_s, from_units), (to_s, to_units) = edges_of_it
    assert begin_units < from_units < to_units, "a restored job continues from the point of its save"
    rate = (from_units - begin_units) / (from_s - begin_s)
    away_s = one["penalty_s"] + one["pause_s"]
    assert away_s < to_s - from_s, "all of the interruption lies between the two moments"
    assert one["felt_s"] == pytest.approx(to_s - from_s - (to_units - from_units) / rate - one["pause_s"])
