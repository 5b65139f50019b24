"""Gantt charts: every span has its bar, no bars overlap, numbers are inside their bars, large charts stay small."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from testbed.study.report.run.difference import Difference, difference
from testbed.study.report.run.gantt import YIELDS, draw_gantt, height_in, is_dense
from testbed.study.report.run.gantt_dense import cells_of
from testbed.study.report.run.gantt_difference import difference_height_in, draw_difference
from testbed.study.report.run.lanes import GONE, Bar, lanes_of
from testbed.study.report.run.schedule import (
    IN_MEMORY,
    KINDS,
    LIVE,
    PENALTIES,
    RESTORE,
    RUN,
    RUNS,
    SAVE,
    START,
    TRANSFER,
    WAIT,
    JobFacts,
    Schedule,
    Span,
)  # fmt: skip

MEMORY = {1: 0.4, 2: 0.5, 3: 0.1, 4: 1.0}


def facts(job: int, state: str = "done") -> JobFacts:
    return JobFacts(job, state, 1, 0.5, MEMORY[job], 0.0, 0.0, 50.0)


def schedule(spans: list[Span], *, nodes: int = 2, name: str = "measured", state: str = "done") -> Schedule:
    jobs = {job: facts(job, state) for job in {span.job for span in spans}}
    return Schedule(name, spans, jobs, nodes, ("node-a",), 60.0, max((span.end_s for span in spans), default=0.0))


def story() -> Schedule:
    """One job of each kind: preempted and moved, migrated live, short, and one that needs a whole node."""
    return schedule([
        Span(1, 0, 0, 0, 2, START, 1.0), Span(1, 0, 0, 2, 10, RUN, 1.0), Span(1, 0, 0, 10, 14, RUN, 0.5),
        Span(1, 0, 0, 14, 16, SAVE, 0.0), Span(1, 0, 0, 24, 28, WAIT, 0.0), Span(1, 0, 1, 28, 32, TRANSFER, 0.0),
        Span(1, 0, 1, 32, 36, RESTORE, 0.5), Span(1, 0, 1, 36, 50, RUN, 0.5), Span(2, 0, 0, 0, 8, RUN, 0.25),
        Span(2, 0, 0, 8, 12, LIVE, 0.25), Span(2, 0, 1, 12, 30, RUN, 1.0), Span(3, 0, 1, 49.99, 50, RUN, 1.0),
        Span(4, 0, 0, 17, 40, RUN, 0.9),
    ])  # fmt: skip


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    spans = []
    for job in MEMORY:
        for task in range(draw(st.integers(1, 2))):
            times = sorted(draw(st.lists(st.integers(0, 30), max_size=8, unique=True)))
            for begin_s, end_s in pairwise(times):
                if draw(st.integers(0, 3)):
                    kind = draw(st.sampled_from(KINDS))
                    spans.append(Span(job, task, draw(st.integers(0, 1)), begin_s, end_s, kind, 0.5))
    return schedule(spans, state=draw(st.sampled_from(["done", "paused"])))


def overlap(one: Bar, other: Bar) -> bool:
    in_time = one.begin_s < other.end_s and other.begin_s < one.end_s
    low, high = max(one.bottom, other.bottom), min(one.bottom + one.height, other.bottom + other.height)
    return one.node == other.node and in_time and high - low > 1e-6


@settings(max_examples=40)
@given(schedules())
def test_every_span_has_one_place_of_its_own(given_schedule: Schedule) -> None:
    lanes = lanes_of(given_schedule)
    for bars in (lanes.in_memory, lanes.saved):
        for index, bar in enumerate(bars):
            assert not any(overlap(bar, other) for other in bars[:index])
            assert {(piece.job, piece.task, piece.node) for piece in bar.pieces} == {(bar.job, bar.task, bar.node)}
    assert all(piece.kind in IN_MEMORY for bar in lanes.in_memory for piece in bar.pieces)
    drawn = Counter(piece for bar in (*lanes.in_memory, *lanes.saved) for piece in bar.pieces if piece.kind != GONE)
    assert drawn == Counter(given_schedule.spans)
    assert all(bar.height == MEMORY[bar.job] for bar in lanes.in_memory)
    assert lanes.top == max(1.0, *(bar.bottom + bar.height for bar in lanes.in_memory), 1.0)


def test_a_preemption_is_a_gap_on_the_shelf_of_the_node_that_keeps_the_image() -> None:
    lanes = lanes_of(story())
    saved = [(bar.node, [(piece.kind, piece.begin_s, piece.end_s) for piece in bar.pieces]) for bar in lanes.saved]
    assert saved == [(0, [(GONE, 16, 24), (WAIT, 24, 28)]), (1, [(TRANSFER, 28, 32)])]
    unfinished = schedule([Span(2, 0, 1, 0, 5, SAVE, 0.0), Span(3, 0, 1, 0, 9, RUN, 1.0)], state="paused")
    assert [(bar.job, bar.begin_s, bar.end_s) for bar in lanes_of(unfinished).saved] == [(2, 5, 9)]


def test_bars_that_fit_on_a_node_in_some_order_do_not_leave_it() -> None:
    # by their begins, job 2 would come between the others and job 4's kind, which ends later, on top
    spans = [Span(3, 0, 0, 0, 9, RUN, 1.0), Span(1, 0, 0, 1, 4, RUN, 1.0), Span(1, 1, 0, 2, 20, RUN, 1.0)]
    spans += [Span(2, 0, 0, 4, 12, RUN, 1.0)]
    lanes = lanes_of(schedule(spans))
    assert lanes.top == pytest.approx(1.0)


@settings(max_examples=30)
@given(schedules(), st.integers(1, 50))
def test_cells_keep_every_second_of_cpu(given_schedule: Schedule, bins: int) -> None:
    end_s = given_schedule.end_s or 1.0
    cells = cells_of(given_schedule, end_s, bins)
    for node in range(2):
        own = [span for span in given_schedule.spans if span.node == node]
        used = sum((s.end_s - s.begin_s) * s.yield_frac * 0.5 for s in own if s.kind in RUNS)
        held = sum(s.end_s - s.begin_s for s in own if s.kind in PENALTIES)
        assert cells.used_cpu[node].sum() * end_s / bins == pytest.approx(used, abs=1e-9)
        assert cells.wanted_cpu[node].sum() * end_s / bins == pytest.approx(2 * used, abs=1e-9)
        assert cells.held_up[node].sum() * end_s / bins == pytest.approx(held, abs=1e-9)
    assert min(part.min() for part in (cells.used_cpu, cells.wanted_cpu, cells.held_up)) >= -1e-9


def gantt_figure(schedules: Sequence[Schedule], *, width_in: float = 10.0) -> Figure:
    figure = Figure(figsize=(width_in, height_in(schedules)), layout="constrained", facecolor="white")
    draw_gantt(figure, schedules)
    return figure


def difference_figure(found: Difference) -> Figure:
    figure = Figure(figsize=(10.0, difference_height_in(found)), layout="constrained", facecolor="white")
    draw_difference(figure, found)
    return figure


def drawn(figure: Figure) -> bytes:
    with mpl.rc_context({"svg.hashsalt": "gantt", "svg.fonttype": "none"}):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def test_colours_are_yields_and_what_is_no_progress_is_hatched() -> None:
    figure = gantt_figure([story()])
    axes = figure.axes[0]
    drawn(figure)
    boxes = {each.get_gid(): each for each in axes.collections if isinstance(each, PolyCollection)}
    assert {kind: len(each.get_paths()) for kind, each in boxes.items()} == {
        START: 1, RUN: 7, SAVE: 1, RESTORE: 1, LIVE: 1,
    }  # fmt: skip
    assert boxes[RUN].get_hatch() is None
    hatches = [boxes[kind].get_hatch() for kind in (START, SAVE, RESTORE, LIVE)]
    assert None not in hatches
    assert len(set(hatches)) == 4
    yields = [span.yield_frac for bar in lanes_of(story()).in_memory for span in bar.pieces if span.kind == RUN]
    np.testing.assert_allclose(boxes[RUN].get_facecolor(), [mpl.colormaps[YIELDS](share) for share in yields])
    lines = {each.get_gid() for each in axes.collections if isinstance(each, LineCollection)}
    assert {GONE, WAIT, TRANSFER} <= lines
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(words) == 7
    assert [label.get_text() for label in axes.get_yticklabels()] == ["node-a", "1"]


def test_numbers_are_written_inside_their_bars_or_not_at_all() -> None:
    for width_in in (4.3, 10.0):
        figure = gantt_figure([story()], width_in=width_in)
        FigureCanvasAgg(figure).draw()
        written = Counter(text.get_text() for text in figure.axes[0].texts)
        assert written["3"] == 0, "a bar of a hundredth of a second is too small"
        assert {"1", "2", "4"} <= set(written)
        for axes in figure.axes[:1]:
            boxes = [path.get_extents(axes.transData) for each in axes.collections for path in each.get_paths()]
            for text in axes.texts:
                if text.get_bbox_patch() is None:
                    inside = text.get_window_extent()
                    assert any(
                        box.x0 <= inside.x0 and inside.x1 <= box.x1 and box.y0 <= inside.y0 and inside.y1 <= box.y1
                        for box in boxes
                    ), text
        labels = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
        assert not labels[0].overlaps(labels[1])
        assert all(label.x0 >= 0 for label in labels)
        whole = figure.bbox
        assert all(text.get_window_extent().x1 <= whole.x1 for text in figure.legends[0].get_texts())


def test_schedules_side_by_side_share_their_axis_and_the_same_figure_gives_the_same_bytes() -> None:
    figures = []
    for _ in range(2):
        figure = Figure(figsize=(8.0, height_in([story(), story()])), layout="constrained")
        draw_gantt(figure, [story(), schedule([Span(1, 0, 0, 0, 90, RUN, 1.0)], name="simulated")])
        figures.append(figure)
    one, other = figures[0].axes[:2]
    assert one.get_xlim() == other.get_xlim() == (0.0, 90.0)
    assert [axes.get_title(loc="left") for axes in (one, other)] == ["measured", "simulated"]
    assert drawn(figures[0]) == drawn(figures[1])


def test_a_run_without_a_span_is_drawn_empty() -> None:
    empty = schedule([])
    assert b"node-a" in drawn(gantt_figure([empty]))
    assert b"node-a" in drawn(difference_figure(difference(empty, empty)))


def test_differences_are_above_and_below_the_line_of_their_node() -> None:
    other = schedule([Span(2, 0, 1, 0, 20, RUN, 1.0)], name="simulated")
    figure = difference_figure(difference(story(), other))
    drawn(figure)
    axes = figure.axes[0]
    first, second = (each for each in axes.collections if isinstance(each, PolyCollection))
    (line,) = {float(each.get_ydata()[0]) for each in axes.lines if math.isclose(each.get_ydata()[0], 0.0)}
    assert min(path.vertices[:, 1].min() for path in first.get_paths()) >= line
    assert [path.vertices[:, 1].max() for path in second.get_paths()] == [line]
    assert [path.vertices[:, 0].max() for path in second.get_paths()] == [12.0], "both ran job 2 there from 12 s on"
    assert second.get_hatch()
    assert to_rgba(first.get_facecolor()[0]) != to_rgba(second.get_facecolor()[0])


def large() -> Schedule:
    """128 nodes, 1500 jobs, 37 500 spans."""
    random = np.random.default_rng(1)
    spans, jobs = [], {}
    for job in range(1500):
        begin_s, need = float(random.uniform(0, 10_000)), float(random.choice([0.25, 0.5, 1.0]))
        jobs[job] = JobFacts(job, "done", 5, need, 0.1, begin_s, begin_s, begin_s + 500)
        for task, node in enumerate(random.integers(0, 128, 5).tolist()):
            for piece in range(5):
                kind = RESTORE if piece == 2 and job % 10 == 0 else RUN
                at_s = begin_s + 100 * piece
                spans.append(Span(job, task, node, at_s, at_s + 100, kind, float(random.uniform(0.1, 1))))
    return Schedule("measured", spans, jobs, 128, (), 60.0, 10_500.0)


def test_very_many_spans_become_a_picture_that_is_quick_and_small() -> None:
    many = large()
    assert is_dense(many)
    assert not is_dense(story())
    figure = gantt_figure([many])
    text = drawn(figure)
    assert len(text) < 3_000_000
    assert len(figure.findobj()) < 1000 < len(many.spans)  # an artist per span would take minutes
    picture, ticks = (np.ma.filled(image.get_array(), np.nan) for image in figure.axes[0].images)
    assert picture.shape[0] == ticks.shape[0] == 128 * 5
    assert 0.1 <= np.nanmin(picture) <= np.nanmax(picture) <= 1.0
    assert np.isfinite(ticks).any()
    assert not (np.isfinite(picture) & np.isfinite(ticks)).any()
