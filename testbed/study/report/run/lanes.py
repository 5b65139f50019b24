"""The layout of bars in a Gantt chart: on each node tasks in memory on top of each other, saved ones on a shelf below.

In [RR] tasks share a CPU, but never memory: the fractions of a node's memory that its tasks hold sum up to at most 1 at
any time. Therefore a bar as high as its task's memory has its own place while the task is there, whatever its yield.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from testbed.study.report.run.schedule import ENDED, IN_MEMORY, RUN, SAVE, Schedule, Span

GONE = "paused"  # no kind of span: the time after a save in which the policy does not select the job to run
_SMALLEST = 0.04  # fraction of a node's row below which a bar is invisible
_UNKNOWN = 0.25
_HAIR = 1e-9
_MANY = 300  # for more stays on a node, only the order of their begins is tried


@dataclass(frozen=True, slots=True)
class Bar:
    """A stay of a task on a node without a break, [begin_s, end_s), with its pieces in order.

    `bottom` and `height` are fractions of the node's memory, or in places on the shelf.
    """

    job: int
    task: int
    node: int
    bottom: float
    height: float
    pieces: tuple[Span, ...]

    @property
    def begin_s(self) -> float:
        """The begin of the first piece."""
        return self.pieces[0].begin_s

    @property
    def end_s(self) -> float:
        """The end of the last piece."""
        return end_of(self.pieces[-1])


@dataclass(frozen=True, slots=True)
class Lanes:
    """All bars of a schedule: those in memory, up to `top` (1, more if a node is over-full), and those on the shelf.

    `shelf` is the number of places on the fullest shelf; the bottom of a bar there is the number of its place.
    """

    in_memory: list[Bar]
    saved: list[Bar]
    top: float
    shelf: int


def end_of(span: Span) -> float:
    """Return the end of a span, infinity for an open span."""
    return math.inf if span.end_s is None else span.end_s


def lanes_of(schedule: Schedule) -> Lanes:
    """Return the layout of a schedule: a place on its node for every stay of a task."""
    memory: list[tuple[Span, ...]] = []
    shelf: list[tuple[Span, ...]] = []
    spans = sorted(schedule.spans, key=lambda span: (span.job, span.task, span.begin_s))
    for (job, _), group in groupby(spans, key=lambda span: (span.job, span.task)):
        own = list(group)
        ended = job in schedule.jobs and schedule.jobs[job].state in ENDED
        for stay in _stays(with_gaps(own, math.inf if ended else schedule.end_s)):
            (memory if stay[0].kind in IN_MEMORY else shelf).append(stay)
    in_memory = pack(memory, lambda span: height_of(schedule, span), 1.0)
    saved = pack(shelf, lambda _span: 1.0, math.inf)
    top = max((bar.bottom + bar.height for bar in in_memory), default=1.0)
    places = max((bar.bottom + bar.height for bar in saved), default=0.0)
    return Lanes(in_memory, saved, max(1.0, top), round(places))


def with_gaps(spans: Sequence[Span], end_s: float) -> list[Span]:
    """Return the spans of one task, in order, with its pauses as spans of the kind `GONE` on the node of its image.

    A task whose last span is a save is paused until `end_s`; that is infinite if its job has ended, for no pause.
    """
    out: list[Span] = []
    for before, after in pairwise([*spans, None]):
        if before is None:
            break
        out.append(before)
        begin_s, until_s = end_of(before), end_s if after is None else after.begin_s
        is_paused = after is not None or before.kind == SAVE
        if is_paused and math.isfinite(until_s) and until_s - begin_s > _HAIR:
            out.append(Span(before.job, before.task, before.node, begin_s, until_s, GONE, 0.0))
    return out


def _stays(spans: Iterable[Span]) -> Iterable[tuple[Span, ...]]:
    """Split the spans of one task where it changes its node, or enters or leaves memory."""
    return (
        tuple(stay) for _, stay in groupby(spans, key=lambda span: (span.node, span.kind in IN_MEMORY))
    )  # consecutive: gaps are spans, too


def height_of(schedule: Schedule, span: Span) -> float:
    """Return the height of a task: its memory requirement as a fraction of a node, but enough to be visible."""
    facts = schedule.jobs.get(span.job)
    share = facts.mem_req_frac if facts is not None else math.nan
    return _UNKNOWN if math.isnan(share) else max(share, _SMALLEST)


_Stay = tuple[Span, ...]


def pack(stays: list[_Stay], height: Callable[[Span], float], room: float) -> list[Bar]:
    """Return the stays of every node as bars without overlaps, within `room` if such a layout is found.

    This is a packing problem, which is hard in general. A few orders of placing the stays are tried, first that of
    their begins, and the one with the lowest top is used.
    """
    stays.sort(key=lambda stay: (stay[0].node, stay[0].begin_s, stay[0].job, stay[0].task))
    bars: list[Bar] = []
    for _, group in groupby(stays, key=lambda stay: stay[0].node):
        own = list(group)
        best = _placed(own, height)
        for weight in (_length, lambda stay: _length(stay) * height(stay[0]), lambda stay: height(stay[0])):
            if _top(best) <= room + _HAIR or len(own) > _MANY:
                break
            best = min(best, _placed(sorted(own, key=weight, reverse=True), height), key=_top)
        bars += best
    return bars


def _length(stay: _Stay) -> float:
    return end_of(stay[-1]) - stay[0].begin_s


def _top(bars: Sequence[Bar]) -> float:
    return max((bar.bottom + bar.height for bar in bars), default=0.0)


def _placed(stays: Iterable[_Stay], height: Callable[[Span], float]) -> list[Bar]:
    """Place stays in the given order, each at the lowest place that is free for its whole duration."""
    bars: list[Bar] = []
    for stay in stays:
        first, high, end_s = stay[0], height(stay[0]), end_of(stay[-1])
        beside = [bar for bar in bars if bar.begin_s < end_s - _HAIR and bar.end_s > first.begin_s + _HAIR]
        floor = 0.0
        for bar in sorted(beside, key=lambda bar: bar.bottom):
            if bar.bottom - floor >= high - _HAIR:
                break
            floor = max(floor, bar.bottom + bar.height)
        bars.append(Bar(first.job, first.task, first.node, floor, high, stay))
    return bars


def longest_run(bar: Bar) -> Span:
    """Return the longest piece in which the task runs, or the longest piece if the task never runs."""
    return max(bar.pieces, key=lambda span: (span.kind == RUN, end_of(span) - span.begin_s))
