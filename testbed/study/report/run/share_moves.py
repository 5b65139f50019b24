"""Moves of shares within jobs, in the same form from the points of a run and from a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.scheduling.simulation.run import SimulatedRun
from testbed.shares.node import BANK
from testbed.study.report.run.schedule import ShareMove

if TYPE_CHECKING:
    import polars as pl

_LEAST_CORES = 1e-9  # smaller differences of two sums are rounding errors


def measured_moves(points: pl.DataFrame, zero_ns: int) -> tuple[ShareMove, ...]:
    """Return the moves from points `share_transfer`, in order of time; the replay began at Unix time `zero_ns`.

    A sum that is less than the previous one belongs to the next life of its job.
    """
    found = []
    for (job, giver, receiver), own in points.drop_nulls("taken_cores").group_by("job", "giver", "receiver"):
        before_cores = 0.0
        for time_ns, cores in own.sort("time").select(own["time"].to_physical(), "taken_cores").iter_rows():
            moved_cores = cores - before_cores if cores >= before_cores else cores
            before_cores = cores
            if moved_cores > _LEAST_CORES:
                t_s = (time_ns - zero_ns) / 1e9
                found.append(ShareMove(int(str(job)), _member(str(giver)), _member(str(receiver)), t_s, moved_cores))
    return tuple(sorted(found, key=lambda move: move.t_s))


def simulated_moves(run: SimulatedRun, time_scale: float, node_cores: float) -> tuple[ShareMove, ...]:
    """Return the moves of a simulation in cores, for nodes of `node_cores` cores, at wall seconds."""
    return tuple(
        ShareMove(
            run.jobs[each.row].job_id, _member(each.giver), _member(each.receiver), each.time_s / time_scale,
            each.cores * node_cores,
        )
        for each in run.share_transfers
    )  # fmt: skip


def _member(name: str) -> int | None:
    return None if name == BANK else int(name)
