"""Guests of real processes that are killed in the middle of a trial: the calibration keeps the others and goes on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil
import pytest
from support.deadlines import PATIENT
from support.live import until

from testbed.calibration.bench import Bench
from testbed.calibration.session import Order, calibrate
from testbed.calibration.specimen import Specimen
from testbed.control.labs import live_lab
from testbed.control.scenario import check_scenario

pytestmark = pytest.mark.slow
PROGRAM = ["-P", "-m", "node_agent.programs"]


def programs() -> list[psutil.Process]:
    """Return the programs of guests below this process: agents start them."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[1:] == PROGRAM and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill() -> None:
    """Kill the only guest that there is, as its hypervisor's process may be."""
    (program,) = programs()
    program.send_signal(signal.SIGKILL)


class Interrupted:
    """An experiment in which every other trial loses its guest, each at another moment."""

    name = "interrupted"
    about = "guests that are killed"
    MOMENTS = ("working", "watched", "held", "restored")

    def __init__(self) -> None:
        self.calls = 0

    def why_not(self, _lab: object) -> str:
        return ""

    def conditions(self, _lab: object, *, quick: bool) -> list[dict[str, object]]:
        return [{"quick": int(quick)}]

    def expected_s(self, _condition: object, _lab: object) -> float:
        return 1.0

    async def run(self, bench: Bench, _condition: object) -> list[dict[str, float]]:
        at = self.MOMENTS[self.calls // 2] if self.calls % 2 else ""
        self.calls += 1
        async with bench.specimen(memory_mib=64, cpu_cores=0.5) as guest:
            await guest.start()
            if at == "working":
                kill()
            await guest.edge()
            await self.watch(bench, guest, killed=at == "watched")
            await guest.hold()
            if at == "held":
                kill()
            await guest.release()
            saved = await guest.save()
            await guest.restore()
            if at == "restored":
                kill()
                await until(lambda: not programs(), "end of a killed program")  # nothing else looks at it
        return [{"save_s": saved.save_s}]

    async def watch(self, bench: Bench, guest: Specimen, *, killed: bool) -> None:
        watching = asyncio.create_task(bench.watch(guest.nodes[0], guest.guests, 0.05, 60.0 if killed else 0.5))
        if killed:
            kill()
        await watching


def test_a_guest_that_is_killed_costs_its_trial_and_no_other(tmp_path: Path) -> None:
    table = {
        "name": "deaths", "lab": "deaths", "policy": "FCFS", "workload": {}, "broker": {"address": "embedded"},
        "deadlines": PATIENT, "nodes": [{"name": "node-a", "cpus": 1.0, "memory_mib": 320}],
    }  # fmt: skip
    experiment = Interrupted()
    order = Order(check_scenario(table, Path("deaths.toml")), (experiment,), 2 * len(experiment.MOMENTS) + 1, 1, True)
    lines: list[str] = []
    trials = asyncio.run(calibrate(order, tmp_path / "trials", live_lab, lines.append, lambda _step: None))
    assert [outcome.error is None for outcome in trials.outcomes] == [True, *[False, True] * len(experiment.MOMENTS)]
    for outcome in trials.failed():
        assert "failed: it ended by itself" in outcome.error
        assert "SIGKILL" in outcome.error or "signal 9" in outcome.error
        assert outcome.observations == ()
    assert all(outcome.observations[0]["save_s"] > 0 for outcome in trials.of("interrupted"))
    assert programs() == []
