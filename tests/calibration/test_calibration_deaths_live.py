"""Real processes are killed in the middle of a trial: the calibration keeps the other trials and continues."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil
import pytest
from support.deadlines import PATIENT
from support.killed_guests import Killed, check_killed

from testbed.lab.bring_up import live_lab
from testbed.scenario.schema import check_scenario
from testbed.study.calibration.session import Order, calibrate

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


def kill(_guest: str) -> None:
    """Kill the only guest."""
    (program,) = programs()
    program.send_signal(signal.SIGKILL)


@pytest.mark.long
def test_a_guest_that_is_killed_costs_its_trial_and_no_other(tmp_path: Path) -> None:
    table = {
        "name": "deaths", "lab": "deaths", "policy": "FCFS", "workload": {}, "broker": {"address": "embedded"},
        "deadlines": PATIENT, "nodes": [{"name": "node-a", "cpus": 1.0, "memory_mib": 320}],
    }  # fmt: skip
    killed = Killed(kill)
    order = Order(check_scenario(table, Path("deaths.toml")), (killed,), killed.trials, seed=1, quick=True)
    trials = asyncio.run(calibrate(order, tmp_path / "trials", live_lab, lambda _: None, lambda _: None))
    check_killed(trials, killed.trials)
    assert programs() == []
