"""Decisions in one form, aligned by their causes; turnarounds in parts."""

from __future__ import annotations

from dataclasses import astuple
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.entries import event as made

from testbed.study.compare.accounting import Ended, Parts, account, mean_absolute, mean_parts
from testbed.study.compare.alignment import align, jaccard, progress_at
from testbed.study.compare.decisions import DecisionRecord, Numbering, Trigger, of_journal
from testbed.study.report.run.schedule import PENALTIES, RESTORE, RUN, SAVE, START, WAIT, Schedule, Span


def record(
    time_s: float, what: list[tuple[str, int]], placement: dict[int, tuple[int, ...]], waiting: set[int] = frozenset(),
    progress_s: dict[int, float] | None = None, share: float = 1.0,
) -> DecisionRecord:  # fmt: skip
    return DecisionRecord(
        time_s, tuple(Trigger(*each) for each in what), frozenset(placement) | waiting, placement,
        dict.fromkeys(placement, share), progress_s or {},
    )  # fmt: skip


def schedule(spans: list[Span], scale: float = 1.0) -> Schedule:
    return Schedule("x", spans, {}, 4, (), scale, 100.0)


places = st.dictionaries(st.integers(1, 5), st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=4)


@given(places, st.permutations(range(4)), st.randoms(use_true_random=False))
def test_renamed_nodes_and_tasks_give_the_same_shape(placement, names, random) -> None:
    renamed = {
        job: tuple(random.sample([names[node] for node in nodes], len(nodes))) for job, nodes in placement.items()
    }
    assert record(0, [], placement).shape == record(0, [], renamed).shape


@settings(max_examples=60)
@given(places, places)
def test_equal_shapes_are_the_same_placement_by_some_renaming(one, other) -> None:
    from itertools import permutations

    def named(placement, names):
        return {job: sorted(names[node] for node in nodes) for job, nodes in placement.items()}

    wanted = named(other, range(4))
    possible = any(named(one, names) == wanted for names in permutations(range(4)))
    assert (record(0, [], one).shape == record(0, [], other).shape) == possible


def test_triggers_are_numbered_over_a_run() -> None:
    numbering = Numbering()

    def event(completed, submitted, periodic=False, changed=False):
        return {"completed": completed, "submitted": submitted, "periodic": periodic, "changed": changed}

    def entry(time_s, event):
        view = {
            "time_s": time_s, "job_id": [7, 8], "tasks": [2, 1], "virtual_time_s": [1.0, 0.0],
            "task_node": [-1, -1, -1],
        }  # fmt: skip
        decision = {"task_node": [1, 0, -1], "yield_frac": [0.5, 0.0]}
        return made({"kind": "decision", "view": view, "event": event, "decision": decision})

    found = [
        of_journal(entry(time_s, event), 600.0, numbering)
        for time_s, event in [
            (3.0, event([], [7, 8])),
            (1200.02, event([], [8], periodic=True)),
            (1300.0, event([5], [8], changed=True)),
            (1400.0, event([], [], changed=True)),
        ]
    ]
    assert [tuple(map(str, each.triggers)) for each in found] == [
        ("submission of job 7", "submission of job 8"),
        ("retry 1", "periodic pass 2"),
        ("completion of job 5", "retry 2", "change 1"),
        ("change 2",),
    ]
    assert found[0].placement == {7: (1, 0)}
    assert found[0].yields == {7: 0.5}
    assert found[0].progress_s == {7: 1.0, 8: 0.0}
    assert found[0].active == {7, 8}


def test_alignment_by_hand() -> None:
    live = [
        record(1.0, [("submission", 1)], {1: (0,)}),
        record(11.0, [("submission", 2), ("submission", 3)], {1: (0,), 2: (1,)}, {3}),
        record(40.0, [("completion", 1)], {2: (1,), 3: (0,)}, progress_s={2: 29.0, 3: 0.0}),
        record(60.0, [("completion", 2), ("completion", 3)], {}),
    ]
    twin = [
        record(0.0, [("submission", 1)], {1: (1,)}),
        record(10.0, [("submission", 2)], {1: (1,), 2: (0,)}),
        record(10.5, [("submission", 3)], {1: (1,), 2: (0,)}, {3}),
        record(30.0, [("completion", 1)], {3: (1, 1)}, {2}),
        record(50.0, [("completion", 3)], {2: (0,)}),
        record(70.0, [("completion", 2)], {}),
    ]
    spans = [Span(2, 0, 0, 1.0, 3.0, RUN, 1.0)]
    found = align(live, twin, schedule(spans, scale=10.0), 70.0)
    assert [str(each.trigger) for each in found.both] == [
        "submission of job 1", "submission of job 2", "submission of job 3", "completion of job 1",
    ]  # fmt: skip
    assert [each.same_placement for each in found.both] == [True, True, True, False]
    assert [each.jaccard for each in found.both] == [1, 1, 1, 0.5]
    assert found.live_only == ()
    assert [str(each) for each in found.simulated_only] == ["completion of job 3"]
    assert found.same_frac == pytest.approx(3 / 5)
    # (0, 1) simulated runs 1 alone; (10, 11) live 1, simulated 1 2; (30, 40) 1 2 against 3; (40, 50) 2 3 against 3;
    # (50, 60) 2 3 against 2; (60, 70) nothing against 2
    assert found.jaccard_over_time == pytest.approx((9 + 0.5 + 19 + 0 + 5 + 5 + 0) / 70)
    first = found.first
    assert (str(first.trigger), first.live_s, first.simulated_s) == ("completion of job 1", 40.0, 30.0)
    assert first.chosen == ("only live runs job 2",)
    assert first.seen == ("virtual time of job 2: 29.0 s live, 20.0 s simulated",)
    assert progress_at(schedule(spans, 10.0), 2, 20.0) == 10.0


def test_what_was_coalesced_and_what_one_world_lacks_is_told() -> None:
    live = [record(1.0, [("submission", 1), ("submission", 2)], {2: (0,)}, {1})]
    twin = [record(0.0, [("submission", 1)], {1: (0,)}), record(0.5, [("submission", 2)], {1: (0,)}, {2})]
    first = align(live, twin, schedule([]), 5.0).first
    assert first.chosen == ("only live runs job 2", "only simulated runs job 1")
    assert first.seen[0] == (
        "coalesced: live decided for submission of job 1, submission of job 2; simulated for submission of job 1"
    )
    assert first.seen[1] == "only live had job 2 in the system"
    pass_only = align([], [record(600.0, [("periodic pass", 1)], {1: (0,)})], schedule([]), 700.0)
    assert pass_only.first.chosen == ("there was no live decision for it",)
    assert (pass_only.first.live_s, pass_only.first.simulated_s) == (None, 600.0)
    assert pass_only.same_frac == 0.0
    elsewhere = align(
        [record(1.0, [("submission", 1)], {1: (0, 0)})], [record(1.0, [("submission", 1)], {1: (0, 1)})],
        schedule([]), 2.0,
    ).first  # fmt: skip
    assert elsewhere.chosen == ("the same jobs run on other nodes: 1 1 live, 1 | 1 simulated",)
    assert "this changed the decision" in elsewhere.seen[0]
    assert align([], [], schedule([]), 0.0).first is None
    assert jaccard(frozenset(), frozenset()) == 1.0


def test_a_turnaround_in_parts_by_hand() -> None:
    spans = [
        Span(1, 0, 0, 2.0, 3.0, START, 1.0), Span(1, 1, 1, 2.0, 3.5, START, 1.0),
        Span(1, 0, 0, 3.0, 6.0, RUN, 0.5), Span(1, 1, 1, 3.5, 6.0, RUN, 0.5),
        Span(1, 0, 0, 6.0, 7.0, SAVE, 0.0), Span(1, 1, 1, 6.0, 6.5, SAVE, 0.0),
        Span(1, 0, 0, 9.0, 10.0, WAIT, 0.0), Span(1, 1, 1, 9.0, 10.0, WAIT, 0.0),
        Span(1, 0, 0, 10.0, 12.0, RESTORE, 1.0), Span(1, 1, 1, 10.0, 11.0, RESTORE, 1.0),
        Span(1, 0, 0, 12.0, 15.0, RUN, 1.0), Span(1, 1, 1, 11.0, 14.0, RUN, 1.0),
    ]  # fmt: skip
    decisions = [
        record(20.0, [], {1: (0, 1)}),
        record(60.0, [], {}, {1}),
        record(90.0, [], {1: (0, 1)}),
    ]
    found = account(schedule(spans, 10.0), decisions, [Ended(1, 5.0, 152.0, 40.0)])[1]
    # it ran from 35 to 60 at yield 0.5 and from 120 to 150 at 1: 42.5 dedicated seconds for a work of 40
    assert found == Parts(
        wait_s=15.0, start_s=15.0, paused_s=30.0, penalty_s=30.0, yields_s=pytest.approx(55 * 40 / 42.5),
        rate_s=pytest.approx(55 - 55 * 40 / 42.5), tail_s=2.0,
    )  # fmt: skip
    assert found.turnaround_s == pytest.approx(147.0)
    never = account(schedule([]), [], [Ended(2, 1.0, 4.0, 1.0)])[2]
    assert never == Parts(wait_s=3.0)
    assert mean_parts([found, found]).paused_s == 30.0
    assert mean_absolute({1: found - never, 2: never - found}).wait_s == 12.0


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[Span], list[DecisionRecord], Ended]:
    times = sorted(draw(st.lists(st.integers(1, 40), min_size=2, max_size=8, unique=True)))
    spans = [
        Span(1, task, task, begin_s, end_s, draw(st.sampled_from([RUN, START, *sorted(PENALTIES)])),
             draw(st.sampled_from([0.25, 0.5, 1.0])))
        for task in (0, 1)
        for begin_s, end_s in pairwise(times)
        if draw(st.booleans())
    ]  # fmt: skip
    decided = sorted(draw(st.lists(st.integers(1, 40), min_size=1, max_size=5, unique=True)))
    decisions = [record(time_s, [], {1: (0, 1)} if index % 2 == 0 else {}, {1}) for index, time_s in enumerate(decided)]
    return spans, decisions, Ended(1, 0.0, float(draw(st.integers(41, 60))), draw(st.floats(0.5, 60)))


@given(lives())
def test_parts_add_up_whatever_happened(life) -> None:
    spans, decisions, job = life
    found = account(schedule(spans), decisions, [job])[1]
    assert found.turnaround_s == pytest.approx(job.end_s - job.submit_s)
    assert min(value for value, name in zip(astuple(found), found.__slots__, strict=True) if name != "rate_s") >= 0.0
    back = account(schedule(spans[::-1]), decisions, [job])[1]
    assert astuple(back) == pytest.approx(astuple(found))
