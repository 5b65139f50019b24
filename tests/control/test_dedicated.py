"""Measurement of dedicated rates before a run, with null drivers in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.deadlines import PATIENT

from testbed import Lab, open_lab
from testbed.bus.drivers import traits_of
from testbed.bus.telemetry import Telemetry
from testbed.control.dedicated import Dedicated, Shape, measure, representatives
from testbed.lab.bring_up import dry_lab
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.schema import check_scenario
from testbed.scheduling.workload.jobs import Job

SERIAL, PARALLEL = Job(1, 0.0, 1, 0.5, 0.1, 100.0), Job(2, 0.0, 2, 0.5, 0.1, 100.0)
SPEEDS = {"a": [400.0, 1000.0, 1000.0, 1000.0], "b": [2000.0]}  # probes of node a; b is idle while a works alone


def measured(*jobs: Job, **programs: float) -> tuple[Dedicated, float]:
    """Return what is measured of the jobs while agents probe, and the seconds that it took."""
    nodes = [{"name": name, "cpus": 1.0, "memory_mib": 1000} for name in SPEEDS]
    table = {"name": "l", "policy": "FCFS", "workload": {}, "nodes": nodes, "deadlines": PATIENT, "programs": programs}

    async def probes(lab: Lab) -> None:
        for turn in range(10**6):
            for node in lab.fleet.nodes:
                speeds = SPEEDS[node.name]
                sample = Telemetry(node.name, *[0] * 9, core_units_per_s=speeds[turn % len(speeds)])
                lab.fleet.on_telemetry(node, sample, 0)
            await asyncio.sleep(0.25)

    async def main() -> tuple[Dedicated, float]:
        async with open_lab(check_scenario(table, Path("lab.toml")), bring_up=dry_lab) as lab:
            hear = lab.fleet.on_telemetry
            probing = asyncio.create_task(probes(lab))
            begin_s = asyncio.get_running_loop().time()
            found = await measure(lab, representatives(jobs, 2))
            took_s = asyncio.get_running_loop().time() - begin_s
            probing.cancel()
            assert lab.fleet.on_telemetry == hear
            return found, took_s

    return run_in_virtual_time(main())


def test_only_nodes_at_work_tell_the_core_speed_and_interrupted_probes_do_not_count() -> None:
    assert measured(SERIAL)[0].probed_units_per_s == 1000.0
    assert 1000.0 < (measured(PARALLEL)[0].probed_units_per_s or 0.0) <= 2000.0


def test_the_rate_is_that_of_a_core_whatever_the_need_of_the_job() -> None:
    found, _took_s = measured(SERIAL, PARALLEL)
    assert found.rates.keys() == {Shape.of(SERIAL), Shape.of(PARALLEL)}
    assert len({round(rate) for rate in found.rates.values()}) == 1


def test_virtual_machines_are_measured_for_longer_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    _found, short_s = measured(SERIAL)
    _found, own_s = measured(SERIAL, calibration_s=10.0)
    monkeypatch.setattr("testbed.control.dedicated.traits_in", lambda _facts: traits_of("libvirt"))
    _found, long_s = measured(SERIAL)
    assert long_s - short_s == pytest.approx(20.0 - 2.5, abs=1.0)
    assert own_s - short_s == pytest.approx(10.0 - 2.5, abs=1.0)
    assert measured(SERIAL, calibration_s=10.0)[1] == pytest.approx(own_s, abs=1.0)
