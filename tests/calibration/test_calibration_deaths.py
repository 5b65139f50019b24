"""Guests that die in the middle of a trial: the trial fails, earlier trials are kept, and the calibration continues."""

from __future__ import annotations

import asyncio
import random
import re

import pytest
from support.calibration.starts import Starts

from node_agent.agent import Agent
from node_agent.drivers.null import NullDriver
from node_agent.drivers.protocol import DriverError, DriverEvent
from testbed.bus.messages import DropImage, Stop
from testbed.errors import RunError
from testbed.lab.bring_up import dry_lab
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.schema import load_lab
from testbed.study.calibration.experiment import Experiment
from testbed.study.calibration.registry import find_experiments
from testbed.study.calibration.session import MOST_FAILURES, Order, calibrate
from testbed.study.calibration.trials import read_trials

DIED = "its machine is gone: QEMU ended"
MOMENTS = 12
AT_ONCE = ("enactment", "start", "beside", "transfer")  # their commands take no time without guests
WITH_GUESTS = (
    "enactment", "start", "beside", "save-restore", "mpi-save-restore", "transfer", "live-migration", "cap-accuracy",
    "cap-response", "proportionality", "isolation", "virtualisation",
)  # fmt: skip


class Once(Experiment):
    """An experiment with one condition; `disturb` runs concurrently with its second trial."""

    def __init__(self, experiment, disturb):
        self.name, self.about = experiment.name, experiment.about
        self.why_not, self.expected_s = experiment.why_not, experiment.expected_s
        self._experiment = experiment
        self._disturb = disturb
        self.calls = 0

    def conditions(self, lab, *, quick):
        return self._experiment.conditions(lab, quick=quick)[-1:]

    def quantities(self, trials):
        return self._experiment.quantities(trials)

    async def trial(self, lab, condition):
        self.calls += 1
        if self.calls != 2:
            return await self._experiment.trial(lab, condition)
        disturbing = asyncio.create_task(self._disturb())
        try:
            return await self._experiment.trial(lab, condition)
        finally:
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "Two-Nodes.toml"
    nodes = "".join(f'[[nodes]]\nname = "{name}"\nmemory_mib = 1000\n' for name in ("node-a", "node-b"))
    path.write_text(nodes)
    return load_lab(path)


@pytest.fixture
def drivers(monkeypatch):
    """Return the drivers that were opened."""
    found = []
    opened = NullDriver.open

    async def note(self, *arguments):
        found.append(self)
        return await opened(self, *arguments)

    monkeypatch.setattr(NullDriver, "open", note)
    return found


def die(drivers, draw):
    """End one of the guests, as if the QEMU of its virtual machine was killed; return its name in a list."""
    there = [(driver, guest) for driver in drivers for guest in sorted(driver._guests)]
    for driver, guest in draw.sample(there, min(1, len(there))):
        found = driver._guests.pop(guest)
        if found.end is not None:
            found.end.cancel()
        driver._tell(DriverEvent(guest, "failed", 0, {"reason": DIED}))
        return [guest]
    return []


def run(scenario, place, *experiments, blocks=3, extras=""):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("node_agent.drivers.null.NullDriver", lambda *_extras: NullDriver(extras))
        order = Order(scenario, experiments, blocks, 1, quick=True)
        return run_in_virtual_time(calibrate(order, place, dry_lab, lambda _line: None, lambda _step: None))


class Clock:
    """Moments of the second trial: virtual seconds since its begin, or its commands that agents have executed."""

    def __init__(self, monkeypatch, unit):
        self.unit, self.length, self.act = unit, 0.0, lambda: None
        self._running, self._at, self._count = False, None, 0
        perform = Agent.perform

        async def count(agent, action):
            found = await perform(agent, action)
            if self._running and not isinstance(action, DropImage | Stop):  # these follow the end of the trial
                self._count += 1
                if unit == "commands" and self._count == self._at:
                    self.act()
            return found

        monkeypatch.setattr(Agent, "perform", count)

    async def act_at(self, frac, act):
        """Act once at a fraction of the trial's length, and measure that length until cancelled."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        self._running, self._count, self.act = True, 0, act
        self._at = max(1, round(frac * self.length))
        try:
            if self.unit == "seconds" and frac:
                await asyncio.sleep(frac * self.length)  # virtual seconds
                act()
            await asyncio.Event().wait()
        finally:
            self._running = False
            if not frac:
                self.length = loop.time() - begin_s if self.unit == "seconds" else self._count


@pytest.mark.parametrize("unit", ["seconds", "commands"])
@pytest.mark.parametrize("name", WITH_GUESTS)
def test_a_trial_in_which_a_guest_dies_has_failed_at_any_moment(scenario, tmp_path, drivers, monkeypatch, name, unit):
    extras = "whole,live" if name == "live-migration" else ""
    (experiment,) = find_experiments([name])
    clock = Clock(monkeypatch, unit)
    calm = Once(experiment, lambda: clock.act_at(0, lambda: None))
    assert run(scenario, tmp_path / "calm", calm, extras=extras).failed() == []
    killed = 0
    for moment in range(1, MOMENTS):
        drivers.clear()
        victims = []

        def act(victims=victims, moment=moment):
            victims += die(drivers, random.Random(moment))  # noqa: S311  # the same at each run of the test

        disturbed = Once(experiment, lambda act=act, moment=moment: clock.act_at(moment / MOMENTS, act))
        trials = run(scenario, tmp_path / f"at-{moment}", disturbed, extras=extras)
        assert disturbed.calls == 3
        assert [outcome.error is None for outcome in trials.outcomes] == [True, not victims, True], (moment, victims)
        killed += len(victims)
        for outcome in trials.failed():
            assert f"{victims[0]} failed: {DIED}" in outcome.error
            assert outcome.observations == ()
    assert killed > 0 or (unit == "seconds" and name in AT_ONCE)


def test_a_lab_that_can_have_no_guest_any_more_ends_the_calibration_which_goes_on_later(
    scenario, tmp_path, monkeypatch
):
    starts, start = Starts(), NullDriver.start

    async def refuse(self, spec, cap_cores):
        if starts.calls > 2:
            raise DriverError("cannot start QEMU: out of memory")
        await start(self, spec, cap_cores)

    monkeypatch.setattr(NullDriver, "start", refuse)
    with pytest.raises(RunError) as ended:
        run(scenario, tmp_path / "c", starts, blocks=9)
    assert re.fullmatch(
        rf"{MOST_FAILURES} trials failed one after the other, the last: node-a: start: failed: cannot start QEMU: out "
        rf"of memory; the trials so far are in \S*/c/trials\.jsonl: call again to go on",
        str(ended.value),
    )
    assert ended.value.exit_code == 1
    kept = read_trials(tmp_path / "c")
    assert [outcome.error is None for outcome in kept.outcomes] == [True, True, False, False, False]
    monkeypatch.setattr(NullDriver, "start", start)
    again = Starts()
    trials = run(scenario, tmp_path / "c", again, blocks=9)
    assert again.calls == 7
    assert trials.failed() == []
    assert trials.outcomes[:5] == kept.outcomes


def test_a_node_that_goes_away_ends_the_calibration_which_goes_on_later(scenario, tmp_path, monkeypatch):
    agents, ran = [], Agent.run

    async def note(self):
        agents.append(self)
        await ran(self)

    monkeypatch.setattr(Agent, "run", note)

    class Leaves(Starts):
        async def trial(self, lab, condition):
            found = await super().trial(lab, condition)
            if self.calls == 2:
                agents[0].stop()
                while lab.fleet.nodes[0].online:  # noqa: ASYNC110  # virtual time
                    await asyncio.sleep(0.1)
            return found

    with pytest.raises(RunError) as ended:
        run(scenario, tmp_path / "c", Leaves(), blocks=4)
    assert re.fullmatch(
        r"nodes offline: node-a \(its agent ended\); the trials so far are in \S*/c/trials\.jsonl: call again to go on",
        str(ended.value),
    )
    assert len(read_trials(tmp_path / "c").of("starts")) == 2
    assert len(run(scenario, tmp_path / "c", Starts(), blocks=4).of("starts")) == 4
