"""The check of golden figures fails when it must, because a check that cannot fail is useless."""

from __future__ import annotations

import pytest
from support.golden.pins import as_text, changed_lines, differences, exact

FIGURES = {"jobs": 2, "stretch": 1.5, "rows": [1, 2.0, "a"], "none": None}


@pytest.fixture
def pinned(tmp_path):
    path = tmp_path / "figures.json"
    path.write_text(as_text(path, FIGURES))
    return path


def test_equal_figures_do_not_differ(pinned):
    assert differences(pinned, FIGURES, exact) == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"stretch": 1.5000000000000002}, "/stretch: pinned 1.5, now 1.5000000000000002"),
        ({"jobs": 2.0}, "/jobs: pinned 2, now 2.0"),
        ({"rows": [1, 2.0]}, "/rows/3: pinned 'a', now nothing"),
        ({"rows": [1, 2.0, "a", 4]}, "/rows/4: pinned nothing, now 4"),
        ({"none": 0}, "/none: pinned None, now 0"),
        ({"more": 1}, "/more: pinned nothing, now 1"),
    ],
)
def test_each_kind_of_difference_is_named(pinned, change, line):
    assert differences(pinned, FIGURES | change, exact) == [line]


def test_a_tolerance_is_of_the_innermost_name(pinned):
    near = FIGURES | {"rows": [1, 2.0 + 1e-13, "a"], "stretch": 1.5 + 1e-13}
    found = differences(pinned, near, lambda name: 1e-12 if name == "rows" else 0.0)
    assert [line.partition(":")[0] for line in found] == ["/stretch"]
    assert differences(pinned, FIGURES | {"jobs": 3}, lambda _name: 1e-12) == ["/jobs: pinned 2, now 3"]


def test_lines_and_toml_are_compared_as_what_they_are(tmp_path):
    text, model = tmp_path / "report.txt", tmp_path / "model.toml"
    text.write_text("a\nb\n")
    model.write_text("x = 1.0 # measured\n")
    assert differences(text, "a\nc\n", exact) == ["line/2: pinned 'b', now 'c'"]
    assert differences(model, "x = 1.0\n", exact) == []
    assert differences(model, "x = 1.1\n", exact) == ["/x: pinned 1.0, now 1.1"]


def test_a_missing_file_is_a_difference_and_a_change_is_shown(tmp_path, pinned):
    assert differences(tmp_path / "none.json", FIGURES, exact) == ["none.json: no such file"]
    assert changed_lines(pinned, FIGURES) == ""
    assert '- "jobs": 2,\n+ "jobs": 3,' in changed_lines(pinned, FIGURES | {"jobs": 3})
