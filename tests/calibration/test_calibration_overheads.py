"""The tables that a simulation reads: measured values, on the measured grid, and never below 0."""

import tomllib

import msgspec
import numpy as np
import pytest
from support.calibration.synthetic_lab import (
    AT_ONCE,
    BEGIN,
    BESIDE_FRAC,
    FIRST_PROGRESS_S,
    LIVE_FELT_S,
    SIZES_MIB,
    START_S,
    TRANSFER_FIXED_S,
    TRANSFER_MIB_PER_S,
    restore_s,
    save_s,
    synthetic_trials,
)

from testbed.scheduling.simulation.overheads import ParallelExtra
from testbed.scheduling.simulation.overheads_file import load_live_mib_per_s
from testbed.scheduling.simulation.overheads_parser import parse_overheads
from testbed.study.calibration import fits
from testbed.study.calibration.from_trials import calibrate_from
from testbed.study.calibration.model_file import write_calibration
from testbed.study.calibration.trials import Trials

pytest.importorskip("numba")
IN_PLACE = {"topology": "ring", "moved": 0}
MOVES = ("save-restore", "transfer", "live-migration", "start", "proportionality")


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    monkeypatch.setattr(fits, "RESAMPLES", 100)


def simulated(calibration, tmp_path):
    path = tmp_path / "calibration.toml"
    write_calibration(path, calibration)
    return parse_overheads(str(path))


def test_the_simulator_reads_what_was_measured(tmp_path):
    found = calibrate_from(synthetic_trials(4, only=MOVES))
    assert found.about.notes == ()
    overheads = simulated(found, tmp_path)
    assert found.overheads.live_mib_per_s == pytest.approx(100.0, rel=0.05)
    assert load_live_mib_per_s(tmp_path / "calibration.toml") == pytest.approx(found.overheads.live_mib_per_s, rel=1e-4)
    assert overheads.per_node
    assert overheads.concurrent_tasks.tolist() == list(AT_ONCE)
    assert overheads.memory_gb == pytest.approx([mib * 2**20 / 1e9 for mib in SIZES_MIB])
    saves = np.array([[save_s(mib, n) for mib in SIZES_MIB] for n in AT_ONCE])
    resumes = np.array([[restore_s(mib) + FIRST_PROGRESS_S for mib in SIZES_MIB] for _n in AT_ONCE])
    transfers = np.array([[TRANSFER_FIXED_S + mib / TRANSFER_MIB_PER_S for mib in SIZES_MIB] for _n in AT_ONCE])
    assert overheads.save_s == pytest.approx(saves, rel=0.05)
    assert overheads.resume_s == pytest.approx(resumes, rel=0.05)
    assert overheads.migration_s == pytest.approx(saves + transfers + resumes, rel=0.05)
    assert overheads.transfer_s == pytest.approx(transfers, rel=0.05)
    assert overheads.migrates == "save-restore"
    assert overheads.start_s == pytest.approx(np.full((3, 4), START_S), rel=0.05)
    assert overheads.progress.yield_frac.tolist() == [0.25, 0.5, 1.0]
    assert overheads.progress.serial == pytest.approx([0.25, 0.5, 1.0], rel=0.03)
    assert overheads.progress.parallel == pytest.approx([0.325, 0.55, 1.0], rel=0.03)
    assert overheads.progress.parallel[-1] == 1.0


def test_the_scenario_says_how_jobs_migrate(tmp_path):
    trials = synthetic_trials(3, only=MOVES)
    live = calibrate_from(Trials({**trials.begin, "migration": "live"}, trials.outcomes))
    assert set(live.overheads.migration_ways_s) == {"save-restore", "live"}
    assert live.overheads.migration_s == live.overheads.migration_ways_s["live"]
    assert simulated(live, tmp_path).migration_s == pytest.approx(np.full((3, 4), LIVE_FELT_S), rel=0.1)
    assert simulated(live, tmp_path).migrates == "live"
    stored = [outcome for outcome in trials.outcomes if outcome.experiment != "live-migration"]
    without = calibrate_from(Trials({**trials.begin, "migration": "live"}, stored))
    assert without.overheads.migration_s == without.overheads.migration_ways_s["save-restore"]
    assert any("migrates by live, which was not measured" in note for note in without.about.notes)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        (lambda one: {"downtime_reported_s": one["migrate_s"] - 0.5}, "Guests stand still while they are copied"),
        (lambda _one: {"migrate_s": 3.0}, "The time of a live migration does not depend on memory"),
    ],
)
def test_the_rate_at_which_memory_is_sent_is_told_only_where_guests_work_meanwhile(tmp_path, changes, note):
    trials = synthetic_trials(4, only=MOVES)
    moved = [
        outcome
        if outcome.experiment != "live-migration"
        else msgspec.structs.replace(outcome, observations=[{**one, **changes(one)} for one in outcome.observations])
        for outcome in trials.outcomes
    ]
    found = calibrate_from(Trials(trials.begin, moved))
    assert found.overheads.live_mib_per_s is None
    assert any(each.startswith(note) for each in found.about.notes)
    write_calibration(tmp_path / "calibration.toml", found)
    assert load_live_mib_per_s(tmp_path / "calibration.toml") is None


def test_what_was_not_measured_is_left_out_and_told(tmp_path):
    found = calibrate_from(synthetic_trials(3, only=("save-restore",)))
    assert found.overheads.start_s is None
    notes = " ".join(found.about.notes)
    assert "No start" in notes
    assert "No transfer" in notes
    overheads = simulated(found, tmp_path)
    assert overheads.start_s is None
    assert overheads.progress is None
    assert overheads.migration_s == pytest.approx(overheads.save_s + overheads.resume_s)


def test_one_kind_of_progress_leaves_the_other_as_the_papers_have_it(tmp_path):
    trials = synthetic_trials(3, only=("save-restore", "proportionality"))
    parallel = [o for o in trials.outcomes if o.condition.get("kind") != "serial"]
    found = calibrate_from(Trials(BEGIN, parallel))
    assert found.progress.serial is None
    assert any("Progress of serial jobs was not measured" in note for note in found.about.notes)
    assert simulated(found, tmp_path).progress.serial.tolist() == [0.25, 0.5, 1.0]


def test_cold_images_and_other_stores_have_tables_of_their_own():
    trials = synthetic_trials(3, only=("save-restore",))
    both = trials.outcomes + [
        type(outcome)(
            trial=1000 + outcome.trial,
            experiment=outcome.experiment,
            block=outcome.block,
            condition={**outcome.condition, "cache": "cold"},
            observations=tuple({**one, "restore_s": one.get("restore_s", 0.0) + 3.0} for one in outcome.observations),
        )
        for outcome in trials.outcomes
        if outcome.condition["touched_frac"] == 1.0
    ]
    warm, cold = (calibrate_from(Trials(BEGIN, both), cache=cache).overheads for cache in ("warm", "cold"))
    assert np.array(cold.resume_s) - np.array(warm.resume_s) == pytest.approx(np.full((3, 4), 3.0), abs=0.1)
    assert cold.save_s == warm.save_s  # a save reads nothing
    assert calibrate_from(Trials(BEGIN, both), storage="memory").overheads is None


def test_levels_begin_with_one_task(tmp_path):
    trials = synthetic_trials(4, only=("save-restore",))
    several = [outcome for outcome in trials.outcomes if outcome.condition["concurrent"] > 1]
    found = calibrate_from(Trials(BEGIN, several))
    assert found.overheads.concurrent_tasks == (1, 2, 4)
    assert any("Single tasks were not measured" in note for note in found.about.notes)
    assert np.all(simulated(found, tmp_path).save_s >= 0.0)


@pytest.mark.parametrize(
    ("fixed_s", "s_per_gb", "expected"), [(0.5, 0.0, (0.5, 0.0)), (0.5, 2.0, (0.5, 2.0)), (-1.0, 2.0, None)]
)
def test_starts_of_several_tasks_exceed_those_of_one_by_a_line_of_memory(
    fixed_s: float, s_per_gb: float, expected: tuple[float, float] | None
) -> None:
    trials = synthetic_trials(8, only=("save-restore", "start"))
    several = [
        msgspec.structs.replace(
            one, trial=1000 + one.trial, condition={**one.condition, "tasks": 2},
            observations=[
                {**each, "ready_s": each["ready_s"] + fixed_s + s_per_gb * one.condition["memory_mib"] * 2**20 / 1e9}
                for each in one.observations
            ],
        )
        for one in trials.of("start")
    ]  # fmt: skip
    found = calibrate_from(Trials(trials.begin, [*trials.outcomes, *several])).overheads.parallel
    if expected is None:  # below 0 at no memory: a line through 0 and the largest
        assert found["start_s"] == 0.0
        assert 0.0 < found["start_s_per_gb"] < s_per_gb
    else:
        assert (found["start_s"], found["start_s_per_gb"]) == pytest.approx(expected, abs=0.15)


def test_what_jobs_of_several_tasks_take_beyond_one_is_told_and_simulated(tmp_path):
    """The save of an MPI job takes a second longer than that of a guest of its memory, its resume two seconds."""
    trials = synthetic_trials(6, only=("save-restore", "start"))
    alone = calibrate_from(trials)
    assert alone.overheads.parallel is None
    assert simulated(alone, tmp_path).parallel == ParallelExtra()
    machines = len({facts.get("address") for facts in trials.begin["nodes"].values()})
    jobs = [
        msgspec.structs.replace(
            outcome, trial=1000 + outcome.trial, experiment="mpi-save-restore",
            condition={**IN_PLACE, "memory_mib": outcome.condition["memory_mib"], "tasks": machines},
            observations=[
                {**one, "save_s": one["save_s"] + 1.0, "restore_s": one["restore_s"] + 2.0}
                for one in outcome.observations
            ],
        )
        for outcome in trials.of("save-restore")
        if outcome.condition["concurrent"] == 1 and outcome.condition.get("cache", "warm") == "warm"
        and outcome.condition.get("storage", "disk") == "disk" and outcome.condition.get("touched_frac", 1.0) == 1.0
    ]  # fmt: skip
    found = calibrate_from(Trials(trials.begin, [*trials.outcomes, *jobs]))
    assert found.overheads.save_s == alone.overheads.save_s, "the save of a single task is unchanged"
    assert found.overheads.parallel == {
        "start_s": 0.0, "start_s_per_gb": 0.0, "save_s": pytest.approx(1.0, abs=0.1),
        "resume_s": pytest.approx(2.0, abs=0.2), "migration_s": pytest.approx(3.0, abs=0.3),
    }  # fmt: skip
    live = {**trials.begin, "migration": "live"}
    moved = synthetic_trials(6, only=("live-migration",)).outcomes
    moved = [msgspec.structs.replace(outcome, trial=2000 + outcome.trial) for outcome in moved]
    by_copies = calibrate_from(Trials(live, [*trials.outcomes, *jobs, *moved])).overheads
    assert by_copies.migration == "live"
    assert by_copies.parallel["migration_s"] == 0.0, "a guest that migrates live is neither saved nor restored"
    extra = simulated(found, tmp_path).scaled(10.0).parallel
    assert extra.save_s == pytest.approx(10 * found.overheads.parallel["save_s"], rel=1e-5)


def test_how_much_longer_operations_take_beside_each_running_guest_is_measured_and_simulated(tmp_path):
    found = calibrate_from(synthetic_trials(8, only=("save-restore", "beside")))
    assert found.overheads.beside == {
        f"{name}_frac": pytest.approx(frac, abs=0.03) for name, frac in BESIDE_FRAC.items()
    }
    read = simulated(found, tmp_path).beside
    assert {f"{name}_frac": getattr(read, f"{name}_frac") for name in BESIDE_FRAC} == found.overheads.beside
    table = tomllib.loads((tmp_path / "calibration.toml").read_text())["overheads"]
    assert table["beside"] == found.overheads.beside
    for name, frac in BESIDE_FRAC.items():
        (increase,) = found.find(f"beside_{name}_frac")
        assert (increase.unit, increase.model, increase.n, dict(increase.condition)) == ("1", "constant", 24, {})
        assert increase.low < frac < increase.high
        ratios = {one.condition["neighbours"]: one for one in found.find(f"beside_{name}_ratio")}
        assert sorted(ratios) == [1, 2, 3]
        for neighbours, ratio in ratios.items():
            assert ratio.value == pytest.approx(1.0 + frac * neighbours, rel=0.05)
            assert (ratio.unit, ratio.n) == ("1", 8)


def test_the_table_of_running_guests_follows_that_of_several_tasks(tmp_path):
    trials = synthetic_trials(6, only=("save-restore", "start", "beside", "proportionality"))
    several = [
        msgspec.structs.replace(one, trial=1000 + one.trial, condition={**one.condition, "tasks": 2})
        for one in trials.of("start")
    ]
    write_calibration(tmp_path / "c.toml", calibrate_from(Trials(trials.begin, [*trials.outcomes, *several])))
    lines = (tmp_path / "c.toml").read_text().splitlines()
    assert [line for line in lines if line.startswith("[overheads.")] == [
        "[overheads.parallel]", "[overheads.beside]", "[overheads.progress]",
    ]  # fmt: skip


def as_alone(one):
    """Return an observation of `beside` whose saves take no longer with neighbours, and restores take less time."""
    return {**one, "beside_save_s": one["save_s"], "beside_resume_s": 0.9 * one["resume_s"]}


@pytest.mark.parametrize(("blocks", "shown"), [(6, True), (1, False)])
def test_an_operation_that_is_not_shown_to_take_longer_beside_guests_has_a_fraction_of_0(tmp_path, blocks, shown):
    """A single trial of one condition has no interval, so it shows nothing."""
    trials = synthetic_trials(blocks, only=("save-restore", "beside"))
    changed = [
        outcome
        if outcome.experiment != "beside"
        else msgspec.structs.replace(outcome, observations=[as_alone(one) for one in outcome.observations])
        for outcome in trials.outcomes
        if shown or outcome.condition.get("neighbours", 2) == 2
    ]
    found = calibrate_from(Trials(trials.begin, changed))
    assert found.overheads.beside["save_frac"] == 0.0
    assert found.overheads.beside["resume_frac"] == 0.0
    assert (found.overheads.beside["start_frac"] > 0.3) == shown
    assert simulated(found, tmp_path).beside.save_frac == 0.0


def test_operations_that_take_no_time_alone_have_no_ratio():
    trials = synthetic_trials(3, only=("save-restore", "beside"))
    changed = [
        outcome
        if outcome.experiment != "beside"
        else msgspec.structs.replace(outcome, observations=[{**one, "start_s": 0.0} for one in outcome.observations])
        for outcome in trials.outcomes
    ]
    found = calibrate_from(Trials(trials.begin, changed))
    assert found.find("beside_start_ratio") == found.find("beside_start_frac") == []
    assert found.overheads.beside["start_frac"] == 0.0
    assert found.overheads.beside["save_frac"] > 0.0


def test_no_trial_beside_running_guests_leaves_the_table_out(tmp_path):
    found = calibrate_from(synthetic_trials(3, only=("save-restore",)))
    assert found.overheads.beside is None
    simulated(found, tmp_path)
    assert "beside" not in tomllib.loads((tmp_path / "calibration.toml").read_text())["overheads"]
