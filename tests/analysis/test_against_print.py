"""The comparison with the printed tables: what it keeps of a campaign gives the same page; parts join to a whole."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from testbed.errors import UserError
from testbed.scheduling.policies.catalogue import available

ROOT = Path(__file__).resolve().parents[2]
CAMPAIGN = (ROOT / "scenarios/campaigns/rr7659-catalogue.toml").read_text()


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


against_print = load("against_print")
part = load("part_of_campaign").part
SOME = ("EASY", "GreedyPM */per/OPT=MIN/MINVT=600", "/per/OPT=MIN/MINVT=600")


def rows() -> Iterator[dict[str, str]]:
    """Results of three algorithms on all sets of traces, with more digits than are kept."""
    measures = against_print.measures_of(against_print.read_printed())
    for number, (traces, load) in enumerate([("hpc2n", ""), ("unscaled", ""), ("scaled", "0.5"), ("scaled", "0.7")]):
        for draw in range(1, 7):
            for kind, policy in enumerate(SOME):
                seed, week = ("", str(draw)) if traces == "hpc2n" else (str(draw), "")
                size = (7 + draw) / (3 + kind)
                values = {name: repr((1 + number + column) * size) for column, name in enumerate(measures)}
                about = {"traces": traces, "seed": seed, "week": week, "load": load, "policy": policy, "jobs": "1000"}
                yield {**about, **values}


def test_the_page_from_what_is_kept_is_the_page_of_the_campaign(tmp_path: Path) -> None:
    whole = list(rows())
    against_print.keep(whole, tmp_path / "ours.csv.xz")
    kept = against_print.read_results(tmp_path / "ours.csv.xz")
    assert [[each[key] for key in against_print.KEYS] for each in kept] == [
        [each[key] for key in against_print.KEYS] for each in whole
    ]
    page = against_print.page(against_print.compare(whole))
    assert page.count("\n| 2 |") > len(SOME), "printed values of Table 2 are on the page"
    assert against_print.page(against_print.compare(kept)) == page


@pytest.mark.parametrize(
    ("algorithm", "ours_of", "ours", "shown"),
    [
        ("FCFS", "FCFS, fluid", 20440.3, "20,440 | fluid |"),
        ("EASY", "EASY/2011, fluid", 0.0123456, "0.01235 | EASY/2011, fluid |"),
        ("Greedy */OPT=MIN", "Greedy */OPT=MIN", 1.0, "1 |  |"),
    ],
)
def test_values_are_written_out_and_names_once(algorithm: str, ours_of: str, ours: float, shown: str) -> None:
    row = against_print.Compared("2", "real-world", algorithm, "degradation", "mean", ours_of, 1.0, ours, 0.0, True)
    assert f"| {shown}" in against_print.page([row]).splitlines()[-1]


def test_a_missing_campaign_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.csv.xz").write_bytes(b"no archive")
    for name in ("none", "broken.csv.xz"):
        monkeypatch.setattr(sys, "argv", ["against_print.py", str(tmp_path / name)])
        with pytest.raises(SystemExit, match=rf"against_print: .*{name}.*expected results of a campaign"):
            against_print.main()


def test_names_in_print_are_those_of_the_catalogue_and_missing_results_are_told() -> None:
    names = {each["algorithm"] for each in against_print.read_printed()}
    assert names <= {*available(), "FCFS", "EASY"}
    with pytest.raises(UserError, match=r"FCFS on traces hpc2n: 0 results: expected 182"):
        against_print.check_whole(list(rows()))


def sets(text: str) -> Sequence[dict]:
    found: Sequence[dict] = tomllib.loads(text)["traces"]
    return found


def test_the_parts_of_a_campaign_are_its_sets_of_traces_with_the_rest_unchanged() -> None:
    whole = tomllib.loads(CAMPAIGN)
    parts = [tomllib.loads(part(CAMPAIGN, each["name"])) for each in whole["traces"]]
    assert [each for one in parts for each in one["traces"]] == whole["traces"]
    for one in parts:
        assert {**one, "traces": whole["traces"]} == whole


def test_loads_of_a_part_replace_those_of_the_campaign() -> None:
    (one,) = sets(part(CAMPAIGN, "scaled", "0.1,0.25"))
    (whole,) = (each for each in sets(CAMPAIGN) if each["name"] == "scaled")
    assert one == {**whole, "loads": [0.1, 0.25]}


@pytest.mark.parametrize(
    ("traces", "loads", "told"), [("other", "", "no traces 'other'"), ("unscaled", "0.1", "have no loads")]
)
def test_a_part_that_there_is_not_is_refused(traces: str, loads: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        part(CAMPAIGN, traces, loads)
