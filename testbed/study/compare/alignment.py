"""Alignment of live and simulated decisions by their triggers, not by their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from testbed.study.compare.decisions import COMPLETION, DecisionRecord, Trigger
from testbed.study.report.run.schedule import RUNS, Schedule

_FEW_S = 1.0  # of trace time: smaller differences of virtual times are not reported
_MOST_JOBS = 4


@dataclass(frozen=True, slots=True)
class Aligned:
    """A trigger in both worlds: trace seconds of the two decisions, and their similarity.

    `same_placement` is up to a renaming of nodes; `jaccard` is the Jaccard similarity of the sets of running jobs, 1 if
    both are empty; `yield_gap` is the largest difference of a yield among jobs that run in both.
    """

    trigger: Trigger
    live_s: float
    simulated_s: float
    same_placement: bool
    jaccard: float
    yield_gap: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first trigger with different decisions; a time is None where the trigger had no decision."""

    trigger: Trigger
    live_s: float | None
    simulated_s: float | None
    chosen: tuple[str, ...]  # differences of the decisions, in words
    seen: tuple[str, ...]  # differences of the policy's views, in words


@dataclass(frozen=True, slots=True)
class Alignment:
    """All triggers of a run and its simulation: those in both, and those in one only.

    `jaccard_over_time` is the mean Jaccard similarity of the sets of running jobs over the trace time in which any job
    runs.
    """

    both: tuple[Aligned, ...]
    live_only: tuple[Trigger, ...]
    simulated_only: tuple[Trigger, ...]
    jaccard_over_time: float
    first: Divergence | None

    @property
    def same_frac(self) -> float:
        """Fraction of all triggers, of either world, whose decisions have the same placement."""
        total = len(self.both) + len(self.live_only) + len(self.simulated_only)
        return sum(each.same_placement for each in self.both) / total if total else 1.0

    @property
    def jaccard_mean(self) -> float:
        """Mean Jaccard similarity of the sets of running jobs over the triggers in both."""
        return sum(each.jaccard for each in self.both) / len(self.both) if self.both else 1.0


def align(
    live: Sequence[DecisionRecord], simulated: Sequence[DecisionRecord], twin: Schedule, until_s: float
) -> Alignment:
    """Align the decisions of a run up to trace second `until_s` with those of its simulation, whose schedule is `twin`.

    A decision on several coalesced triggers counts for each of them. A decision without a job in the system is left
    out.
    """
    one, other = _answers(live), _answers(simulated)
    both = [
        _aligned(trigger, live[index], simulated[other[trigger]]) for trigger, index in one.items() if trigger in other
    ]
    return Alignment(
        both=tuple(both),
        live_only=tuple(trigger for trigger in one if trigger not in other),
        simulated_only=tuple(trigger for trigger in other if trigger not in one),
        jaccard_over_time=_over_time(live, simulated, until_s),
        first=_first(live, simulated, one, other, twin),
    )


def jaccard(one: frozenset[int], other: frozenset[int]) -> float:
    """Return the Jaccard similarity of two sets: intersection size over union size; 1 if both sets are empty."""
    return len(one & other) / len(one | other) if one or other else 1.0


def _answers(records: Sequence[DecisionRecord]) -> dict[Trigger, int]:
    return {trigger: index for index, record in enumerate(records) if record.active for trigger in record.triggers}


def _aligned(trigger: Trigger, live: DecisionRecord, simulated: DecisionRecord) -> Aligned:
    common = live.running & simulated.running
    return Aligned(
        trigger,
        live.time_s,
        simulated.time_s,
        live.shape == simulated.shape,
        jaccard(live.running, simulated.running),
        max((abs(live.yields[job] - simulated.yields[job]) for job in common), default=0.0),
    )


def _over_time(live: Sequence[DecisionRecord], simulated: Sequence[DecisionRecord], until_s: float) -> float:
    changes = sorted(
        [(record.time_s, 0, record.running) for record in live]
        + [(record.time_s, 1, record.running) for record in simulated],
        key=lambda change: change[:2],
    )
    running = [frozenset[int](), frozenset[int]()]
    alike_s = busy_s = 0.0
    for (time_s, side, jobs), (next_s, _, _) in pairwise([*changes, (until_s, 0, frozenset[int]())]):
        running[side] = jobs
        if any(running) and next_s > time_s:
            alike_s += jaccard(*running) * (next_s - time_s)
            busy_s += next_s - time_s
    return alike_s / busy_s if busy_s else 1.0


def _first(
    live: Sequence[DecisionRecord],
    simulated: Sequence[DecisionRecord],
    one: dict[Trigger, int],
    other: dict[Trigger, int],
    twin: Schedule,
) -> Divergence | None:
    """Return the earliest divergence by live time, or by simulated time for a trigger without a live decision.

    A completion in one world only follows from earlier decisions, so it is no divergence.
    """
    found: tuple[float, Trigger] | None = None
    for trigger in {**one, **other}:
        here, there = one.get(trigger), other.get(trigger)
        if here is not None and there is not None and live[here].shape == simulated[there].shape:
            continue
        if (here is None or there is None) and trigger.kind == COMPLETION:
            continue
        time_s = live[here].time_s if here is not None else simulated[there].time_s if there is not None else inf
        if found is None or time_s < found[0]:
            found = time_s, trigger
    if found is None:
        return None
    trigger = found[1]
    here, there = one.get(trigger), other.get(trigger)
    if here is None or there is None:
        live_s = None if here is None else live[here].time_s
        simulated_s = None if there is None else simulated[there].time_s
        words = f"there was no {'live' if here is None else 'simulated'} decision for it"
        return Divergence(trigger, live_s, simulated_s, (words,), ())
    return Divergence(
        trigger,
        live[here].time_s,
        simulated[there].time_s,
        tuple(_chosen(live[here], simulated[there])),
        tuple(_seen(live[here], simulated[there], twin)),
    )


def _chosen(live: DecisionRecord, simulated: DecisionRecord) -> list[str]:
    words = []
    if more := live.running - simulated.running:
        words.append(f"only live runs {_jobs(more)}")
    if more := simulated.running - live.running:
        words.append(f"only simulated runs {_jobs(more)}")
    if not words:
        words.append(f"the same jobs run on other nodes: {_where(live)} live, {_where(simulated)} simulated")
    return words


def _where(record: DecisionRecord) -> str:
    by_node: dict[int, list[int]] = {}
    for job, nodes in sorted(record.placement.items()):
        for node in nodes:
            by_node.setdefault(node, []).append(job)
    return " | ".join(" ".join(map(str, by_node[node])) for node in sorted(by_node))


def _seen(live: DecisionRecord, simulated: DecisionRecord, twin: Schedule) -> list[str]:
    words = []
    if set(live.triggers) != set(simulated.triggers):
        here = ", ".join(map(str, live.triggers))
        there = ", ".join(map(str, simulated.triggers))
        words.append(f"coalesced: live decided for {here}; simulated for {there}")
    if more := live.active - simulated.active:
        words.append(f"only live had {_jobs(more)} in the system")
    if more := simulated.active - live.active:
        words.append(f"only simulated had {_jobs(more)} in the system")
    gaps = []
    for job in live.active & simulated.active:
        told_s = live.progress_s.get(job)
        if told_s is not None:
            gaps.append((abs(told_s - progress_at(twin, job, simulated.time_s)), job))
    for gap_s, job in sorted(gaps, reverse=True)[:_MOST_JOBS]:
        if gap_s > _FEW_S:
            there_s = progress_at(twin, job, simulated.time_s)
            words.append(f"virtual time of job {job}: {live.progress_s[job]:.1f} s live, {there_s:.1f} s simulated")
    if not words:
        gap_s, job = max(gaps, default=(0.0, 0))
        words.append(f"virtual times differ by {gap_s:.3g} s at most (job {job}): this changed the decision")
    return words


def progress_at(schedule: Schedule, job: int, trace_s: float) -> float:
    """Return the virtual time of a job at a trace second, from the yields of its first task's spans."""
    at_s = trace_s / schedule.time_scale
    return schedule.time_scale * sum(
        span.yield_frac * max(min(at_s, span.end_s or at_s) - span.begin_s, 0.0)
        for span in schedule.spans
        if span.job == job and span.task == 0 and span.kind in RUNS
    )


def _jobs(jobs: frozenset[int]) -> str:
    shown = ", ".join(map(str, sorted(jobs)[:_MOST_JOBS]))
    more = f" and {len(jobs) - _MOST_JOBS} more" if len(jobs) > _MOST_JOBS else ""
    return f"{'job' if len(jobs) == 1 else 'jobs'} {shown}{more}"
