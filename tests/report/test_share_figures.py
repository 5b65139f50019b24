"""Shares that moved, in the report: the same data from points and from simulations, and their figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.measure.lines_reader import table_dtypes
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.sharing import SharingModel
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job
from testbed.shares.node import BANK
from testbed.study.report.page.share_tables import exchange_table
from testbed.study.report.run.figures_flows import figures_flows
from testbed.study.report.run.figures_shares import bank_of, figures_shares
from testbed.study.report.run.schedule import RUN, JobFacts, Schedule, ShareMove, Span
from testbed.study.report.run.share_flows import MOST_MEMBERS, flows_of_job, flows_of_nodes
from testbed.study.report.run.share_moves import measured_moves, simulated_moves
from testbed.study.report.run.simulated import simulate_schedule

SECOND_NS = 10**9
MODEL = SharingModel(("linear",), "1/i")
JOBS = [*(Job(number, 0.0, 1, 0.5, 0.3, 400.0) for number in range(1, 5)), Job(5, 1.0, 4, 0.2, 0.3, 100.0)]


def times(seconds: list[float]) -> pl.Series:
    return pl.Series([round(second * SECOND_NS) for second in seconds], dtype=pl.Int64).cast(pl.Datetime("ns", "UTC"))


def transfers(*rows: tuple[float, str, str, float]) -> pl.DataFrame:
    """Return points of job 5: second, giver, receiver, and the shares taken so far."""
    seconds, givers, receivers, cores = (list(column) for column in zip(*rows, strict=True))
    return pl.DataFrame(
        {"time": times(seconds), "job": [5] * len(rows), "giver": givers, "receiver": receivers, "taken_cores": cores}
    )


def schedule(*moves: ShareMove, tasks: int = 2, jobs: tuple[int, ...] = (5,)) -> Schedule:
    spans = [Span(job, task, task, 0.0, 100.0, RUN, 1.0) for job in jobs for task in range(tasks)]
    facts = {job: JobFacts(job, tasks=tasks) for job in jobs}
    return Schedule("measured", spans, facts, tasks, ("node-a", "node-b"), 1.0, 100.0, moves)


# --- points and simulations


def test_points_become_moves_by_their_differences() -> None:
    points = transfers((1.0, "1", "0", 0.1), (3.0, "1", "0", 0.15), (2.0, "0", "bank", 0.2))
    assert measured_moves(points, SECOND_NS // 2) == (
        ShareMove(5, 1, 0, 0.5, 0.1), ShareMove(5, 0, None, 1.5, 0.2), ShareMove(5, 1, 0, 2.5, pytest.approx(0.05)),
    )  # fmt: skip


def test_a_sum_that_falls_is_of_the_next_life_of_its_job() -> None:
    points = transfers((1.0, "1", "0", 0.3), (2.0, "1", "0", 0.1), (3.0, "1", "0", 0.1))
    assert [(move.t_s, move.cores) for move in measured_moves(points, 0)] == [(1.0, 0.3), (2.0, 0.1)]


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_the_moves_of_one_life_add_up_to_the_last_sum_in_whatever_order_points_come(shares, shuffler) -> None:
    sums = np.cumsum(shares) / 1e6
    rows = [(float(second), "bank", "1", float(cores)) for second, cores in enumerate(sums)]
    shuffler.shuffle(rows)
    moves = measured_moves(transfers(*rows), 0)
    assert sum(move.cores for move in moves) == pytest.approx(sums[-1], abs=1e-9)
    assert all((move.giver, move.receiver) == (None, 1) for move in moves)


@pytest.mark.parametrize("mode", ["none", "distributed", "bank"])
def test_a_simulation_keeps_the_shares_that_moved(mode: str) -> None:
    run = simulate(JOBS, 4, parse(f"DPS/{mode}"), sharing=MODEL, record=True)
    assert bool(run.share_transfers) == (mode != "none")
    banked = {BANK in (each.giver, each.receiver) for each in run.share_transfers}
    assert banked <= {mode == "bank"}
    assert [each.time_s for each in run.share_transfers] == sorted(each.time_s for each in run.share_transfers)
    gained = {
        member: sum(each.cores * ((each.receiver == member) - (each.giver == member)) for each in run.share_transfers)
        for member in ("0", "1", "2", "3", BANK)
    }
    assert sum(gained.values()) == pytest.approx(0.0, abs=1e-9), "shares are neither lost nor created"
    if mode != "none":
        assert gained["0"] > 0.0, "the task with the most work needs more"
        assert gained["3"] < 0.0
    assert not simulate(JOBS, 4, parse(f"DPS/{mode}"), sharing=MODEL).share_transfers, "the flows were not requested"


def test_a_simulated_schedule_has_them_in_cores_and_wall_seconds() -> None:
    found = simulate_schedule(
        JOBS, ["a", "b", "c", "d"], parse("DPS/distributed"), constant(0.0), node_memory_gb=1.0, time_scale=10.0,
        sharing=MODEL, node_cores=0.35,
    )  # fmt: skip
    first, told = found.run.share_transfers[0], found.schedule.share_moves[0]
    assert told == ShareMove(5, int(first.giver), int(first.receiver), first.time_s / 10.0, first.cores * 0.35)
    assert found.schedule.share_moves == simulated_moves(found.run, 10.0, 0.35)


# --- sums


def test_flows_are_sums_by_giver_and_receiver_with_the_bank_at_the_end() -> None:
    flows = flows_of_job(
        schedule(ShareMove(5, 0, None, 1.0, 0.1), ShareMove(5, 0, None, 2.0, 0.2), ShareMove(5, None, 1, 3.0, 0.05)), 5
    )
    assert flows.names == ("0 · node-a", "1 · node-b", "bank")
    assert flows.cores.tolist() == [[0, 0, pytest.approx(0.3)], [0, 0, 0], [0, 0.05, 0]]
    assert flows.by_bank_only
    assert flows.pairs == [(0, 2), (2, 1)]


def test_flows_between_nodes_follow_tasks_to_where_they_were() -> None:
    moved = [
        Span(5, 0, 0, 0.0, 10.0, RUN, 1.0),
        Span(5, 0, 1, 10.0, 20.0, RUN, 1.0),
        Span(5, 1, 1, 0.0, 20.0, RUN, 1.0),
    ]
    moves = (ShareMove(5, 0, 1, 5.0, 0.1), ShareMove(5, 0, 1, 15.0, 0.2))
    flows = flows_of_nodes(replace(schedule(), spans=moved, share_moves=moves))
    assert flows.cores.tolist() == [[0, 0.1], [0, 0.2]]


def test_of_very_many_tasks_those_with_least_are_one_member() -> None:
    moves = [ShareMove(5, task, task + 1, 1.0, 0.1 + task) for task in range(39)]
    flows = flows_of_job(schedule(*moves, tasks=40), 5)
    assert len(flows.names) == MOST_MEMBERS
    assert flows.names[-1] == "25 others"
    assert flows.cores.sum() == pytest.approx(sum(move.cores for move in moves))


# --- figures and tables


def test_a_job_with_a_bank_has_bars_and_another_a_matrix() -> None:
    bank, direct = ShareMove(5, 0, None, 1.0, 0.1), ShareMove(5, 0, 1, 1.0, 0.25)
    for move, words in ((bank, "gave to the bank"), (direct, "Rows give, columns take.")):
        chart, over_time = figures_flows([schedule(move)])
        assert (chart.name, over_time.name) == ("flows_5", "flows_time_5")
        assert words in chart.caption
        assert f"{move.cores:.3f}" in chart.alt
        for one in (chart, over_time):
            assert one.rendered("svg") == one.rendered("svg")


def test_a_simulation_is_drawn_beside_its_run_and_jobs_together_by_node() -> None:
    measured = schedule(ShareMove(5, 0, 1, 1.0, 0.1), ShareMove(6, 1, 0, 1.0, 0.2), jobs=(5, 6))
    simulated = replace(measured, name="simulated, no penalty", share_moves=measured.share_moves[:1])
    charts = figures_flows([measured, simulated])
    assert [chart.name for chart in charts] == [
        "flows", "flows_5", "flows_time_5", "flows_6", "flows_time_6", "flows_1", "flows_5_1", "flows_time_5_1",
    ]  # fmt: skip
    assert charts[-2].title == "Shares that moved in job 5, simulated, no penalty"


def test_a_run_without_moves_has_no_such_figures() -> None:
    assert figures_flows([schedule()]) == []
    assert exchange_table(None) is None
    assert exchange_table(pl.DataFrame(schema=table_dtypes("node"))) is None


def guests(**bank: list[float | None]) -> pl.DataFrame:
    rows = {
        "time": times([0.0, 0.0, 10.0, 10.0]), "job": [5] * 4, "task": [0, 1] * 2, "share_cores": [0.3, 0.3, 0.4, 0.2],
        "cpu_s": [0.0, 0.0, 4.0, 2.0], **bank,
    }  # fmt: skip
    return pl.DataFrame(rows)


def test_shares_over_time_have_what_the_bank_has() -> None:
    points = guests(bank_cores=[0.0, None, 0.125, None])
    (chart,) = figures_shares(points)
    assert "what the bank of the job has (at the end 0.125 cores)" in chart.caption
    assert b"bank has" in chart.rendered("svg")
    bank = bank_of(points)
    assert bank is not None
    assert [column.tolist() for column in bank] == [[0.0, 10.0], [0.0, 0.125]]
    (plain,) = figures_shares(guests())
    assert "bank" not in plain.caption
    assert b"bank has" not in plain.rendered("svg")


def test_messages_per_second_of_a_node_go_on_over_the_end_of_its_agent() -> None:
    points = pl.DataFrame(
        {
            "time": times([0.0, 10.0, 20.0, 30.0, 0.0, 20.0, 40.0]), "node": ["b"] * 4 + ["a"] * 3,
            "exchange_sent": [4, 10, 2, 5, None, 0, 8], "exchange_received": [0, 6, 0, 3, None, 0, 0],
        }
    )  # fmt: skip
    table = exchange_table(points)
    assert table is not None
    assert table.rows == (("a", "20", "8", "0.40", "0", "0.00"), ("b", "30", "11", "0.37", "9", "0.30"))
