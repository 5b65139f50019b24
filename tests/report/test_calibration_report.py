"""The page of a calibration: it draws the measurements, names the missing ones, and needs no network."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from support.report.page_reader import Reader
from support.report.synthetic_calibration import EXPERIMENTS, MEMORIES_MIB, write_trials

from testbed.errors import UserError
from testbed.study.calibration.experiments.save_restore import figure_memory, reschedulings
from testbed.study.calibration.from_trials import calibrate_from
from testbed.study.calibration.model import About, Calibration, Outlier, Quantity
from testbed.study.calibration.trials import read_trials
from testbed.study.report.calibration.data import Measured, Row, Series, listed, middle, rows_of
from testbed.study.report.calibration.lines import lines_of
from testbed.study.report.calibration.page import calibration_page, write_calibration_report
from testbed.study.report.calibration.suspend import figure_suspend
from testbed.study.report.page import document as page_module
from testbed.study.report.page.style import HALF_IN, NARROW_IN, WIDE_IN, Absent, inline_svg, write_chart

FIGURES = {
    "save-restore": (
        "calibration_penalty",
        "calibration_memory",
        "calibration_suspend",
        "calibration_star",
        "calibration_clocks",
    ),
    "mpi-save-restore": ("calibration_mpi",),
    "live-migration": ("calibration_live",),
    "transfer": ("calibration_transfer",),
    "start": ("calibration_start",),
    "beside": ("calibration_beside",),
    "cap-accuracy": ("calibration_caps",),
    "cap-response": ("calibration_response",),
    "share-accuracy": ("calibration_shares",),
    "proportionality": ("calibration_progress",),
    "isolation": ("calibration_isolation",),
    "virtualisation": ("calibration_virtualisation",),
    "enactment": ("calibration_enactment",),
    "bus": ("calibration_bus",),
    "decision": ("calibration_decision",),
}
ALL = {name for names in FIGURES.values() for name in names}


def made_of(folder, **how):
    path = write_trials(folder, **how)
    trials = read_trials(path)
    return trials, calibrate_from(trials, path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return made_of(tmp_path_factory.mktemp("whole"), blocks=2)


@pytest.fixture(scope="module")
def poor(tmp_path_factory):
    """Two experiments done, one of them with a failed trial, the others left out."""
    left_out = [name for name in EXPERIMENTS if name not in ("bus", "start")]
    return made_of(tmp_path_factory.mktemp("poor"), blocks=2, leave_out=left_out, failing=["start"])


@pytest.fixture
def words_only(monkeypatch):
    """Leave out the drawings, which take most of the time."""
    monkeypatch.setattr(page_module, "inline_svg", lambda _chart, _width_in, variant: f"<svg class={variant}></svg>")


def drawn(chart, width_in=WIDE_IN):
    figure = Figure(figsize=(width_in, chart.height_in), layout="constrained")
    chart.draw(figure)
    figure.draw_without_rendering()
    return figure


def figures_of(page):
    return [one for section in page.sections for one in section.figures]


def bare_calibration(*quantities, outliers=()):
    return Calibration(About("", "", 0, 0, 0, (), ""), {}, quantities, {}, None, None, outliers)


def test_every_experiment_has_its_figure_and_verdicts_come_first(whole, words_only, tmp_path):
    trials, calibration = whole
    assert set(FIGURES) == set(EXPERIMENTS)
    page = calibration_page(trials, calibration)
    assert [one.name for one in figures_of(page) if isinstance(one, Absent)] == []
    assert {one.name for one in figures_of(page)} == ALL
    write_calibration_report(trials, calibration, tmp_path / "page.html")
    found = Reader((tmp_path / "page.html").read_text())
    assert {"assumptions", "quantities", "experiments", "nodes", *ALL} <= set(found.ids)
    assert found.ids.index("assumptions") < found.ids.index("calibration_penalty") < found.ids.index("quantities")
    for name, assumption in calibration.assumptions.items():
        assert name.replace("_", " ") in found.text
        assert assumption.statement in found.text
    assert f"{len(calibration.quantities)} quantities" in found.text
    assert re.search(r"foreign CPU load\s?median \d\.\d %, at most \d+\.\d % of the machine", found.text)
    for quantity in calibration.quantities:
        assert quantity.name in found.text


@pytest.mark.parametrize("left_out", sorted(FIGURES))
def test_what_was_not_measured_is_one_line_with_its_reason(whole, left_out):
    trials, calibration = whole
    without = type(trials)(
        trials.begin | {"skipped": {left_out: "the lab has no such thing"}},
        [one for one in trials.outcomes if one.experiment != left_out],
    )
    absent = {
        one.name: one.reason for one in figures_of(calibration_page(without, calibration)) if isinstance(one, Absent)
    }
    other_sources = {"calibration_penalty", "calibration_clocks"}  # live migrations provide a part of these
    assert set(FIGURES[left_out]) - other_sources <= set(absent) <= set(FIGURES[left_out])
    assert all(f"{left_out} was left out on this lab: the lab has no such thing." in why for why in absent.values())


def test_failed_trials_are_shown_and_text_of_others_is_escaped(poor, words_only, tmp_path):
    trials, calibration = poor
    write_calibration_report(trials, calibration, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    found = Reader(text)
    assert "failed" in found.ids
    assert "Trial 1 (start) failed: guest <g1> failed: no <space> left" in found.text
    assert "1 of 20 trials" in found.text
    assert not {"g1", "space", "what", "i"} & set(found.tags)
    assert "&lt;space&gt;" in text
    assert "Imaginary <i>CPU</i> 3.0 GHz" in found.text
    absent = ALL - {"calibration_bus", "calibration_start"}
    assert absent <= set(found.ids)
    assert found.text.count("was left out on this lab: needs <what> this lab does not have.") == len(absent)
    assert 'class="verdict ill"' in text


def test_all_trials_of_an_experiment_failed(tmp_path):
    path = write_trials(tmp_path, blocks=1, leave_out=set(EXPERIMENTS) - {"bus", "decision"}, failing=["bus"])
    trials = read_trials(path)
    page = calibration_page(trials, calibrate_from(trials, path))
    reasons = {one.name: one.reason for one in figures_of(page) if isinstance(one, Absent)}
    assert reasons["calibration_bus"] == (
        "Not measured: all 1 trials of bus failed, the last with: guest <g1> failed: no <space> left."
    )
    assert "calibration_decision" not in reasons


def test_every_observation_is_a_dot(whole):
    trials, calibration = whole
    measured = Measured("save-restore", trials, calibration)
    grid, others = reschedulings(measured)
    assert len(grid) + len(others) == len(rows_of(trials, "save-restore"))
    figure = drawn(figure_memory(measured))
    assert len(figure.axes) == 4
    for axes in figure.axes:
        dots = [one for one in axes.collections if isinstance(one, PathCollection) and one.get_facecolor().size]
        assert sum(len(one.get_offsets()) for one in dots) == len(grid)
        assert len({tuple(one.get_paths()[0].vertices.ravel()) for one in dots}) == 3  # shapes distinguish levels, too


def test_suspend_and_resume_of_guests_alone_have_medians_with_intervals_at_every_size(whole):
    trials, calibration = whole
    measured = Measured("save-restore", trials, calibration)
    grid, _others = reschedulings(measured)
    alone = [row for row in grid if row.number("concurrent") == 1.0]
    sizes = {row.number("memory_mib") for row in alone}
    chart = figure_suspend(measured, grid)
    (axes,) = drawn(chart).axes
    dots = [one for one in axes.collections if isinstance(one, PathCollection)]
    assert sum(len(one.get_offsets()) for one in dots) == 2 * len(alone)
    assert len(axes.containers) == 2 * len(sizes), "each with its interval"
    resume_s = [row.number("restore_s") + row.number("first_progress_s") for row in alone]
    assert sorted(dots[1].get_offsets()[:, 1]) == pytest.approx(sorted(resume_s))
    assert all(f"{size:g} MiB: " in chart.caption for size in sizes)
    assert "150 s to suspend 7 GB, and 129 s" in chart.caption


def test_without_a_guest_alone_there_is_no_figure_of_suspend_and_resume(whole):
    trials, calibration = whole
    measured = Measured("save-restore", trials, calibration)
    grid, _others = reschedulings(measured)
    together = [row for row in grid if row.number("concurrent") != 1.0]
    assert figure_suspend(measured, together).reason == "No guest was saved alone."
    assert (
        figure_suspend(measured, []).reason
        == "Not measured: the trials of save-restore lack the values that this figure needs."
    )


@pytest.mark.slow
@pytest.mark.parametrize("width_in", [pytest.param(WIDE_IN, marks=pytest.mark.long), NARROW_IN, HALF_IN])
def test_text_in_figures_is_never_below_9_pt(whole, width_in):
    for chart in calibration_page(*whole).charts:
        if chart.wide == (width_in == HALF_IN):
            continue
        svg = inline_svg(chart, width_in, "test")
        sizes = [float(size) for size in re.findall(r"font(?:-size)?: ?([\d.]+)px", svg)]
        assert sizes, chart.name
        assert min(sizes) >= 9.0, f"{chart.name}: {min(sizes)}"


def test_a_wild_outlier_is_marked_and_told_but_does_not_squeeze_the_rest():
    rows_mib = [100.0, 200.0] * 6
    trials = read_of(
        [("save-restore", {"memory_mib": mib, "touched_frac": 1.0, "storage": "disk", "cache": "warm", "concurrent": 1,
                           "program": "eatcpu"},
          {"save_s": 1.0, "restore_s": 1.0, "first_progress_s": 1.0, "penalty_s": 3.0 if place else 77.0})
         for place, mib in enumerate(rows_mib)]
    )  # fmt: skip
    calibration = bare_calibration(outliers=(Outlier("penalty_s", 1, 77.0, 3.0, 40.0),))
    figure = drawn(figure_memory(Measured("save-restore", trials, calibration)))
    penalty = figure.axes[3]
    assert penalty.get_ylim()[1] < 4.0
    assert "77 s" in [text.get_text() for text in penalty.findobj(Text)]
    rings = [one for one in penalty.collections if isinstance(one, PathCollection) and not one.get_facecolor().size]
    assert [one.get_offsets()[0][1] for one in rings] == [77.0]


def test_of_two_ways_that_were_measured_alike_the_warm_one_is_the_usual():
    seen = {"save_s": 1.0, "restore_s": 1.0, "first_progress_s": 1.0, "penalty_s": 3.0}
    place = {"memory_mib": 64, "touched_frac": 1.0, "storage": "disk", "concurrent": 1, "program": "eatcpu"}
    trials = read_of([("save-restore", place | {"cache": cache}, seen) for cache in ("cold", "warm")])
    grid, others = reschedulings(Measured("save-restore", trials, bare_calibration()))
    assert [row.values["cache"] for row in (*grid, *others)] == ["warm", "cold"]


def read_of(seen):
    from testbed.study.calibration.trials import Outcome, Trials

    return Trials(
        {}, [
            Outcome(trial=number, experiment=name, block=0, condition=condition, observations=(observation,))
            for number, (name, condition, observation) in enumerate(seen, start=1)
        ],
    )  # fmt: skip


def shared_rows():
    draw = np.random.default_rng(3)
    return [
        Row(number, {"memory_mib": mib, "concurrent": level, "save_s": time_s})
        for number, (mib, level) in enumerate([(mib, level) for mib in MEMORIES_MIB for level in (1, 4)] * 10)
        if (time_s := (1.0 + mib / 200.0 * max(1.0, level / 2.0)) * draw.lognormal(0.0, 0.03))
    ]


def test_lines_are_those_of_the_quantities_and_lie_in_their_bands():
    under = {"storage": "disk"}
    common = {"unit": "s", "n": 80, "observations": 80, "model": "shared", "condition": under}
    calibration = bare_calibration(
        Quantity("save_fixed_s", 1.0, 0.9, 1.1, **common),
        Quantity("save_mib_per_s", 200.0, 190.0, 210.0, **common),
        Quantity("save_total_mib_per_s", 400.0, 380.0, 420.0, **common),
    )
    one, four = lines_of(calibration, "save", under, shared_rows(), "save_s")
    assert (one.level, four.level) == (1, 4)
    assert one.time_s == pytest.approx(1.0 + one.memory_mib / 200.0)
    assert four.time_s == pytest.approx(1.0 + four.memory_mib / 100.0)
    for line in (one, four):
        assert ((0.99 * line.low_s < line.time_s) & (line.time_s < 1.01 * line.high_s)).all()
        assert (line.high_s - line.low_s < 0.2 * line.time_s).all()
    assert lines_of(calibration, "save", {"storage": "memory"}, shared_rows(), "save_s") == []


def test_a_constant_is_drawn_with_its_own_interval():
    calibration = bare_calibration(Quantity("save_s", 2.0, 1.5, 2.5, "s", 80, 80))
    (line,) = lines_of(calibration, "save", {}, shared_rows(), "save_s")
    assert (line.level, set(line.time_s), set(line.low_s), set(line.high_s)) == (0, {2.0}, {1.5}, {2.5})


def test_medians_are_over_trials_and_long_lists_are_cut_to_their_ends():
    rows = [Row(trial, {"x": float(value)}) for trial, value in ((1, 1), (1, 1), (2, 2), (3, 3))]
    found = middle(rows, "x")
    assert found.value == 1.5
    assert found.low < 1.5 < found.high
    words = listed([Series(f"g{size}", [Row(1, {"x": float(size)})], "x") for size in range(1, 9)], "s")
    assert words == "g1: 1 s; g8: 8 s"


def test_equal_input_gives_equal_bytes(poor, tmp_path):
    trials, calibration = poor
    write_calibration_report(trials, calibration, tmp_path / "one.html")
    write_calibration_report(*made_of(Path(tmp_path / "again"), blocks=2, leave_out=[
        name for name in EXPERIMENTS if name not in ("bus", "start")
    ], failing=["start"]), tmp_path / "two.html")  # fmt: skip
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_single_figures_are_written_for_documents(poor, tmp_path):
    charts = calibration_page(*poor).charts
    paths = [write_chart(chart, tmp_path / "figures", form) for chart in charts for form in ("svg", "png")]
    assert sorted(path.name for path in paths) == [
        "calibration_bus.png", "calibration_bus.svg", "calibration_start.png", "calibration_start.svg",
    ]  # fmt: skip
    assert (tmp_path / "figures/calibration_bus.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "figures/calibration_start.svg").read_text()


def test_a_place_that_cannot_be_written_is_a_users_mistake(poor, words_only, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the page"):
        write_calibration_report(*poor, tmp_path / "file" / "page.html")


@pytest.mark.slow
def test_the_whole_page_stands_alone(whole, tmp_path):
    trials, calibration = whole
    write_calibration_report(trials, calibration, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    found = Reader(text)
    assert not {"script", "iframe", "link", "img"} & set(found.tags)
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in found.addresses)
    assert {address[1:] for address in found.addresses if address.startswith("#")} <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))
    assert "default-src 'none'" in text
    assert not re.search(r"url\((?!#)", text)
    assert json.dumps(sorted(ALL - set(found.ids))) == "[]"
