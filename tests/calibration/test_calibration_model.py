"""From trials to `calibration.toml` and back: measured quantities are in the file, and no others."""

import io
import json
import os
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from support.calibration.synthetic_lab import (
    BEGIN,
    FIRST_PROGRESS_S,
    RESTORE_MIB_PER_S,
    SAVE_FIXED_S,
    SAVE_MIB_PER_S,
    SAVE_TOTAL_MIB_PER_S,
    START_S,
    TRANSFER_MIB_PER_S,
    synthetic_trials,
)
from support.calibrations import read_calibration

from testbed.errors import RunError
from testbed.study.calibration import fits
from testbed.study.calibration.from_trials import calibrate_from
from testbed.study.calibration.model import Failed, Outlier, Quantity
from testbed.study.calibration.model_file import calibration_text, write_calibration
from testbed.study.calibration.tables import all_tables, as_json, print_calibration, quantity_table
from testbed.study.calibration.trials import FILE, Outcome, TrialJournal, Trials, read_trials


@pytest.fixture(scope="module")
def calibration():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fits, "RESAMPLES", 200)
        return calibrate_from(synthetic_trials(6))


# quantities


@pytest.mark.parametrize(
    ("name", "condition", "truth", "unit"),
    [
        ("save_fixed_s", {"storage": "disk"}, SAVE_FIXED_S, "s"),
        ("save_mib_per_s", {}, SAVE_MIB_PER_S, "MiB/s"),
        ("save_total_mib_per_s", {}, SAVE_TOTAL_MIB_PER_S, "MiB/s"),
        ("restore_mib_per_s", {"cache": "warm"}, RESTORE_MIB_PER_S, "MiB/s"),
        ("first_progress_s", {}, FIRST_PROGRESS_S, "s"),
        ("resume_fixed_s", {}, 0.5, "s"),
        ("transfer_mib_per_s", {}, TRANSFER_MIB_PER_S, "MiB/s"),
        ("live_migration_fixed_s", {}, 1.0, "s"),
        ("live_downtime_s", {}, 0.02, "s"),
        ("start_s", {"tasks": 1}, START_S, "s"),
        ("mpi_penalty_s", {"tasks": 2, "moved": 1}, 1.7, "s"),
        ("enactment_s", {"command": "cap", "guests": 4}, 0.005, "s"),
        ("bus_round_trip_s", {}, 0.0004, "s"),
        ("decision_s", {"jobs": 20}, 0.002, "s"),
        ("cap_response_s", {"from_frac": 1.0, "to_frac": 0.2}, 0.15, "s"),
        ("relative_progress", {"kind": "parallel", "yield_frac": 0.5}, 0.55, "1"),
        ("progress_slope", {"kind": "serial"}, 1.0, "1"),
        ("isolated_rate", {"neighbours": 3}, 0.94, "1"),
        ("isolated_rate", {"neighbours": 0}, 1.0, "1"),
        ("guest_relative_rate", {"program": "eatcpu"}, 0.95, "1"),
        ("capped_rate_over_cap", {"cap_frac": 0.5}, 1.0, "1"),
        ("penalty_touched_ratio", {"touched_frac": 0.5}, 0.6, "1"),
    ],
)
def test_each_experiment_gives_its_quantities(calibration, name, condition, truth, unit):
    (found,) = calibration.find(name, **condition)
    assert found.unit == unit
    assert found.n >= 6
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(truth, rel=0.1)
    assert found.high - found.low < 0.5 * truth


def test_errors_of_caps_are_in_points_by_nominal_window(calibration):
    assert {one.condition["window_s"] for one in calibration.find("cap_error_points")} == {0.1, 1.0}
    (worst,) = calibration.find("cap_error_worst_points", window_s=0.1)
    assert worst.observations == 2 * 2 * 6  # 0.1003 s is the same window
    assert not worst.bounded
    assert worst.value >= max(abs(one.value) for one in calibration.find("cap_error_points", window_s=0.1))
    told = calibrate_from(
        Trials(
            BEGIN,
            [
                Outcome(
                    trial=1,
                    experiment="cap-accuracy",
                    block=0,
                    condition={"vcpus": 2, "cap_frac": 0.5},
                    observations=(
                        {"window_s": 0.1, "requested_cores": 1.0, "used_cores": 1.01, "worst_error_frac": -0.04},
                    ),
                )
            ],
        )
    )
    assert told.find("cap_error_worst_points")[0].value == pytest.approx(4.0)  # of single windows of a trial
    assert told.find("cap_error_points")[0].value == pytest.approx(0.5)
    exact = calibrate_from(synthetic_trials(6, noise=0.0, only=("cap-accuracy",)))
    (tenth,) = exact.find("cap_error_points", cap_frac=0.1, window_s=1.0)
    assert tenth.value == pytest.approx(0.5)  # 0.01 cores of 2


def test_what_was_not_measured_gives_nothing():
    only_bus = calibrate_from(synthetic_trials(2, only=("bus",)))
    assert {one.name for one in only_bus.quantities} == {"bus_round_trip_s", "bus_round_trip_p99_s"}
    assert only_bus.overheads is None
    assert only_bus.progress is None
    assert "No [overheads]" in only_bus.about.notes[0]
    assert {found.verdict for found in only_bus.assumptions.values()} == {"not measured"}
    assert only_bus.find("bus_round_trip_p99_s")[0].bounded is False


def test_what_holds_for_one_size_only_says_so(calibration):
    (mpi,) = calibration.find("mpi_penalty_s")
    assert mpi.condition["memory_mib"] == 128  # the only tested size
    assert "concurrent" not in mpi.condition
    (start,) = calibration.find("start_s", tasks=1)
    assert start.condition == {"tasks": 1, "concurrent": 1}  # over several sizes
    (save,) = calibration.find("save_fixed_s")
    assert save.condition == {"storage": "disk"}


def test_failed_trials_and_odd_observations_are_left_out_and_told():
    trials = synthetic_trials(2, only=("bus",))
    odd = Outcome(
        trial=90, experiment="bus", block=0, condition={}, observations=({"round_trip_s": float("inf")}, {"other": 1.0})
    )
    bad = Outcome(trial=91, experiment="start", block=0, condition={"memory_mib": 64}, error="no guest came up")
    found = calibrate_from(Trials(trials.begin, [*trials.outcomes, odd, bad]))
    assert found.failed == (Failed(91, "start", {"memory_mib": 64}, "no guest came up"),)
    assert found.find("bus_round_trip_s")[0].observations == 100
    assert found.find("start_s") == []
    with pytest.raises(RunError, match="none that succeeded"):
        calibrate_from(Trials(trials.begin, [bad]))


def test_a_condition_without_a_penalty_has_no_ratio_of_penalties():
    under = {"memory_mib": 64, "storage": "disk", "cache": "warm", "concurrent": 1, "program": "eatcpu"}
    seen = [(1.0, {"penalty_s": 3.0}), (0.5, {"save_s": 1.0})]
    outcomes = [
        Outcome(
            trial=number, experiment="save-restore", block=0, condition={**under, "touched_frac": touched},
            observations=(observation,),
        )
        for number, (touched, observation) in enumerate(seen, 1)
    ]  # fmt: skip
    found = calibrate_from(Trials(BEGIN, outcomes))
    assert found.find("penalty_at_s")[0].value == 3.0
    assert found.find("penalty_touched_ratio") == []


# the file


def test_a_calibration_survives_its_file(calibration, tmp_path):
    full = replace(
        calibration,
        outliers=(Outlier("save_s", 3, 9.0, 1.5, 12.25),),
        failed=(Failed(91, "start", {"memory_mib": 64}, 'no "guest"\ncame up = [[1]]'),),
    )
    path = tmp_path / "calibration.toml"
    write_calibration(path, full)
    text = path.read_text(encoding="utf-8")
    read = read_calibration(path)
    assert calibration_text(read) == text == calibration_text(full)
    assert read.failed == full.failed
    assert read.about == full.about
    assert read.find("save_mib_per_s")[0].value == pytest.approx(full.find("save_mib_per_s")[0].value)
    assert read.provenance["nodes"]["n1"]["cpu_model"] == 'a "fast" one'
    assert "machine" not in read.provenance["nodes"]["n1"]
    assert tomllib.loads(text)["calibration"]["created_utc"] == "2023-11-14T22:13:20Z"
    assert [entry.name for entry in tmp_path.iterdir()] == ["calibration.toml"]


def test_the_same_trials_give_the_same_bytes(monkeypatch, tmp_path):
    monkeypatch.setattr(fits, "RESAMPLES", 50)
    trials = synthetic_trials(2, only=("save-restore", "bus"))
    with TrialJournal(tmp_path / FILE) as journal:
        journal.begin(BEGIN)
        for outcome in trials.outcomes:
            journal.add(outcome)
    texts = [calibration_text(calibrate_from(read_trials(place), place)) for place in (tmp_path, tmp_path / FILE)]
    assert texts[0] == texts[1]
    about = tomllib.loads(texts[0])["calibration"]
    assert about["trials_file"] == FILE
    assert about["trials_digest"].startswith("sha256:")
    assert about["repeats"] == 2


def test_a_file_that_cannot_be_written_leaves_the_old_one(calibration, tmp_path):
    path = tmp_path / "calibration.toml"
    path.write_text("old", encoding="utf-8")
    (tmp_path / f".calibration.toml.{os.getpid()}.part").mkdir()  # a folder at the path of the draft
    with pytest.raises(RunError, match="cannot write"):
        write_calibration(path, calibration)
    assert path.read_text(encoding="utf-8") == "old"


_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20)


@given(
    st.dictionaries(_WORDS, st.one_of(_WORDS, st.integers(-(2**53), 2**53), st.floats(-1e6, 1e6)), max_size=3),
    _WORDS,
    st.one_of(st.just(float("nan")), st.floats(-1e12, 1e12)),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_condition_and_text_survives(calibration, tmp_path: Path, condition, words, low):
    plain = replace(calibration, overheads=None, progress=None, outliers=())
    odd = Quantity("q", 1.0, low, 2.0, words, 3, 4, condition=condition)
    path = tmp_path / "odd.toml"
    write_calibration(path, replace(plain, quantities=(odd,)))
    (read,) = read_calibration(path).quantities
    assert read.unit == words
    assert read.low == pytest.approx(low, rel=1e-8, abs=0, nan_ok=True)
    assert read.condition.keys() == condition.keys()
    for key, value in condition.items():
        assert read.condition[key] == (pytest.approx(value, rel=1e-8, abs=0) if isinstance(value, float) else value)


# tables


def test_tables_show_every_quantity_with_unit_and_interval(calibration):
    table = quantity_table(calibration)
    assert len(table.rows) == len(calibration.quantities)
    row = next(row for row in table.rows if row[0] == "save_total_mib_per_s")
    low, high = (float(part) for part in row[3].split(" to "))
    assert low <= float(row[2]) <= high
    assert row[4] == "MiB/s"
    markdown = table.markdown().splitlines()
    assert all(line.startswith("|") for line in markdown[2:])
    assert len({line.count(" | ") for line in markdown[2:]}) == 1
    assert "save_total_mib_per_s" in table.text()


def test_a_terminal_shows_verdicts_quantities_and_notes(calibration):
    out = io.StringIO()
    console = Console(file=out, width=300)
    about = replace(calibration.about, notes=("No [overheads]: nothing.",))
    print_calibration(replace(calibration, about=about, failed=(Failed(9, "start", {}, "[bold]no"),)), console)
    shown = out.getvalue()
    for words in ("memory_independence", "save_total_mib_per_s", "[bold]no", "note: No [overheads]: nothing."):
        assert words in shown


def test_tables_that_have_no_rows_are_left_out_and_json_has_no_nan(calibration):
    bare = replace(calibration, outliers=(), failed=())
    assert [table.title.split(" ")[0] for table in all_tables(bare)] == ["Assumptions", "Quantities"]
    full = replace(bare, failed=(Failed(1, "start", {}, "a | b"),))
    assert "a \\| b" in all_tables(full)[-1].markdown()
    tree = json.loads(json.dumps(as_json(calibration), allow_nan=False))
    worst = next(one for one in tree["quantities"] if one["name"] == "cap_error_worst_points")
    assert worst["low"] is None
    assert tree["overheads"]["concurrent_per"] == "node"
