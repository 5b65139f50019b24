"""The accuracy of shares: true figures and flaws on nodes with computed guests, and one run with real guests."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from support.deadlines import PATIENT

from node_agent.drivers.null import NullDriver
from testbed.bus.messages import NodeFacts
from testbed.bus.traits import DriverTraits
from testbed.errors import RunError
from testbed.lab.bring_up import dry_lab
from testbed.lab.opening import open_lab
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.schema import check_scenario
from testbed.study.calibration.experiment import LabFacts
from testbed.study.calibration.experiments.share_accuracy import WEIGHTS, ShareAccuracy, window_error
from testbed.study.calibration.from_trials import calibrate_from
from testbed.study.calibration.trials import Outcome, Trials
from testbed.testing.accuracy import Accuracy, Window

NODE_CORES = 0.8
EXPERIMENT = ShareAccuracy()


def scenario(memory_mib=1000, cpus=NODE_CORES, cpu_set=(0,), **changes):
    node = {"name": "node-a", "cpus": cpus, "memory_mib": memory_mib, "cpu_set": list(cpu_set)}
    table = {"name": "shares", "policy": "Greedy */OPT=MIN", "workload": {}, "nodes": [{**node, **changes}]}
    return check_scenario({**table, "deadlines": PATIENT}, Path("shares.toml"))


class Sharing(NullDriver):
    """Guests that demand the whole node get it by their shares; other load takes `foreign_frac` of the CPU."""

    foreign_frac = 0.0

    def part(self, share_cores):
        return share_cores

    async def start(self, spec, cap_cores):
        await super().start(spec, cap_cores)
        await self._divide()

    async def stop(self, guest):
        await super().stop(guest)
        await self._divide()

    async def set_share(self, guest, share_cores):
        raise AssertionError("shares must not move here")

    async def _divide(self):
        parts = {name: self.part(found.spec.share_cores) for name, found in self._guests.items()}
        for name, part in parts.items():
            await self.set_cap(name, NODE_CORES * (1 - self.foreign_frac) * part / sum(parts.values()))

    def sample(self):
        shares = {name: found.spec.share_cores for name, found in self._guests.items()}
        return [msgspec.structs.replace(one, share_cores=shares[one.guest]) for one in super().sample()]


class Crowded(Sharing):
    """Half of the CPU goes to other load."""

    foreign_frac = 0.5


class Alike(Sharing):
    """All guests get the same share for any weights, which are read back as they were set."""

    def part(self, share_cores):
        return 1.0


class Forgetful(Sharing):
    """No guest has a share in force."""

    def sample(self):
        return NullDriver.sample(self)


class Stopped(Sharing):
    """No guest gets any CPU time."""

    foreign_frac = 1.0


def in_the_dry(driver, *, quick=False, choose=lambda _condition: True):
    """Run the conditions; return an outcome for each."""

    async def main():
        found = []
        async with open_lab(scenario(), folder=Path(), bring_up=dry_lab) as lab:
            facts = LabFacts(lab.scenario, lab.facts)
            assert EXPERIMENT.why_not(facts) == ""
            for condition in filter(choose, EXPERIMENT.conditions(facts, quick=quick)):
                begin_s = asyncio.get_running_loop().time()
                observations = await EXPERIMENT.trial(lab, condition)
                assert asyncio.get_running_loop().time() - begin_s <= EXPERIMENT.expected_s(condition, facts)
                found.append(
                    Outcome(
                        trial=len(found), experiment=EXPERIMENT.name, block=0, condition=condition,
                        observations=tuple(observations),
                    )
                )  # fmt: skip
            left = await lab.guests_on(0)
        assert left == []
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("node_agent.drivers.null.NullDriver", driver)
        return run_in_virtual_time(main())


def judged(outcomes):
    """Return the calibration of three blocks of the same outcomes."""
    blocks = [
        msgspec.structs.replace(outcome, trial=3 * outcome.trial + block, block=block)
        for block in range(3)
        for outcome in outcomes
    ]
    return calibrate_from(Trials({"seed": 1, "created_unix_s": 1e9, "lab": "dry", "nodes": {}}, blocks))


def test_shares_that_are_kept_are_seen_to_be_kept():
    found = in_the_dry(Sharing)
    assert [outcome.condition["weights"] for outcome in found] == list(WEIGHTS)
    for outcome in found:
        weights = [int(part) for part in str(outcome.condition["weights"]).split(":")]
        assert [one["weight"] for one in outcome.observations] == weights
        assert [one["guest"] for one in outcome.observations] == list(range(1, len(weights) + 1))
        for one, weight in zip(outcome.observations, weights, strict=True):
            share = NODE_CORES * weight / sum(weights)
            assert one["share_cores"] == one["read_back_cores"] == pytest.approx(share)
            assert one["used_cores"] == pytest.approx(share)
            assert one["got_ratio"] == pytest.approx(1.0)
            assert one["cores_ratio"] == pytest.approx(1.0)
            assert one["p95_error_frac"] == pytest.approx(0.0, abs=1e-6)


def test_what_others_take_shows_apart_from_what_weights_do():
    for outcome in in_the_dry(Crowded, quick=True):
        for one in outcome.observations:
            assert one["got_ratio"] == pytest.approx(1.0)
            assert one["cores_ratio"] == pytest.approx(0.5)


def test_an_error_of_single_windows_is_that_of_shares_and_not_of_what_others_take():
    t_s = [0.5 * sample for sample in range(41)]
    even = [[rate * t for t in t_s] for rate in (0.2, 0.6)]
    assert window_error(t_s, even, 0, 0.25) == pytest.approx(0.0, abs=1e-9)
    slowed = [[rate * min(t, 10 + (t - 10) / 10) for t in t_s] for rate in (0.2, 0.6)]  # other load takes nine tenths
    assert window_error(t_s, slowed, 1, 0.75) == pytest.approx(0.0, abs=1e-9)
    stuck = [[0.2 * t for t in t_s], [0.6 * min(t, 10) for t in t_s]]  # alone for half of the time
    assert window_error(t_s, stuck, 0, 0.25) == pytest.approx(3.0)
    assert window_error(t_s, stuck, 1, 0.75) == pytest.approx(1.0)
    idle = [[min(t, 0) for t in t_s]] * 2
    assert window_error(t_s, idle, 0, 0.5) is None
    assert window_error([0.0, 0.5], [[0.0, 0.1]] * 2, 0, 0.5) is None  # shorter than a window


def test_weights_that_do_nothing_show():
    (outcome,) = in_the_dry(Alike, choose=lambda condition: condition["weights"] == "1:2:3:4")
    assert [one["got_ratio"] for one in outcome.observations] == pytest.approx([2.5, 1.25, 2.5 / 3, 0.625])


@pytest.mark.parametrize(("driver", "verdict"), [(Sharing, "held"), (Crowded, "held"), (Alike, "broken")])
def test_the_verdict_follows_from_the_observations(driver, verdict):
    calibration = judged(in_the_dry(driver, quick=True))
    assert calibration.assumptions["share_accuracy"].verdict == verdict
    got = {tuple(one.condition.items()): one for one in calibration.quantities if one.name == "share_got_ratio"}
    assert len(got) == 2 + 3 + 4
    last = got[("driver", "null"), ("weights", "1:2:3:4"), ("guest", 4)]
    assert last.value == pytest.approx(0.625 if driver is Alike else 1.0)
    assert (last.n, last.unit) == (3, "1")


def test_a_share_that_is_not_in_force_fails_the_trial():
    with pytest.raises(RunError, match="has no share in force on node-a"):
        in_the_dry(Forgetful, quick=True)


def test_guests_that_use_no_cpu_time_fail_the_trial():
    with pytest.raises(RunError, match="the guests used no CPU time while they were watched"):
        in_the_dry(Stopped, quick=True)


def facts(**changes):
    found = NodeFacts(
        cpus=NODE_CORES, memory_mib=1000, machine_cores=4, machine_memory_mib=4096, cpu_model="any", kernel="any",
        driver="any", capabilities=("start", "cap", "shares"), versions={}, address="", image_port=0,
        image_free_mib=10_000, guest_floor_mib=64,
    )  # fmt: skip
    return msgspec.structs.replace(found, **changes)


@pytest.mark.parametrize(
    ("node", "fact", "words"),
    [
        ({}, {}, ""),
        ({}, {"capabilities": ("start", "cap")}, r"capability 'shares'"),
        ({"cpu_set": ()}, {}, r"guests on node-a may run on 4 CPUs side by side for 0\.8 cores: expected cpu_set"),
        ({"cpu_set": (0, 1)}, {}, r"may run on 2 CPUs side by side for 0\.8 cores"),
        ({"cpu_set": (0, 1), "cpus": 2.0}, {"cpus": 2.0}, ""),
        ({"cpu_set": (), "cpus": 4.0}, {"cpus": 4.0}, ""),
        ({"cpu_set": ()}, {"traits": DriverTraits(owns_machine=True)}, ""),
        ({"cpu_set": (), "spawn": False}, {}, ""),  # the CPUs of an agent elsewhere are unknown here
        ({}, {"cpus": 0.1}, r"0\.1 cores for guests: expected 0\.2 at least"),
        ({"memory_mib": 127}, {"memory_mib": 127}, "expected room for two guests of 64 MiB"),
    ],
)
def test_a_lab_whose_guests_cannot_compete_is_told(node, fact, words):
    import re

    found = EXPERIMENT.why_not(LabFacts(scenario(**node), (facts(**fact),)))
    assert re.search(words, found)
    assert (found == "") == (words == "")


@pytest.mark.parametrize(("memory_mib", "most"), [(128, 2), (200, 3), (256, 4), (4096, 4)])
def test_as_many_guests_compete_as_a_node_has_memory_for(memory_mib, most):
    lab = LabFacts(scenario(memory_mib=memory_mib), (facts(memory_mib=memory_mib),))
    for quick in (True, False):
        counts = [str(one["weights"]).count(":") + 1 for one in EXPERIMENT.conditions(lab, quick=quick)]
        assert max(counts) == most
        assert min(counts) == 2


@pytest.mark.slow
def test_real_processes_get_what_their_weights_promise(tmp_path, accuracy: Accuracy):
    window = Window()

    async def main():
        async with open_lab(scenario(memory_mib=512), folder=tmp_path) as lab:
            why = EXPERIMENT.why_not(LabFacts(lab.scenario, lab.facts))
            if "capability 'shares'" in why:
                pytest.skip(why)
            assert why == ""
            return await EXPERIMENT.trial(lab, {"driver": "process", "weights": "1:3", "seconds": 4.0})

    one, three = asyncio.run(main())
    assert one["read_back_cores"] == pytest.approx(0.2, abs=1e-3)
    assert three["read_back_cores"] == pytest.approx(0.6, abs=1e-3)
    assert one["got_ratio"] * 0.25 + three["got_ratio"] * 0.75 == pytest.approx(1.0)
    for guest in (one, three):
        assert guest["used_cores"] == pytest.approx(guest["share_cores"] * guest["cores_ratio"])
        accuracy.check(f"got by guest {guest['guest']} over promised", guest["got_ratio"], 0.9, 1.1, window)


def test_a_calibration_without_shares_says_nothing_of_them():
    other = Outcome(trial=0, experiment="bus", block=0, condition={}, observations=({"round_trip_s": 0.001},))
    calibration = judged([other])
    assert "share_accuracy" not in calibration.assumptions
    assert "cap_accuracy" in calibration.assumptions
