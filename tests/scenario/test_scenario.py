"""Scenario files: an error is one line that names file, key, value and the expected value."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path

import pytest

from testbed.errors import TestbedError, UserError
from testbed.scenario.schema import check_scenario, load_scenario, override

ROOT = Path(__file__).parents[2]
GOOD = tomllib.loads((ROOT / "scenarios" / "quickstart.toml").read_text())


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.toml")), ids=lambda path: path.stem)
def test_every_scenario_that_is_shipped_is_valid(path: Path) -> None:
    assert load_scenario(path).name == path.stem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"polcy": "EASY"}, ["polcy", "nearest: policy"]),
        ({"time_scale": 0}, ["time_scale = 0", "greater than or equal to 0.001"]),
        ({"time_scale": 1e308}, ["time_scale = 1e+308", "less than or equal to 1000000"]),
        ({"time_scale": 1e-300}, ["time_scale = 1e-300", "greater than or equal to 0.001"]),
        ({"time_scale": float("nan")}, ["time_scale", "finite"]),
        ({"period_s": -1}, ["period_s = -1", "greater than or equal to 0.1"]),
        ({"period_s": 1e-6}, ["period_s = 1e-06", "greater than or equal to 0.1"]),
        ({"programs": {"units_per_core_s": 1e300}}, ["programs.units_per_core_s = 1e+300", "1000000000000"]),
        ({"nodes": [{"name": "a", "cpus": 1e9}]}, ["nodes.0.cpus = 1000000000.0", "4096"]),
        ({"nodes": [{"name": "a", "cpus": float("nan")}]}, ["nodes.0.cpus = nan", "finite"]),
        ({"nodes": [{"name": "a", "memory_mib": 99999999999999999999}]}, ["nodes.0.memory_mib = 99999", "67108864"]),
        ({"deadlines": {"command_s": 1e308}}, ["deadlines.command_s = 1e+308", "1000000000"]),
        ({"name": "Quick Start"}, ["name = 'Quick Start'"]),
        ({"nodes": []}, ["nodes"]),
        ({"nodes": [{"name": "n a"}]}, ["nodes.0.name = 'n a': expected 1 to 63 of a-z, 0-9 and -"]),
        ({"run": {"part_mib": 0}}, ["run.part_mib = 0: expected greater than or equal to 1"]),
        ({"run": {"part_mb": 64}}, ["unknown key run.part_mb", "part_mib"]),
        ({"policy": 7}, ["policy = 7: expected the name of a policy, or a list of names"]),
        ({"lab": "x" * 10**6}, ["lab = 'xxx", "(1000002 characters): expected 1 to 63 of a-z"]),
        ({"nodes": [{"name": "a"}, {"name": "a"}]}, ["nodes with different names, found more than one a"]),
        ({"nodes": [{"name": "a", "memory_mb": 5}]}, ["nodes.0.memory_mb", "nearest: memory_mib"]),
        ({"programs": {"serial": "os; system"}}, ["programs.serial = 'os; system'"]),
        ({"recorders": "influx"}, ["recorders = 'influx'"]),
        ({"programs": {"topologies": ["rign"]}}, ["programs.topologies.0 = 'rign'", "'ring'"]),
        ({"workload": {"trace": "x.csv", "segment": {"week": 1, "jobs": 3}}}, ["workload.segment", "one of"]),
        ({"workload": {"trace": "x.csv", "segment": {"start_s": 1}}}, ["together"]),
        ({"deadlines": {"tries": 0}}, ["deadlines.tries = 0"]),
        ({"migration": {"mechanism": "magic"}}, ["migration.mechanism = 'magic'", "'live'"]),
        ({"migration": {"budget_s_per_gib": 0}}, ["migration.budget_s_per_gib = 0", "greater than 0"]),
    ],
)
def test_a_wrong_value_is_named(change: dict, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        check_scenario({**copy.deepcopy(GOOD), **change}, Path("s.toml"))
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    for word in ["s.toml", *words]:
        assert word in text


def test_a_missing_key_is_named() -> None:
    data = {key: value for key, value in GOOD.items() if key != "policy"}
    with pytest.raises(UserError, match=r"s\.toml: missing key policy"):
        check_scenario(data, Path("s.toml"))


def test_a_missing_and_a_broken_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no\.toml: cannot read: No such file or directory; expected a scenario"):
        load_scenario(tmp_path / "no.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(UserError, match=r"bad\.toml: not a TOML file"):
        load_scenario(tmp_path / "bad.toml")


def test_a_relative_trace_starts_from_the_scenario_file(tmp_path: Path) -> None:
    data = {**GOOD, "workload": {"trace": "traces/a.csv"}}
    assert check_scenario(data, tmp_path / "s.toml").workload.trace == tmp_path / "traces" / "a.csv"


def test_the_command_line_wins_and_is_checked() -> None:
    scenario = check_scenario(GOOD, Path("s.toml"))
    changed = override(scenario, policies=("EASY",), trace=Path("t.swf"), time_scale=2.0, seed=9)
    assert (changed.policy, changed.time_scale, changed.seed) == (("EASY",), 2.0, 9)
    assert changed.workload.trace == Path("t.swf")
    with pytest.raises(TestbedError, match="--time-scale"):
        override(scenario, time_scale=float("inf"))
