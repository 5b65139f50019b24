"""Experiments on guests that start, are saved, transferred and moved: in virtual time; their choice of conditions."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from node_agent.drivers.null import MIGRATION_DOWNTIME_S, MIGRATION_MIB_PER_S, NullDriver
from testbed.bus.messages import NodeFacts
from testbed.errors import RunError
from testbed.lab.bring_up import dry_lab
from testbed.lab.opening import open_lab
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.scenario.schema import check_scenario
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import JobState
from testbed.study.calibration.experiment import LabFacts
from testbed.study.calibration.experiments import decision, felt
from testbed.study.calibration.plan import key
from testbed.study.calibration.registry import find_experiments

SAVE = {
    "save_s", "hold_s", "write_reported_s", "sync_reported_s", "image_mib", "pause_s", "restore_s", "first_progress_s",
    "penalty_s", "felt_s",
}  # fmt: skip
CONDITIONS = {
    "save-restore": {"memory_mib", "touched_frac", "storage", "concurrent", "cache", "program"},
    "mpi-save-restore": {"memory_mib", "tasks", "topology", "moved"},
    "transfer": {"memory_mib", "touched_frac", "concurrent"},
    "live-migration": {"memory_mib", "touched_frac", "concurrent"},
    "start": {"memory_mib", "tasks", "concurrent"},
    "beside": {"neighbours"},
    "enactment": {"command", "guests"},
    "decision": {"policy", "jobs", "nodes"},
    "bus": set(),
}
OBSERVED = {
    "save-restore": SAVE,
    "mpi-save-restore": SAVE | {"hold_skew_s", "release_skew_s"},
    "transfer": {"transfer_s", "image_mib"},
    "live-migration": {"migrate_s", "reported_s", "downtime_reported_s", "felt_s", "moved_mib", "rounds"},
    "start": {"start_s", "first_progress_s", "ready_s"},
    "beside": {"running", "start_s", "save_s", "resume_s", "beside_start_s", "beside_save_s", "beside_resume_s"},
    "enactment": {"round_trip_s"},
    "decision": {"decide_s"},
    "bus": {"round_trip_s"},
}
NOT_ALWAYS = {"cached_frac"}  # optional: some nodes do not report it
SAVING = ("start", "cap", "save", "mpi")
ON_NODES = [name for name in OBSERVED if name not in ("decision", "bus")]


def lab_scenario(nodes=2, memory_mib=1000, cpus=1.0, **changes):
    table = {
        "name": "bench",
        "policy": "GreedyPM */per/OPT=MIN/MINVT=600",
        "workload": {},
        "nodes": [{"name": f"node-{i}", "memory_mib": memory_mib, "cpus": cpus} for i in range(nodes)],
        **changes,
    }
    return check_scenario(table, Path("bench.toml"))


def lab_of(nodes=2, memory_mib=1000, cpus=1.0, floor_mib=56, capabilities=SAVING, stores=("disk",), free_mib=100_000):
    fact = NodeFacts(
        cpus=cpus, memory_mib=memory_mib, machine_cores=8, machine_memory_mib=4 * memory_mib, cpu_model="", kernel="",
        driver="null", capabilities=capabilities, versions={}, address="", image_port=0, image_free_mib=free_mib,
        guest_floor_mib=floor_mib, image_stores=stores,
    )  # fmt: skip
    return LabFacts(lab_scenario(nodes, memory_mib, cpus), (fact,) * nodes)


def try_all(name, scenario, *, quick):
    """Do one trial of every condition of an experiment; return (condition, observations) of each."""
    (experiment,) = find_experiments([name])

    async def main():
        async with open_lab(scenario, folder=Path(), bring_up=dry_lab) as lab:
            facts = LabFacts(scenario, lab.facts)
            assert experiment.why_not(facts) == ""
            return [(one, await experiment.trial(lab, one)) for one in experiment.conditions(facts, quick=quick)]

    return run_in_virtual_time(main())


@pytest.mark.parametrize("name", OBSERVED)
def test_every_condition_gives_what_was_agreed(name):
    trials = try_all(name, lab_scenario(migration={"mechanism": "live"}), quick=False)
    assert trials
    for condition, observations in trials:
        assert set(condition) == CONDITIONS[name]
        assert observations
        for seen in observations:
            assert set(seen) - NOT_ALWAYS == OBSERVED[name]
            assert all(isfinite(value) for value in seen.values())
            # the null driver counts whole units, so the error of a felt time is a few units, and a few polls
            assert all(value >= (-0.05 if key_ == "felt_s" else 0.0) for key_, value in seen.items())


def test_nothing_is_felt_of_operations_that_take_no_time():
    for condition, guests in try_all("save-restore", lab_scenario(), quick=False):
        assert len(guests) == condition["concurrent"]
        for seen in guests:
            assert seen["penalty_s"] == pytest.approx(seen["save_s"] + seen["restore_s"] + seen["first_progress_s"])
            assert seen["image_mib"] == pytest.approx(condition["memory_mib"] * condition["touched_frac"])
            assert abs(seen["felt_s"]) < 0.03


def test_a_live_migration_is_felt_for_its_downtime():
    for condition, guests in try_all("live-migration", lab_scenario(migration={"mechanism": "live"}), quick=False):
        assert len(guests) == condition["concurrent"]
        for seen in guests:
            takes_s = condition["memory_mib"] * condition["touched_frac"] / MIGRATION_MIB_PER_S + MIGRATION_DOWNTIME_S
            assert seen["migrate_s"] == pytest.approx(takes_s, abs=0.05)
            assert seen["downtime_reported_s"] == MIGRATION_DOWNTIME_S
            assert seen["felt_s"] == pytest.approx(MIGRATION_DOWNTIME_S, abs=0.03)


def test_a_pause_and_slow_operations_are_told_apart(monkeypatch):
    """With operations of known durations, the parts add up, and no part contains the pause."""
    import asyncio

    save, restore = NullDriver.save, NullDriver.restore
    lately = []

    async def slow_save(self, guest, at, image):
        lately.append(guest)
        await asyncio.sleep(1.0 + len(lately))  # virtual; the first waits for the second
        return await save(self, guest, at, image)

    async def slow_restore(self, spec, cap_cores, image):
        await asyncio.sleep(4.0)  # virtual
        await restore(self, spec, cap_cores, image)

    monkeypatch.setattr(NullDriver, "save", slow_save)
    monkeypatch.setattr(NullDriver, "restore", slow_restore)
    (experiment,) = find_experiments(["save-restore"])
    scenario = lab_scenario()

    async def main():
        async with open_lab(scenario, folder=Path(), bring_up=dry_lab) as lab:
            condition = {
                "memory_mib": 100, "touched_frac": 1.0, "storage": "disk", "concurrent": 2, "cache": "warm",
                "program": "eatcpu",
            }  # fmt: skip
            return await experiment.trial(lab, condition)

    first, second = run_in_virtual_time(main())
    assert first["save_s"] == pytest.approx(2.0, abs=0.01)
    assert second["save_s"] == pytest.approx(3.0, abs=0.01)
    assert first["pause_s"] == pytest.approx(1.0, abs=0.01)
    assert second["pause_s"] == pytest.approx(0.0, abs=0.01)
    for seen in (first, second):
        assert seen["restore_s"] == pytest.approx(4.0, abs=0.01)
        assert seen["felt_s"] == pytest.approx(seen["penalty_s"], abs=0.03)


def test_a_job_that_stands_still_ends_the_trial():
    scenario = lab_scenario(deadlines={"command_s": 3})

    async def main():
        async with (
            open_lab(scenario, folder=Path(), bring_up=dry_lab) as lab,
            lab.job(memory_mib=99, cpu_cores=0.5) as job,
        ):
            await job.start()
            await job.hold()
            await felt.Pace.of(job)

    with pytest.raises(RunError, match=r"no progress of dfrs-.*-t0 within 3 s"):
        run_in_virtual_time(main())


def test_the_first_failure_ends_the_others_before_it_is_raised():
    import asyncio

    ended = []

    async def slow():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(1)
            ended.append("slow")

    async def bad():
        await asyncio.sleep(1)
        raise RunError("bad")

    with pytest.raises(RunError, match="bad"):
        run_in_virtual_time(felt.together([slow(), bad()]))
    assert ended == ["slow"]


def test_neighbours_use_all_cores_of_the_node_of_the_guest_that_is_measured(monkeypatch):
    """With starts and saves that take longer for each guest that runs on their node, the times follow that."""
    import asyncio

    start, save = NullDriver.start, NullDriver.save
    ran = []  # cores of each guest on the node, at each start

    async def slow_start(self, spec, cap_cores):
        ran.append([guest.spec.cpu_cores for guest in self._guests.values()])
        await asyncio.sleep(1.0 + 0.5 * len(self._guests))  # virtual
        await start(self, spec, cap_cores)

    async def slow_save(self, guest, at, image):
        await asyncio.sleep(2.0 + 0.2 * (len(self._guests) - 1))  # virtual
        return await save(self, guest, at, image)

    monkeypatch.setattr(NullDriver, "start", slow_start)
    monkeypatch.setattr(NullDriver, "save", slow_save)
    trials = try_all("beside", lab_scenario(cpus=2.0), quick=False)
    assert [condition for condition, _ in trials] == [{"neighbours": count} for count in (1, 2, 3)]
    assert ran[:2] == [[], []], "a guest is discarded first, so that the first start of a session is not measured"
    for condition, (seen,) in trials:
        count = condition["neighbours"]
        assert [pytest.approx(1.5 / count)] * count in ran, "0.5 of the two cores are for the measured guest"
        assert seen["running"] == count
        assert seen["start_s"] == pytest.approx(seen["beside_start_s"] - 0.5 * count, abs=0.02)
        assert seen["save_s"] == pytest.approx(2.0, abs=0.02)
        assert seen["beside_save_s"] == pytest.approx(2.0 + 0.2 * count, abs=0.02)
        assert seen["beside_resume_s"] == pytest.approx(seen["resume_s"], abs=0.02)


@pytest.mark.parametrize(
    ("lab", "quick", "counts"),
    [
        (lab_of(), False, [1, 2, 3]),
        (lab_of(), True, [2]),
        (lab_of(memory_mib=200), False, [1, 2]),
        (lab_of(memory_mib=130), True, [1]),
        (lab_of(capabilities=(*SAVING, "whole", "accel:tcg")), False, [1, 2]),
    ],
)
def test_there_are_as_many_neighbours_as_fit(lab, quick, counts):
    (experiment,) = find_experiments(["beside"])
    assert experiment.conditions(lab, quick=quick) == [{"neighbours": count} for count in counts]


def test_neighbours_on_other_machines_do_not_count():
    (experiment,) = find_experiments(["beside"])
    shared = lab_of()
    facts = [msgspec.structs.replace(fact, address=f"192.0.2.{node}") for node, fact in enumerate(shared.facts)]
    apart = LabFacts(shared.scenario, tuple(facts))
    assert experiment.expected_s({"neighbours": 2}, apart) == experiment.expected_s({"neighbours": 1}, shared)


labs = st.builds(
    lab_of,
    nodes=st.integers(1, 6),
    memory_mib=st.integers(64, 500_000),
    cpus=st.floats(0.2, 64.0),
    floor_mib=st.integers(0, 300),
    capabilities=st.sampled_from(
        [SAVING, (*SAVING, "whole", "live"), (*SAVING, "whole", "accel:tcg"), ("start", "cap", "save")]
    ),
    stores=st.sampled_from([("disk",), ("disk", "memory")]),
    free_mib=st.integers(0, 2_000_000),
)


ROOMY = lab_of(capabilities=(*SAVING, "whole", "live"))
NEEDS = {  # capabilities, nodes; concurrent guests per node, by the number of nodes
    "save-restore": (("save",), 1, lambda _nodes: 1),
    "mpi-save-restore": (("save", "mpi"), 1, lambda nodes: min(4, max(2, nodes))),
    "transfer": (("save",), 2, lambda _nodes: 1),
    "live-migration": (("live",), 2, lambda _nodes: 1),
    "start": (("start",), 1, lambda _nodes: 1),
    "beside": (("start", "save"), 1, lambda _nodes: 2),
    "enactment": (("start", "cap"), 1, lambda _nodes: 1),
}


def possible(name, lab):
    """Whether a lab meets the requirements of an experiment."""
    capabilities, nodes, guests = NEEDS[name]
    fact = lab.facts[0]
    need_mib = guests(len(lab.facts)) * max(64, fact.guest_floor_mib)
    room_mib = min(fact.memory_mib, fact.image_free_mib // 4, 2048)
    return len(lab.facts) >= nodes and set(capabilities) <= set(fact.capabilities) and need_mib <= room_mib


def test_a_lab_with_all_it_takes_refuses_no_experiment():
    assert set(NEEDS) == set(ON_NODES)
    assert [experiment.why_not(ROOMY) for experiment in find_experiments(ON_NODES)] == [""] * len(ON_NODES)


@given(lab=labs, quick=st.booleans())
@example(lab=ROOMY, quick=False)
@example(lab=ROOMY, quick=True)
def test_conditions_always_fit(lab, quick):
    fact = lab.facts[0]
    for experiment in find_experiments(ON_NODES):
        reason = experiment.why_not(lab)
        assert (reason == "") == possible(experiment.name, lab), reason
        if reason:
            continue
        conditions = experiment.conditions(lab, quick=quick)
        assert conditions
        assert len({key(experiment.name, one) for one in conditions}) == len(conditions)
        for one in conditions:
            assert set(one) == CONDITIONS[experiment.name]
            assert isfinite(experiment.expected_s(one, lab))
            memory_mib = one.get("memory_mib", felt.least_mib(lab))
            tasks = [task % len(lab.facts) for task in range(one.get("tasks", 1))]
            guests = max(Counter(tasks).values()) * one.get("concurrent", one.get("guests", 1))
            guests += one.get("neighbours", 0)
            assert felt.least_mib(lab) <= memory_mib
            assert guests * memory_mib <= lab.memory_mib
            assert guests * felt.cores_of(lab) <= lab.cpus + 1e-9
            if experiment.name in ("save-restore", "mpi-save-restore", "transfer"):
                assert 2 * 2 * guests * memory_mib <= fact.image_free_mib
            if one.get("storage", "disk") != "disk":
                assert one["storage"] in fact.image_stores


@given(lab=labs)
@example(lab=ROOMY)
def test_the_grid_of_saves_tells_memory_from_company(lab):
    """Each number of concurrent guests has two memory sizes, for the fit of a line, as far as memory permits."""
    (experiment,) = find_experiments(["save-restore"])
    assume(possible("save-restore", lab))
    for quick in (False, True):
        conditions = experiment.conditions(lab, quick=quick)
        plain = [
            one for one in conditions if (one["touched_frac"], one["storage"], one["cache"]) == (1.0, "disk", "warm")
        ]
        for concurrent in (1, 4) if quick or felt.emulated(lab) else (1, 2, 4):
            sizes = {one["memory_mib"] for one in plain if one["concurrent"] == concurrent}
            room = felt.most_mib(lab, concurrent)
            least = felt.least_mib(lab)
            assert len(sizes) == (0 if room < least else 1) or (min(sizes) == least and max(sizes) == room)
            assert len(sizes) >= 2 or room < 1.25 * least
        alone = {one["memory_mib"] for one in plain if one["concurrent"] == 1}
        assert quick or len(alone) == len(felt.levels_mib(lab, 1, 5)), "also for emulated guests: times by memory"


@pytest.mark.parametrize(
    ("name", "lab", "reason"),
    [
        ("save-restore", lab_of(capabilities=("start", "cap")), "driver null on node-0, node-1 cannot do it .*'save'"),
        ("mpi-save-restore", lab_of(capabilities=("start", "save")), "capability 'mpi'"),
        ("transfer", lab_of(nodes=1), "needs 2 nodes, there is 1"),
        ("live-migration", lab_of(), "capability 'live'"),
        ("mpi-save-restore", lab_of(memory_mib=100), "2 guests at once need 128 MiB"),
        ("start", lab_of(memory_mib=100, floor_mib=128), "a guest needs 128 MiB of memory, a node has room for 100"),
        ("beside", lab_of(capabilities=("start", "cap")), "capability 'save'"),
        ("beside", lab_of(memory_mib=127), "2 guests at once need 128 MiB of memory, a node has room for 127"),
        ("enactment", lab_of(capabilities=("start",)), "capability 'cap'"),
        ("save-restore", lab_of(free_mib=100), "has room for 25 MiB"),
    ],
)
def test_says_why_not(name, lab, reason):
    import re

    (experiment,) = find_experiments([name])
    assert re.search(reason, experiment.why_not(lab))


@pytest.mark.parametrize("name", ["Greedy */OPT=MIN", "MCB8 */per/OPT=MIN/MINVT=600", "EASY", "GREEDY-PMTN"])
def test_decisions_are_on_clusters_that_are_full_but_not_overfull(name):
    view, event = decision.moment(name, 600.0, 32, 16)
    policy = parse(name, 600.0)
    runs = view.state == JobState.RUNNING
    assert 0 < runs.sum() < 32
    assert event.submitted == (32,)
    assert view.state[-1] == JobState.WAITING
    placed = view.task_node >= 0
    assert (placed == runs.repeat(view.tasks)).all()
    need = view.mem_req_frac.repeat(view.tasks)[placed]
    used = [need[view.task_node[placed] == node].sum() for node in range(16)]
    assert max(used) <= 1 + 1e-9
    decided = policy.decide(view, event)
    assert decided.task_node.size == view.task_node.size
    assert (decided.task_node[decided.yield_frac.repeat(view.tasks) > 0] >= 0).all()
