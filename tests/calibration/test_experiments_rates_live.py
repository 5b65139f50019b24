"""The experiments on rates with real processes under real caps, once each.

Properties of every machine are asserted; the accuracy of rates is judged only on a machine with idle CPU time.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.deadlines import PATIENT
from support.live import HANG_S

from testbed.errors import RunError
from testbed.lab.lab import Lab
from testbed.lab.opening import open_lab
from testbed.lab.outcomes import Watched
from testbed.scenario.schema import check_scenario
from testbed.study.calibration.experiment import LabFacts
from testbed.study.calibration.registry import find_experiments
from testbed.study.calibration.values import Observation
from testbed.study.calibration.watched import RESPONSE_WINDOW_S
from testbed.testing.accuracy import Accuracy, Window

pytestmark = pytest.mark.slow

NODES = [{"name": "node-a", "memory_mib": 512}, {"name": "node-b", "memory_mib": 512}]
SMALL = {
    "cap_accuracy": {"cap_frac": 0.1, "vcpus": 1, "longest_window_s": 1.0},
    "cap_response": {"from_frac": 0.2, "to_frac": 0.05, "vcpus": 1},
    "isolation": {"cap_frac": 0.05, "neighbours": 1},
    "virtualisation": {"program": "eatcpu", "where": "capped-guest", "ranks": 1, "iteration_s": 0.02, "cap_frac": 0.1},
}


DISTURBED = re.compile("the agent could not sample in time|its CPU use followed none of 3 changes")
LEAST_DEDICATED_FRAC, MOST_DRIFT_FRAC = 0.95, 0.15  # of the job's own measurements at yield 1
MOST_DISTURBED = 3  # trials on a machine with idle CPU time, which may have paused in one of them


async def undisturbed(trial: Callable[[], Awaitable[list[Observation]]]) -> list[Observation]:
    """Repeat a trial that gives no result because the agent or the guest did not get its CPU time."""
    hangs_s, refused = time.monotonic() + HANG_S, 0
    while True:
        window = Window()
        try:
            return await trial()
        except RunError as error:
            refused += not window.busy()
            if not DISTURBED.search(str(error)) or refused == MOST_DISTURBED or time.monotonic() > hangs_s:
                raise


@pytest.fixture
def watches(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """Return the samples of guests that the experiments receive."""
    found: list[Watched] = []
    watch = Lab.watch

    async def note(self: Lab, *given: object) -> Watched:
        found.append(await watch(self, *given))
        return found[-1]

    monkeypatch.setattr(Lab, "watch", note)
    return found


def test_each_experiment_measures_real_processes(tmp_path, monkeypatch, watches, accuracy: Accuracy):
    monkeypatch.setattr("testbed.study.calibration.experiments.proportionality.YIELDS", (0.1, 0.5, 1.0))
    table = {"name": "rates", "policy": "Greedy */OPT=MIN", "workload": {}, "nodes": NODES, "deadlines": PATIENT}
    window = Window()
    changes = []

    async def main():
        found = {}
        async with open_lab(check_scenario(table, Path("rates.toml")), folder=tmp_path) as lab:
            facts = LabFacts(lab.scenario, lab.facts)

            async def run(name, condition):
                (experiment,) = find_experiments([name.replace("_", "-")])
                assert experiment.why_not(facts) == ""
                return await undisturbed(lambda: experiment.trial(lab, condition))

            for name, condition in SMALL.items():
                found[name] = await run(name, condition)
                if name == "cap_response":
                    changes.extend(watches[-1].cap_changes)
            found["native"] = await run("virtualisation", {**SMALL["virtualisation"], "where": "native", "cap_frac": 1})
            (proportionality,) = find_experiments(["proportionality"])
            kind = "parallel" if facts.able("mpi") else "serial"
            kinds = [one for one in proportionality.conditions(facts, quick=True) if one["kind"] == kind]
            found["proportionality"] = await run("proportionality", kinds[0])
            left = [await lab.ping(node) for node in (0, 1)]
            assert all(round_trip_s > 0 for round_trip_s in left)
            return found

    found = asyncio.run(main())
    windows = {observation["window_s"]: observation for observation in found["cap_accuracy"]}
    assert set(windows) == {0.1, 1.0}
    assert windows[1.0]["read_back_cores"] == pytest.approx(0.1, abs=0.002)
    accuracy.check("cores used under a cap of 0.1", windows[1.0]["used_cores"], 0.07, 0.13, window)
    check_responses(found["cap_response"], changes, accuracy, window)
    (isolated,) = found["isolation"]
    assert isolated["units_per_s"] > 0
    assert isolated["relative_rate"] == pytest.approx(isolated["units_per_s"] / isolated["alone_units_per_s"])
    check_virtualisation(found["virtualisation"], found["native"], accuracy, window)
    check_proportionality(found["proportionality"], accuracy, window)


def check_responses(observations, changes, accuracy, window):
    """Assert that each response is between its change of the cap and the next one."""
    forth, back = changes[::2], changes[1::2]
    commands = {one.end_s - one.begin_s: next_one.begin_s for one, next_one in zip(forth, back, strict=True)}
    begins = {one.end_s - one.begin_s: one.begin_s for one in forth}
    assert len(begins) == 3
    for observation in observations:
        assert observation["read_back_cores"] == pytest.approx(0.05, abs=0.002)
        command_s = observation["command_s"]
        assert command_s > 0
        assert 0.0 <= observation["response_s"] <= commands[command_s] - begins[command_s] - RESPONSE_WINDOW_S
        accuracy.check("seconds of a command that sets a cap", command_s, 0.0, 1.0, window)
    accuracy.check("changes of a cap that were followed", len(observations), 3, 3, window)


def check_virtualisation(capped, native, accuracy, window):
    """Assert that a capped guest is as fast as a native task per second of CPU time, and gets a tenth of that time."""
    (capped,), (native,) = capped, native
    assert capped["need_cores"] == native["need_cores"] == 1.0
    assert min(capped["units_per_s"], capped["units_per_cpu_s"], native["units_per_s"], native["units_per_cpu_s"]) > 0
    accuracy.check("cores of the capped guest", capped["units_per_s"] / capped["units_per_cpu_s"], 0.07, 0.13, window)
    efficiency = capped["units_per_cpu_s"] / native["units_per_cpu_s"]
    accuracy.check("work in a second of CPU time, capped to native", efficiency, 0.5, 2.0, window)


@dataclass(frozen=True)
class Dedicated:
    """The state of the machine, from a job's own measurements at yield 1; relative rates are judged if these agree.

    The counters of the whole machine are no help: at yield 1 the job itself takes all CPU time of a small machine.
    """

    used_frac: float  # as a fraction of the demand of the slowest task
    drift_frac: float
    window: Window

    def busy(self) -> str:
        """Return why relative rates cannot be judged; empty if they can."""
        if self.used_frac < LEAST_DEDICATED_FRAC:
            return f"at yield 1 the job got {self.used_frac:.0%} of its cores, less than {LEAST_DEDICATED_FRAC:.0%}"
        if abs(self.drift_frac) > MOST_DRIFT_FRAC:
            return f"the dedicated rate moved by {self.drift_frac:+.0%} meanwhile, more than {MOST_DRIFT_FRAC:.0%}"
        return self.window.busy()


def check_proportionality(observations, accuracy, window):
    """Assert that all yields were measured in one job, in the trial's own order, relative to one dedicated rate."""
    by_yield = {observation["yield_frac"]: observation for observation in observations}
    assert set(by_yield) == {0.1, 0.5, 1.0}
    assert sorted(observation["place"] for observation in observations) == [0, 1, 2]
    assert len({observation["dedicated_units_per_s"] for observation in observations}) == 1
    assert len({observation["drift_frac"] for observation in observations}) == 1
    full = by_yield[1.0]
    dedicated = Dedicated(full["used_cores"] / full["need_cores"], full["drift_frac"], window)
    for yield_frac, observation in by_yield.items():
        assert observation["units_per_s"] > 0
        rate = observation["units_per_s"] / observation["dedicated_units_per_s"]
        assert observation["relative_rate"] == pytest.approx(rate)
        cores = yield_frac * observation["need_cores"]
        name = f"at yield {yield_frac}"
        accuracy.check(f"cores {name}", observation["used_cores"], 0.5 * cores, 1.3 * cores + 0.02, dedicated)
        accuracy.check(f"relative rate {name}", rate, 0.4 * yield_frac, 1.6 * yield_frac, dedicated)
