"""The experiments on rates, on nodes with computed guests: true figures, and flaws that they must detect."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node_agent.drivers.null import UNITS_PER_CORE_S, NullDriver
from testbed.bus.messages import NodeFacts
from testbed.errors import RunError
from testbed.lab.bring_up import dry_lab
from testbed.lab.opening import open_lab
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.schema import check_scenario
from testbed.study.calibration.experiment import LabFacts
from testbed.study.calibration.from_trials import calibrate_from
from testbed.study.calibration.plan import plan
from testbed.study.calibration.registry import find_experiments
from testbed.study.calibration.trials import Outcome, Trials

NAMES = ("cap_accuracy", "cap_response", "proportionality", "isolation", "virtualisation")
EXPERIMENTS = dict(zip(NAMES, find_experiments([name.replace("_", "-") for name in NAMES]), strict=True))


def scenario(cpus=1.0, memory_mib=1000, count=2, **changes):
    table = {
        "name": "rates",
        "policy": "Greedy */OPT=MIN",
        "workload": {},
        "nodes": [{"name": f"node-{index}", "cpus": cpus, "memory_mib": memory_mib} for index in range(count)],
        **changes,
    }
    return check_scenario(table, Path("rates.toml"))


def in_the_dry(name, choose=lambda _condition: True, driver=NullDriver, quick=False, **nodes):
    """Run all chosen conditions of an experiment; return condition, observations and virtual seconds of each."""

    async def main():
        clock = asyncio.get_running_loop().time
        experiment, found = EXPERIMENTS[name], []
        async with open_lab(scenario(**nodes), folder=Path(), bring_up=dry_lab) as lab:
            facts = LabFacts(lab.scenario, lab.facts)
            assert not experiment.why_not(facts)
            for condition in experiment.conditions(facts, quick=quick):
                if choose(condition):
                    begin_s = clock()
                    observations = await experiment.trial(lab, condition)
                    took_s = clock() - begin_s
                    assert took_s <= experiment.expected_s(condition, facts)
                    assert len(observations) >= 1
                    found.append((condition, observations))
        assert found
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("node_agent.drivers.null.NullDriver", driver)
        return run_in_virtual_time(main())


# --- a node without flaws


@pytest.mark.parametrize("cpus", [0.8, 1.0, 4.0])
def test_a_cap_that_holds_is_seen_to_hold_over_every_window(cpus):
    found = in_the_dry("cap_accuracy", cpus=cpus, count=1)
    assert {observation["window_s"] for _, some in found for observation in some} == {0.1, 1.0, 10.0}
    assert min(condition["cap_frac"] for condition, _ in found) == 0.05
    for condition, some in found:
        asked = condition["cap_frac"] * condition["vcpus"]
        assert asked <= cpus
        for observation in some:
            assert observation["requested_cores"] == pytest.approx(asked)
            assert observation["used_cores"] == pytest.approx(asked)
            assert observation["read_back_cores"] == pytest.approx(asked)
            assert observation["worst_error_frac"] == pytest.approx(0.0, abs=1e-5)
            assert observation["windows"] >= 10


def test_a_new_cap_is_followed_at_once():
    found = in_the_dry("cap_response")
    assert {(c["from_frac"], c["to_frac"]) for c, _ in found} == {(0.1, 0.6), (0.6, 0.1)}
    for condition, some in found:
        assert [observation["changes"] for observation in some] == [3, 3, 3]
        for observation in some:
            assert observation["read_back_cores"] == pytest.approx(condition["to_frac"])
            assert observation["command_s"] == pytest.approx(0.0, abs=1e-3)
            assert observation["response_s"] == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_progress_is_in_proportion_to_the_yield(count):
    found = in_the_dry("proportionality", count=count)
    assert [condition["kind"] for condition, _ in found] == ["serial", *["parallel"] * (0, 2, 4)[count - 1]]
    for condition, some in found:
        assert sorted(observation["yield_frac"] for observation in some) == [0.1, 0.25, 0.5, 0.75, 1.0]
        for observation in some:
            assert observation["relative_rate"] == pytest.approx(observation["yield_frac"], rel=1e-3)
            assert observation["used_cores"] == pytest.approx(
                observation["yield_frac"] * observation["need_cores"], rel=1e-3
            )
            assert observation["drift_frac"] == pytest.approx(0.0, abs=1e-3)
        assert condition["tasks"] == (1 if condition["kind"] == "serial" else count)


def test_yields_come_in_an_order_of_each_trials_own():
    async def main():
        async with open_lab(scenario(), folder=Path(), bring_up=dry_lab) as lab:
            experiment = EXPERIMENTS["proportionality"]
            facts = LabFacts(lab.scenario, lab.facts)
            condition = experiment.conditions(facts, quick=True)[0]
            return [
                tuple(o["yield_frac"] for o in sorted(await experiment.trial(lab, condition), key=lambda o: o["place"]))
                for _ in range(4)
            ]

    assert len(set(run_in_virtual_time(main()))) > 1


def test_neighbours_cost_nothing_where_nothing_is_shared():
    found = in_the_dry("isolation")
    assert sorted(condition["neighbours"] for condition, _ in found) == [0, 1, 3]
    for _, (observation,) in found:
        assert observation["relative_rate"] == pytest.approx(1.0, rel=1e-3)
        assert observation["relative_used"] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("cpus", [0.8, 1.0, 2.0])
def test_guests_are_as_fast_as_native_tasks_and_capped_ones_half_as_fast(cpus):
    found = {
        (c["program"], c["iteration_s"], c["where"]): some[0]
        for c, some in in_the_dry("virtualisation", cpus=cpus, count=1)
    }
    assert len(found) == 12
    for program, iteration_s in (("eatcpu", 0.02), ("patterns", 0.005), ("patterns", 0.02), ("patterns", 0.08)):
        native, guest, capped = (found[program, iteration_s, where] for where in ("native", "guest", "capped-guest"))
        assert native["need_cores"] == guest["need_cores"] <= cpus / (2 if program == "patterns" else 1)
        assert guest["units_per_s"] == pytest.approx(native["units_per_s"], rel=1e-3)
        assert capped["units_per_s"] == pytest.approx(native["units_per_s"] / 2, rel=1e-3)
        for observation in (native, guest, capped):
            assert observation["units_per_cpu_s"] == pytest.approx(UNITS_PER_CORE_S, rel=1e-3)


# --- flaws that must be detected


class Leaky(NullDriver):
    """The guests use three tenths more than their caps, which read back as they were set."""

    async def set_cap(self, guest, cap_cores):
        await super().set_cap(guest, cap_cores * 1.3)
        return cap_cores


class Slow(NullDriver):
    """A new cap takes effect 300 ms after the command's end."""

    async def set_cap(self, guest, cap_cores):
        async def later():
            await asyncio.sleep(0.3)
            if guest in self._guests:
                await NullDriver.set_cap(self, guest, cap_cores)

        self.late = asyncio.get_running_loop().create_task(later())
        await asyncio.sleep(0.05)
        return cap_cores


class Deaf(NullDriver):
    """Caps are never changed."""

    async def set_cap(self, guest, cap_cores):
        return cap_cores


class Crowded(NullDriver):
    """Each guest but the first slows all work down by a tenth, at the same CPU time."""

    def _advance(self, found):
        before, cpu_before_s = found.units, found.cpu_s
        super()._advance(found)
        found.units = before + (found.cpu_s - cpu_before_s) * UNITS_PER_CORE_S * (1 - 0.1 * (len(self._guests) - 1))


class Tiring(NullDriver):
    """The longer a guest has run, the slower it is."""

    def _advance(self, found):
        before = found.units
        super()._advance(found)
        found.units = before + (found.units - before) * max(0.1, 1 - 0.05 * found.cpu_s)


def test_a_cap_that_leaks_shows_in_accuracy_and_in_progress():
    for condition, some in in_the_dry("cap_accuracy", lambda c: c["cap_frac"] < 0.8, Leaky):
        for observation in some:
            assert observation["used_cores"] == pytest.approx(1.3 * condition["cap_frac"])
            assert observation["worst_error_frac"] == pytest.approx(0.3 * condition["cap_frac"], abs=1e-5)
    ((_, some),) = in_the_dry("proportionality", lambda c: c["kind"] == "serial", Leaky)
    by_yield = {observation["yield_frac"]: observation["relative_rate"] for observation in some}
    assert by_yield[0.5] == pytest.approx(0.65, rel=1e-3)
    assert by_yield[1.0] == pytest.approx(1.0, rel=1e-3)


def test_a_cap_that_is_followed_late_shows_by_how_much():
    for _, some in in_the_dry("cap_response", driver=Slow):
        for observation in some:
            assert observation["command_s"] == pytest.approx(0.05, abs=0.005)
            assert 0.25 <= observation["response_s"] <= 0.33


def test_a_cap_that_is_not_followed_fails_the_trial():
    with pytest.raises(RunError, match=r"its CPU use followed none of 3 changes: expected 0\.6 cores, the new cap"):
        in_the_dry("cap_response", driver=Deaf)


def test_neighbours_that_slow_a_guest_show_apart_from_its_share():
    found = {c["neighbours"]: some[0] for c, some in in_the_dry("isolation", driver=Crowded)}
    for neighbours, observation in found.items():
        assert observation["relative_rate"] == pytest.approx(1 - 0.1 * neighbours, rel=5e-3)
        assert observation["relative_used"] == pytest.approx(1.0, rel=1e-3)


def test_a_job_that_slows_down_by_itself_shows_as_drift():
    ((_, some),) = in_the_dry("proportionality", lambda c: c["kind"] == "serial", Tiring)
    assert all(observation["drift_frac"] < -0.05 for observation in some)


# --- fits of the observations


@pytest.mark.parametrize(
    ("driver", "cap_accuracy", "linearity"), [(NullDriver, "held", "held"), (Leaky, "broken", "broken")]
)
def test_verdicts_follow_from_the_observations(driver, cap_accuracy, linearity):
    outcomes = []
    for name in ("cap_accuracy", "proportionality", "isolation"):
        for _ in range(3):
            outcomes += [
                Outcome(
                    trial=len(outcomes) + place, experiment=EXPERIMENTS[name].name, block=place, condition=condition,
                    observations=tuple(observations),
                )
                for place, (condition, observations) in enumerate(in_the_dry(name, driver=driver, quick=True, cpus=4.0))
            ]  # fmt: skip
    calibration = calibrate_from(Trials({"seed": 1, "created_unix_s": 1e9, "lab": "dry", "nodes": {}}, outcomes))
    verdicts = {name: assumption.verdict for name, assumption in calibration.assumptions.items()}
    assert verdicts["cap_accuracy"] == cap_accuracy
    assert verdicts["linearity"] == linearity
    assert verdicts["isolation"] == "held"
    assert calibration.progress is not None
    assert calibration.progress.yield_frac == (0.1, 0.25, 0.5, 0.75, 1.0)
    for curve in (calibration.progress.serial, calibration.progress.parallel):
        assert curve is not None
        assert curve[2] == pytest.approx(0.5 if driver is NullDriver else 0.65, rel=1e-3)


# --- conditions for all kinds of labs


@st.composite
def labs(draw):
    machine_cores = draw(st.integers(1, 64))
    count = draw(st.integers(1, 6))
    spawn, boxed = draw(st.sampled_from([(True, False), (False, True), (False, False)]))
    cpus = draw(st.floats(0.2, machine_cores).map(lambda cores: round(cores, 2)))
    memory_mib = draw(st.integers(100, 8192))
    nodes = [
        {"name": f"node-{index}", "cpus": cpus, "memory_mib": memory_mib, "spawn": spawn} for index in range(count)
    ]
    capabilities = ("start", "cap", *draw(st.sets(st.sampled_from(["mpi", "native", "whole"]))))
    fact = NodeFacts(
        cpus=cpus, memory_mib=memory_mib, machine_cores=machine_cores, machine_memory_mib=65536, cpu_model="any",
        kernel="any", driver="any", capabilities=capabilities, versions={}, address="", image_port=0,
        image_free_mib=10_000, guest_floor_mib=draw(st.sampled_from([0, 56, 128])),
    )  # fmt: skip
    return LabFacts(scenario(nodes=nodes, **({"box": {}} if boxed else {})), (fact,) * count)


def possible(name, lab):
    """Whether a lab meets an experiment's requirements: memory, at least a fifth of a core, and native programs."""
    fact = lab.facts[0]
    shared = lab.scenario.box is not None or all(node.spawn for node in lab.scenario.nodes)
    cores = min(fact.cpus, 0.9 * fact.machine_cores) if shared else fact.cpus
    guests = fact.memory_mib // max(64, fact.guest_floor_mib)
    return (
        cores >= 0.2
        and guests >= (2 if name == "isolation" else 1)
        and (name != "virtualisation" or "native" in fact.capabilities)
    )


@settings(max_examples=60, deadline=None)
@given(labs(), st.booleans())
def test_conditions_fit_every_lab(lab, quick):
    one_machine = lab.scenario.box is not None or all(node.spawn for node in lab.scenario.nodes)
    most_mib = max(64, lab.floor_mib)
    for name, experiment in EXPERIMENTS.items():
        reason = experiment.why_not(lab)
        assert (reason == "") == possible(name, lab), reason
        if reason:
            assert "expected" in reason or not lab.able("native")
            continue
        conditions = experiment.conditions(lab, quick=quick)
        assert conditions
        assert len(plan({name: conditions}, 1, 0)) == len(conditions)  # `plan` refuses duplicates
        assert len(conditions) >= len(experiment.conditions(lab, quick=True))
        for condition in conditions:
            assert 0.0 < experiment.expected_s(condition, lab) < 60.0
            assert _most_cores(name, condition, lab) <= lab.cpus + 1e-6
            guests = {"isolation": 1 + int(condition.get("neighbours", 0))}.get(name, int(condition.get("ranks", 1)))
            assert guests * most_mib <= lab.memory_mib
            if name == "proportionality":
                assert condition["tasks"] <= len(lab.facts)
                if one_machine:
                    whole = condition["tasks"] * _most_cores(name, condition, lab)
                    assert whole <= lab.facts[0].machine_cores + 1e-6


def _most_cores(name, condition, lab):
    """Return the maximum CPU use of all guests on a node."""
    from testbed.study.calibration.sizes import need_cores

    match name:
        case "cap_accuracy":
            return condition["cap_frac"] * condition["vcpus"]
        case "cap_response":
            return max(condition["from_frac"], condition["to_frac"]) * condition["vcpus"]
        case "proportionality":
            return need_cores(lab, nodes=condition["tasks"])
        case "isolation":
            return condition["cap_frac"] * (1 + condition["neighbours"])
        case _:
            return need_cores(lab, tasks=condition["ranks"]) * condition["ranks"]
