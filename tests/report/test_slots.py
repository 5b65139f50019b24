"""Slots of nodes under XGE, from schedules: bands over time, counts, the figure and the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection

from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import can_ever_run
from testbed.scheduling.policies.xge_slots import CHANGING, IDLE, LENT, PARALLEL, SERIAL, TAKEN
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.workload.jobs import Job
from testbed.study.report.page.slot_tables import slots_table
from testbed.study.report.run.figures_slots import figures_slots
from testbed.study.report.run.schedule import (
    RESTORE,
    RUN,
    SAVE,
    START,
    TRANSFER,
    WAIT,
    JobFacts,
    Schedule,
    Span,
)
from testbed.study.report.run.simulated import simulate_schedule
from testbed.study.report.run.slots import Counts, Slots, slots_of

SERIAL_JOB, OTHER_SERIAL, PARALLEL_JOB = 1, 2, 9
TASKS = {SERIAL_JOB: 1, OTHER_SERIAL: 1, PARALLEL_JOB: 2}


def schedule(spans: Sequence[Span], *, nodes: int = 2, end_s: float = 100.0, policy: str = "XGE") -> Schedule:
    jobs = {job: JobFacts(job, "done", TASKS.get(job, 1)) for job in {span.job for span in spans}}
    return Schedule("measured", list(spans), jobs, nodes, ("node-a", "node-b"), 20.0, end_s, policy=policy)


def slots(spans: Sequence[Span], **how: object) -> Slots:
    found = slots_of(schedule(spans, **how))  # type: ignore[arg-type]  # keywords of `schedule`
    assert found is not None
    return found


def story(job: int, *pieces: tuple[str, float, float], node: int = 0, task: int = 0) -> list[Span]:
    return [Span(job, task, node, begin_s, end_s, kind, 1.0) for kind, begin_s, end_s in pieces]


def both(*pieces: tuple[str, float, float], nodes: tuple[int, int] = (0, 0)) -> list[Span]:
    return [span for task in (0, 1) for span in story(PARALLEL_JOB, *pieces, node=nodes[task], task=task)]


def bands(found: Slots, node: int = 0) -> list[tuple[str, float, float]]:
    return [(band.slot, band.begin_s, band.end_s) for band in found.nodes[node].bands]


SUSPENDED = story(
    SERIAL_JOB, (START, 0, 5), (RUN, 5, 30), (SAVE, 30, 34), (WAIT, 62, 64), (RESTORE, 64, 68), (RUN, 68, 90)
)
BACK = [*SUSPENDED, *both((START, 34, 37), (RUN, 37, 62))]


# --- bands and counts


def test_a_lent_node_is_taken_back_and_lent_again() -> None:
    found = slots(BACK)
    assert bands(found) == [
        (CHANGING, 0.0, 5), (LENT, 5, 30), (CHANGING, 30, 37), (PARALLEL, 37, 62), (IDLE, 62, 64), (CHANGING, 64, 68),
        (LENT, 68, 90), (IDLE, 90, 100.0),
    ]  # fmt: skip
    assert found.nodes[0].counts == Counts(lent=2, taken_back=1, suspended=1, resumed=1)
    assert found.nodes[0].seconds == {SERIAL: 0, LENT: 47, PARALLEL: 25, TAKEN: 0, CHANGING: 16, IDLE: 12}
    assert bands(found, 1) == [(IDLE, 0.0, 100.0)]
    assert found.total == found.nodes[0].counts


def test_the_same_on_a_node_of_the_serial_partition_is_serial_and_taken() -> None:
    found = slots([replace(span, node=1) for span in BACK])
    assert [slot for slot, _, _ in bands(found, 1)] == [
        CHANGING, SERIAL, CHANGING, TAKEN, IDLE, CHANGING, SERIAL, IDLE,
    ]  # fmt: skip
    assert found.nodes[1].counts == Counts(taken=1, suspended=1, resumed=1)


def test_a_job_may_be_resumed_on_another_node() -> None:
    moved = [replace(span, node=1) if span.begin_s >= 64 else span for span in SUSPENDED]
    found = slots([*moved, *story(SERIAL_JOB, (TRANSFER, 60, 62), node=1)])
    assert [node.counts for node in found.nodes] == [Counts(lent=1, suspended=1), Counts(resumed=1)]
    assert [slot for slot, _, _ in bands(found, 1)] == [IDLE, CHANGING, SERIAL, IDLE], "a transfer holds no memory"


def test_a_node_that_goes_back_because_its_jobs_ended_is_not_taken_back() -> None:
    found = slots([*story(SERIAL_JOB, (RUN, 0, 30)), *both((RUN, 30, 60))])
    assert found.nodes[0].counts == Counts(lent=1)


def test_jobs_that_follow_each_other_on_a_lent_node_are_one_lending() -> None:
    found = slots([*story(SERIAL_JOB, (RUN, 0, 30)), *story(OTHER_SERIAL, (START, 30, 35), (RUN, 35, 60))])
    assert bands(found) == [(LENT, 0.0, 30), (CHANGING, 30, 35), (LENT, 35, 60), (IDLE, 60, 100.0)]
    assert found.total == Counts(lent=1)


def test_a_save_that_failed_is_no_suspension() -> None:
    found = slots(story(SERIAL_JOB, (RUN, 0, 30), (SAVE, 30, 34), (RUN, 34, 60)))
    assert found.total == Counts(lent=1)


def test_a_job_that_starts_again_from_the_beginning_was_not_suspended() -> None:
    found = slots(story(SERIAL_JOB, (RUN, 0, 30), (START, 40, 44), (RUN, 44, 60)))
    assert found.total == Counts(lent=2)


def test_a_job_that_is_saved_at_the_end_of_the_run_is_suspended_and_not_resumed() -> None:
    found = slots(story(SERIAL_JOB, (RUN, 0, 30), (SAVE, 30, 34)))
    assert found.total == Counts(lent=1, suspended=1)


def test_a_node_with_room_may_save_serial_jobs_while_a_parallel_one_runs_already() -> None:
    found = slots([*story(SERIAL_JOB, (RUN, 0, 30), (SAVE, 30, 50), (RESTORE, 80, 81), (RUN, 81, 90)),
                   *both((START, 30, 40), (RUN, 40, 60))])  # fmt: skip
    assert bands(found)[:4] == [(LENT, 0.0, 30), (CHANGING, 30, 40), (PARALLEL, 40, 60), (IDLE, 60, 80)]
    assert found.total == Counts(lent=2, suspended=1, resumed=1)


JOBS = st.lists(
    st.tuples(
        st.integers(0, 60), st.sampled_from([1, 1, 1, 2, 3]), st.sampled_from([0.5, 1.0]), st.integers(1, 40),
        st.booleans(),
    ),
    min_size=1, max_size=20,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(JOBS, st.integers(2, 5), st.sampled_from([0.0, 3.0]))
def test_of_a_simulation_all_seconds_have_a_slot_and_all_pauses_are_counted(given_jobs, nodes, penalty_s) -> None:
    policy = parse("XGE")
    jobs = [
        Job(number, float(come), tasks, need, 0.3, float(run_s), urgent=urgent and tasks > 1)
        for number, (come, tasks, need, run_s, urgent) in enumerate(sorted(given_jobs))
    ]
    jobs = [job for job in jobs if can_ever_run(policy, job, nodes)]
    if not jobs:
        return
    names = [str(node) for node in range(nodes)]
    twin = simulate_schedule(jobs, names, policy, constant(penalty_s), node_memory_gb=1.0)
    found = slots_of(twin.schedule)
    assert found is not None
    for node in found.nodes:
        assert sum(node.seconds.values()) == pytest.approx(twin.schedule.end_s)
        assert all(one.end_s == other.begin_s and one.slot != other.slot for one, other in pairwise(node.bands))
        here = {band.slot for band in node.bands}
        assert not here & ({SERIAL, TAKEN} if node.home == PARALLEL else {LENT, PARALLEL})
        assert node.counts.taken_back <= node.counts.lent
    pauses = int(twin.run.preemptions.sum() + twin.run.migrations.sum())
    assert found.total.suspended == found.total.resumed == pauses


# --- figure, table, JSON


def test_runs_under_other_policies_and_without_tasks_have_no_slots() -> None:
    assert slots_of(schedule(BACK, policy="EASY")) is None
    assert slots_of(schedule([])) is None
    assert figures_slots([]) == []
    assert slots_table([]) is None


def test_the_figure_has_a_band_for_every_time_and_tells_lent_from_taken() -> None:
    found = slots([*BACK, *[replace(span, node=1, job=span.job + 20) for span in BACK]])
    (chart,) = figures_slots([found])
    assert "first 1 of 2 nodes" in chart.caption
    assert "nodes lent 2, taken back 1, taken 1; serial jobs suspended 2, resumed 2" in chart.caption
    figure = chart.figure()
    drawn = {one.get_gid(): one for one in figure.axes[0].collections if isinstance(one, PolyCollection)}
    counts = {slot: sum(band.slot == slot for node in found.nodes for band in node.bands) for slot in drawn}
    assert {slot: len(one.get_paths()) for slot, one in drawn.items()} == counts
    assert set(drawn) == {SERIAL, LENT, PARALLEL, TAKEN, CHANGING, IDLE}
    looks = {(tuple(one.get_facecolor()[0]), one.get_hatch()) for one in drawn.values()}
    assert len(looks) == len(drawn), "one colour and hatch per slot"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["node-a", "node-b"]
    assert chart.rendered("svg") == chart.rendered("svg")


def test_schedules_of_one_time_scale_share_a_figure() -> None:
    measured = slots(BACK)
    twin = replace(measured, schedule=replace(measured.schedule, name="simulated"))
    slower = replace(measured, schedule=replace(measured.schedule, time_scale=1.0))
    assert [chart.name for chart in figures_slots([measured, twin])] == ["slots"]
    charts = figures_slots([measured, twin, slower])
    assert [chart.name for chart in charts] == ["slots-1", "slots-2"]
    assert "measured: nodes lent 2" in charts[0].caption
    assert "simulated: nodes lent 2" in charts[0].caption
    assert all(chart.rendered("svg") for chart in charts)


def test_very_many_nodes_keep_the_figure_small() -> None:
    (chart,) = figures_slots([slots(BACK, nodes=200)])
    assert chart.height_in < 8.0
    assert len(chart.figure().axes[0].get_yticks()) <= 16


def test_the_table_has_nodes_and_their_sum() -> None:
    measured = slots(BACK)
    table = slots_table([measured])
    assert table is not None
    assert table.columns[:7] == ("node", "partition", "lent", "taken back", "taken", "suspended", "resumed")
    assert table.rows == (
        ("node-a", "parallel", "2", "1", "0", "1", "1", "0.0", "47.0", "25.0", "0.0", "16.0", "12.0"),
        ("node-b", "serial", "0", "0", "0", "0", "0", "0.0", "0.0", "0.0", "0.0", "0.0", "100.0"),
        ("all", "", "2", "1", "0", "1", "1", "0.0", "47.0", "25.0", "0.0", "16.0", "112.0"),
    )
    both_tables = slots_table([measured, measured])
    assert both_tables is not None
    assert both_tables.columns[0] == "schedule"
    assert len(both_tables.rows) == 6


def test_json_has_counts_and_seconds_by_node() -> None:
    found = slots(BACK).as_json()
    assert found["total"] == {"lent": 2, "taken_back": 1, "taken": 0, "suspended": 1, "resumed": 1}
    assert found["nodes"]["node-a"] == {  # type: ignore[index]
        "partition": "parallel", "lent": 2, "taken_back": 1, "taken": 0, "suspended": 1, "resumed": 1,
        "wall_s": {SERIAL: 0, LENT: 47, PARALLEL: 25, TAKEN: 0, CHANGING: 16, IDLE: 12},
    }  # fmt: skip
