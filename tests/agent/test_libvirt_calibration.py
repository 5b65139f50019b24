"""A calibration on real virtual machines whose QEMU is killed in the middle of a trial."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest
from support.deadlines import PATIENT_DEADLINES
from support.killed_guests import Killed, check_killed
from support.libvirt_box import libvirt_box, needs_hypervisor

from testbed.lab.bring_up import live_lab
from testbed.scenario.schema import load_scenario
from testbed.study.calibration.session import Order, calibrate

pytestmark = [needs_hypervisor, pytest.mark.slow, pytest.mark.long]


def kill(guest: str) -> None:
    """Kill the QEMU of a guest."""
    (emulator,) = [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        # a zombie has no command line any more
        if process.info["name"].startswith("qemu-system")
        and any(guest in word for word in process.info["cmdline"] or ())
    ]
    emulator.send_signal(signal.SIGKILL)


def test_a_killed_virtual_machine_costs_its_trial_and_no_other(tmp_path: Path) -> None:
    name = f"t{os.getpid():x}c"
    with libvirt_box(name, tmp_path):
        scenario = load_scenario(tmp_path / f"{name}.toml").model_copy(update={"deadlines": PATIENT_DEADLINES})
        killed = Killed(kill)
        order = Order(scenario, (killed,), killed.trials, seed=1, quick=True, nodes=("a",))
        trials = asyncio.run(calibrate(order, tmp_path / "trials", live_lab, lambda _: None, lambda _: None))
    check_killed(trials, killed.trials)
