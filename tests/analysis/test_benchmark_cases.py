"""The cases of the benchmarks: only missing ones are measured, in an order that an interrupted benchmark continues."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
CASES = [
    {"world": world, "seed": seed, "load": load, "way": way}
    for world in ("simulated", "live") for seed in (1, 2, 3) for load in (0.5, 0.9) for way in ("", "/a", "/b")
]  # fmt: skip


@pytest.fixture(scope="module")
def benchmarks() -> Any:
    """The modules `cases` and `tables`, which import others of their folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        import cases
        import tables

        yield SimpleNamespace(cases=cases, tables=tables)
    for name in ("cases", "tables", "rows", "intervals"):
        sys.modules.pop(name, None)


def order(benchmarks: Any, path: Path) -> list[dict[str, Any]]:
    return list(benchmarks.cases.missing(path, CASES, "world", "seed"))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps({**row, "took_s": 1.5}) + "\n" for row in rows))


def test_groups_stay_together_and_each_has_an_order_of_its_own(benchmarks: Any, tmp_path: Path) -> None:
    found = order(benchmarks, tmp_path / "rows.jsonl")
    groups = [found[begin : begin + 6] for begin in range(0, len(found), 6)]
    assert [{(case["world"], case["seed"]) for case in group} for group in groups] == [
        {(world, seed)} for world in ("simulated", "live") for seed in (1, 2, 3)
    ]
    ways = [[(case["load"], case["way"]) for case in group] for group in groups]
    assert sorted(ways[0]) == sorted(ways[1]) == sorted(set(ways[0]))
    assert ways[0] != ways[1], "the order depends on the seed"
    assert ways[:3] == ways[3:], "the seed alone decides the order"


@settings(max_examples=50, deadline=None)
@given(done=st.sets(st.integers(0, len(CASES) - 1)))
def test_the_rest_comes_in_the_same_order(benchmarks: Any, tmp_path_factory: Any, done: set[int]) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    whole = order(benchmarks, path)
    write(path, [whole[index] for index in done])
    assert order(benchmarks, path) == [case for index, case in enumerate(whole) if index not in done]


def test_a_table_pairs_the_rows_of_a_seed(benchmarks: Any, tmp_path: Path) -> None:
    rows = [
        {"way": way, "seed": seed, "stretch": stretch, "found": None}
        for way, stretches in (("", (1.0, 2.0, 4.0)), ("/a", (0.5, 3.0))) for seed, stretch in enumerate(stretches)
    ]  # fmt: skip
    plain, other = (benchmarks.cases.by_seed(rows, {"way": way}) for way in ("", "/a"))
    tables = benchmarks.tables
    assert tables.measure_cells(plain, "stretch") == ["3", "stretch", "2", "1 to 4, 75 %"]
    assert tables.measure_cells(plain, "found") == tables.measure_cells(plain, "unknown") == []
    assert tables.ratio_cells(other, plain, "stretch") == ["1.000", "0.500 to 1.500, 50 %"]
    assert tables.difference_cells(other, plain, "stretch") == ["+0.25", "-0.5 to +1, 50 %"]
    assert tables.ratio_cells(other, {}, "stretch") == ["", ""]
    assert tables.markdown(("a", "b"), [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"
