"""The experiments on rates with real processes under real caps, once each. Bounds are wide: machines are busy."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path

import pytest

from testbed.calibration.bench import open_bench
from testbed.calibration.experiment import LabFacts
from testbed.control.labs import live_lab
from testbed.control.scenario import check_scenario

pytestmark = pytest.mark.slow

NODES = [{"name": "node-a", "memory_mib": 512}, {"name": "node-b", "memory_mib": 512}]
SMALL = {
    "cap_accuracy": {"cap_frac": 0.1, "vcpus": 1, "longest_window_s": 1.0},
    "cap_response": {"from_frac": 0.2, "to_frac": 0.05, "vcpus": 1},
    "isolation": {"cap_frac": 0.05, "neighbours": 1},
    "virtualisation": {"program": "eatcpu", "where": "capped-guest", "ranks": 1, "iteration_s": 0.02, "cap_frac": 0.1},
}


def test_each_experiment_measures_real_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("testbed.calibration.experiments.proportionality.YIELDS", (0.1, 0.5))
    table = {"name": "rates", "policy": "Greedy */OPT=MIN", "workload": {}, "nodes": NODES}

    async def main():
        found = {}
        async with open_bench(check_scenario(table, Path("rates.toml")), tmp_path, live_lab) as bench:
            lab = LabFacts(bench.scenario, bench.facts)

            async def run(name, condition):
                experiment = importlib.import_module(f"testbed.calibration.experiments.{name}").EXPERIMENT
                assert experiment.why_not(lab) == ""
                return await experiment.run(bench, condition)

            for name, condition in SMALL.items():
                found[name] = await run(name, condition)
            found["native"] = await run("virtualisation", {**SMALL["virtualisation"], "where": "native", "cap_frac": 1})
            conditions = importlib.import_module(
                "testbed.calibration.experiments.proportionality"
            ).EXPERIMENT.conditions
            kinds = [
                c for c in conditions(lab, quick=True) if c["kind"] == ("parallel" if lab.able("mpi") else "serial")
            ]
            found["proportionality"] = await run("proportionality", kinds[0])
            left = [await bench.ping(node) for node in (0, 1)]
            assert all(round_trip_s > 0 for round_trip_s in left)
            return found

    found = asyncio.run(main())
    windows = {observation["window_s"]: observation for observation in found["cap_accuracy"]}
    assert set(windows) == {0.1, 1.0}
    assert windows[1.0]["read_back_cores"] == pytest.approx(0.1, abs=0.002)
    assert 0.02 < windows[1.0]["used_cores"] < 0.13, windows
    for observation in found["cap_response"]:
        assert observation["read_back_cores"] == pytest.approx(0.05, abs=0.002)
        assert 0.0 < observation["command_s"] < 1.0
        assert 0.0 <= observation["response_s"] < 1.13
    (isolated,) = found["isolation"]
    assert isolated["units_per_s"] > 0
    assert isolated["relative_rate"] == pytest.approx(isolated["units_per_s"] / isolated["alone_units_per_s"])
    (capped,), (native,) = found["virtualisation"], found["native"]
    assert 0 < capped["units_per_s"] / capped["units_per_cpu_s"] < 0.13  # cores
    assert native["units_per_s"] > 0
    assert 0.1 < capped["units_per_cpu_s"] / native["units_per_cpu_s"] < 10
    by_yield = {observation["yield_frac"]: observation for observation in found["proportionality"]}
    assert set(by_yield) == {0.1, 0.5}
    for yield_frac, observation in by_yield.items():
        assert observation["units_per_s"] > 0
        assert observation["used_cores"] < 1.3 * yield_frac * observation["need_cores"] + 0.02
