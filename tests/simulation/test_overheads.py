"""Costs of resumes and migrations: interpolation, factories, files, and messages about wrong files."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import UserError
from testbed.scheduling.simulation import overheads_parser as module
from testbed.scheduling.simulation.overheads import constant, linear, overhead_s
from testbed.scheduling.simulation.overheads_parser import parse_overheads

GOOD = """
[other]
anything = 1

[overheads]
concurrent_tasks = [1, 3]
memory_gb = [1.0, 2.0, 4.0]
resume_s = [[1, 2, 6], [2, 4, 12]]
migration_s = [[2, 3, 7], [3, 5, 13]]
"""


@pytest.mark.parametrize(
    ("at_once", "memory_gb", "resume_s"),
    [
        (1, 1.0, 1.0),
        (1, 1.5, 1.5),
        (1, 3.0, 4.0),
        (1, 6.0, 10.0),  # beyond the last two points
        (1, 0.5, 0.5),
        (2, 2.0, 3.0),  # between the levels
        (3, 4.0, 12.0),
        (5, 4.0, 18.0),  # beyond the last two levels
        (9, 0.1, 0.5),
        (1, 0.0, 0.0),
    ],
)
def test_a_table_is_linear_between_its_points_and_beyond_them(tmp_path, at_once, memory_gb, resume_s):
    file = tmp_path / "overheads.toml"
    file.write_text(GOOD)
    table = parse_overheads(str(file)).table(8.0).penalties
    assert overhead_s(table, table.resume_s, float(at_once), memory_gb / 8.0) == pytest.approx(resume_s)


def test_seconds_are_never_negative(tmp_path):
    file = tmp_path / "overheads.toml"
    file.write_text("[overheads]\nmemory_gb = [4, 8]\nresume_s = [[0, 9]]\nmigration_s = [[0, 9]]\n")
    table = parse_overheads(str(file)).table(8.0).penalties
    assert overhead_s(table, table.migration_s, 5.0, 0.1) == 0.0
    assert overhead_s(table, table.migration_s, 5.0, 1.0) == 9.0


@given(st.floats(0, 100), st.floats(0.01, 10), st.floats(0.01, 100), st.integers(1, 400), st.floats(0.05, 1))
def test_linear_is_its_formula(fixed_s, gb_per_s, total_gb_per_s, at_once, mem_req_frac):
    table = linear(fixed_s, gb_per_s, total_gb_per_s).table(16.0).penalties
    read_s = mem_req_frac * 16.0 * max(1 / gb_per_s, at_once / total_gb_per_s)
    found = [
        overhead_s(table, seconds, float(at_once), mem_req_frac) for seconds in (table.resume_s, table.migration_s)
    ]
    np.testing.assert_allclose(found, [fixed_s + read_s, fixed_s + 2 * read_s], rtol=1e-6)


@given(st.floats(0, 1e6), st.integers(1, 1000), st.floats(0.01, 1))
def test_constant_is_constant(seconds, at_once, mem_req_frac):
    table = constant(seconds).table(8.0).penalties
    assert overhead_s(table, table.resume_s, float(at_once), mem_req_frac) == seconds


def test_texts_name_the_makers_and_plugins(monkeypatch):
    assert parse_overheads("constant:12.5").resume_s.tolist() == [[12.5]]
    assert parse_overheads("linear:fixed_s=2,gb_per_s=0.5").name == "linear:fixed_s=2,gb_per_s=0.5"
    seen = []

    class Point:
        name = "tape"

        def load(self):
            return lambda text: seen.append(text) or constant(7)

    monkeypatch.setattr(module, "entry_points", lambda group: [Point()] if group == "testbed.overheads" else [])
    assert parse_overheads("tape:slow,old").resume_s.tolist() == [[7.0]]
    assert seen == ["slow,old"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("constnat:3", "no overheads 'constnat'.*nearest: constant"),
        ("constant:many", "expected seconds"),
        ("constant:-1", "not negative"),
        ("constant:nan", "not negative"),
        ("constant:1e300", "at most 1000000000"),
        ("linear:fixed_s=1e300,gb_per_s=1", "more than 1000000000 s"),
        ("linear:gb_per_s=1", "fixed_s missing"),
        ("linear:fixed=1", "nearest: fixed_s"),
        ("linear:fixed_s=1,gb_per_s=x", "gb_per_s = 'x': expected a number"),
        ("linear:fixed_s=1,gb_per_s=0", "not positive"),
        ("no-such.toml", "no-such.toml: cannot read"),
    ],
)
def test_wrong_texts_are_explained(text, message):
    with pytest.raises(UserError, match=message):
        parse_overheads(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[overheads]", "[overhead]", r"no table \[overheads\]; nearest: overhead"),
        ("memory_gb", "memory_gib", "unknown key overheads.memory_gib; nearest: memory_gb|memory_gb is missing"),
        ("concurrent_tasks = [1, 3]", "", r"resume_s is \(2, 3\): expected \(1, 3\)"),
        ("[1, 3]", "[1, 1e300]", r"overheads.concurrent_tasks.1 = 1e\+300"),
        ("[1, 3]", "[2, 3]", "concurrent_tasks = .*: expected 1 as its first level"),
        ("[1.0, 2.0, 4.0]", "[1.0, 4.0, 2.0]", "memory_gb must increase"),
        ("[1, 2, 6]", "[1, 2]", "resume_s = .*rows of equal length"),
        ("[1, 2, 6]", "[1, -2, 6]", "resume_s.0.1 = -2.*greater than or equal to 0"),
        ("[1, 2, 6]", "[1, inf, 6]", "resume_s.0.1 = inf.*finite"),
        ("[overheads]", "[overheads", "not a TOML file"),
    ],
)
def test_wrong_files_are_explained(tmp_path, old, new, message):
    file = tmp_path / "overheads.toml"
    file.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(UserError, match=message) as caught:
        parse_overheads(str(file))
    assert str(caught.value).startswith(str(file))
