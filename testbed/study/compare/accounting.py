"""Decomposition of a job's turnaround into parts, which are the same for a live run and for its simulation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise

from testbed.study.compare.decisions import DecisionRecord
from testbed.study.report.run.schedule import RUNS, Schedule, Span

PARTS = {
    "wait_s": "from the submission until the policy first selected the job to run",
    "start_s": "from then until all its tasks ran",
    "paused_s": "the policy did not select the job to run",
    "penalty_s": "the policy selected the job to run, but a rescheduling delayed it",
    "yields_s": "the time that the job's work takes at its mean yield",
    "rate_s": "the rest of the time in which the job ran: positive if it was slower than its yield",
    "tail_s": "from the end of its last task until the controller received the report",
}


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a turnaround in trace seconds, whose sum is the turnaround; `PARTS` describes each."""

    wait_s: float = 0.0
    start_s: float = 0.0
    paused_s: float = 0.0
    penalty_s: float = 0.0
    yields_s: float = 0.0
    rate_s: float = 0.0
    tail_s: float = 0.0

    def __sub__(self, other: Parts) -> Parts:
        return Parts(*(a - b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def turnaround_s(self) -> float:
        """The sum of the parts, in trace seconds."""
        return float(sum(astuple(self)))


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that ended: times in trace seconds; `run_time_s` is its run time on dedicated nodes."""

    job: int
    submit_s: float
    end_s: float
    run_time_s: float


def account(schedule: Schedule, decisions: Sequence[DecisionRecord], jobs: Sequence[Ended]) -> dict[int, Parts]:
    """Return the parts of each job's turnaround."""
    spans: dict[int, list[Span]] = {}
    for span in schedule.spans:
        spans.setdefault(span.job, []).append(span)
    wanted = _wanted(decisions)
    return {
        each.job: _parts(each, spans.get(each.job, ()), wanted.get(each.job, ()), schedule.time_scale) for each in jobs
    }


def _wanted(decisions: Sequence[DecisionRecord]) -> dict[int, list[tuple[float, bool]]]:
    """Return the trace seconds at which the policy selected (True) or deselected (False) each job."""
    changes: dict[int, list[tuple[float, bool]]] = {}
    before: frozenset[int] = frozenset()
    for record in decisions:
        for job in record.running - before:
            changes.setdefault(job, []).append((record.time_s, True))
        for job in (before - record.running) & record.active:
            changes.setdefault(job, []).append((record.time_s, False))
        before = record.running
    return changes


def _parts(job: Ended, spans: Sequence[Span], wanted: Sequence[tuple[float, bool]], scale: float) -> Parts:
    if not wanted:
        return Parts(wait_s=job.end_s - job.submit_s)
    first_s = min(wanted[0][0], job.end_s)
    own = [_Piece(span, scale, job.end_s) for span in spans]
    last_s = max((piece.end_s for piece in own), default=first_s)
    cuts = {first_s, job.end_s, *(time_s for time_s, _ in wanted)}
    cuts.update(time_s for piece in own for time_s in (piece.begin_s, piece.end_s))
    times = sorted(time_s for time_s in cuts if first_s <= time_s <= job.end_s)
    changes_s = [time_s for time_s, _ in wanted]
    sums: dict[str, float] = dict.fromkeys(("start", "paused", "penalty", "run", "tail"), 0.0)
    work_s = 0.0
    began = False
    own.sort(key=lambda piece: piece.begin_s)
    open_pieces: list[_Piece] = []
    coming = 0
    for begin_s, end_s in pairwise(times):
        while coming < len(own) and own[coming].begin_s <= begin_s:
            open_pieces.append(own[coming])
            coming += 1
        open_pieces = [piece for piece in open_pieces if piece.end_s > begin_s]
        runs = bool(open_pieces) and all(piece.runs for piece in open_pieces)
        began = began or runs
        if not wanted[bisect_right(changes_s, begin_s) - 1][1]:
            part = "paused"
        elif runs:
            part = "run"
            work_s += min(piece.yield_frac for piece in open_pieces) * (end_s - begin_s)
        elif not began:
            part = "start"
        else:
            part = "tail" if begin_s >= last_s else "penalty"
        sums[part] += end_s - begin_s
    yields_s = job.run_time_s * sums["run"] / work_s if work_s > 0.0 else 0.0
    return Parts(
        wait_s=first_s - job.submit_s,
        start_s=sums["start"],
        paused_s=sums["paused"],
        penalty_s=sums["penalty"],
        yields_s=yields_s,
        rate_s=sums["run"] - yields_s,
        tail_s=sums["tail"],
    )


class _Piece:
    """A span in trace seconds, cut at the job's end."""

    __slots__ = ("begin_s", "end_s", "runs", "yield_frac")

    def __init__(self, span: Span, scale: float, end_s: float) -> None:
        self.begin_s = span.begin_s * scale
        self.end_s = min(end_s if span.end_s is None else span.end_s * scale, end_s)
        self.runs = span.kind in RUNS
        self.yield_frac = span.yield_frac


def mean_parts(parts: Sequence[Parts]) -> Parts:
    """Return the mean of each part over several runs."""
    columns = zip(*(astuple(each) for each in parts), strict=True)
    return Parts(*(sum(column) / len(parts) for column in columns))


def mean_absolute(differences: Mapping[int, Parts]) -> Parts:
    """Return the mean over jobs of each part's absolute value."""
    columns = zip(*(astuple(each) for each in differences.values()), strict=True)
    return Parts(*(sum(map(abs, column)) / len(differences) for column in columns))
