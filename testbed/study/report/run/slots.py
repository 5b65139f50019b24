"""The slots of nodes under XGE over time, and counts of their changes, from the spans of a schedule.

Measured and simulated schedules are processed alike. Times are wall seconds since the replay began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise

from testbed.scheduling.policies.xge_slots import (
    CHANGING,
    IDLE,
    LENT,
    PARALLEL_JOBS,
    SLOTS,
    TAKEN,
    Partitions,
    partitions_of,
)
from testbed.study.report.run.lanes import end_of
from testbed.study.report.run.schedule import IN_MEMORY, RESTORE, RUNS, SAVE, START, Schedule, Span

_HAIR_S = 1e-9


@dataclass(frozen=True, slots=True)
class Band:
    """An interval [begin_s, end_s) in which one slot of a node was active."""

    node: int
    slot: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of a node's changes.

    * `lent`: times that it began to run serial jobs in the parallel partition.
    * `taken_back`: lendings that a parallel job ended.
    * `taken`: times that it began to run parallel jobs in the serial partition.
    * `suspended`, `resumed`: serial jobs that were saved, or restored, on it.
    """

    lent: int = 0
    taken_back: int = 0
    taken: int = 0
    suspended: int = 0
    resumed: int = 0

    def __add__(self, other: Counts) -> Counts:
        """Return the sums of all counts."""
        mine, others = asdict(self), asdict(other)
        return Counts(**{name: mine[name] + others[name] for name in mine})


@dataclass(frozen=True, slots=True)
class NodeSlots:
    """The slots of one node over a run: `bands` without gaps, and the counts of its changes."""

    node: int
    home: str
    bands: tuple[Band, ...]
    counts: Counts

    @property
    def seconds(self) -> dict[str, float]:
        """Wall seconds for which each of `SLOTS` was active."""
        found = dict.fromkeys(SLOTS, 0.0)
        for band in self.bands:
            found[band.slot] += band.end_s - band.begin_s
        return found


@dataclass(frozen=True, slots=True)
class Slots:
    """A schedule under XGE, and the slots of its nodes."""

    schedule: Schedule
    partitions: Partitions
    nodes: tuple[NodeSlots, ...]

    @property
    def total(self) -> Counts:
        """The sums of the counts over all nodes."""
        return sum((node.counts for node in self.nodes), Counts())

    def as_json(self) -> dict[str, object]:
        """Return counts and wall seconds per slot for each node by name, and the total counts, as data for JSON."""
        nodes = {
            self.schedule.node_name(node.node): {
                "partition": node.home, **asdict(node.counts),
                "wall_s": {slot: round(seconds, 6) for slot, seconds in node.seconds.items()},
            }
            for node in self.nodes
        }  # fmt: skip
        return {"nodes": nodes, "total": asdict(self.total)}


def slots_of(schedule: Schedule) -> Slots | None:
    """Return the slots of all nodes of a schedule, None if its policy is not XGE or it has no length."""
    partitions = partitions_of(schedule.policy, schedule.nodes)
    if partitions is None or not schedule.spans or schedule.end_s <= 0.0:
        return None
    parallel_jobs = _parallel_jobs(schedule)
    by_node: dict[int, list[Span]] = {node: [] for node in range(schedule.nodes)}
    for span in schedule.spans:
        if span.kind in IN_MEMORY:
            by_node[span.node].append(span)
    suspended, resumed = _moves(schedule.spans, parallel_jobs)
    resumptions = Counter(node for node, _ in resumed)
    found = []
    for node, spans in by_node.items():
        bands = tuple(_bands(node, spans, parallel_jobs, partitions, schedule.end_s))
        saves_s = [time_s for where, time_s in suspended if where == node]
        counts = Counts(
            lent=_begun(bands, LENT), taken_back=_taken_back(bands, saves_s), taken=_begun(bands, TAKEN),
            suspended=len(saves_s), resumed=resumptions[node],
        )  # fmt: skip
        found.append(NodeSlots(node, partitions.home(node), bands, counts))
    return Slots(schedule, partitions, tuple(found))


def _parallel_jobs(schedule: Schedule) -> frozenset[int]:
    known = {job for job, facts in schedule.jobs.items() if facts.tasks > 1}
    return frozenset(known | {span.job for span in schedule.spans if span.task > 0})


def _bands(
    node: int, spans: Sequence[Span], parallel_jobs: frozenset[int], partitions: Partitions, until_s: float
) -> Iterable[Band]:
    """Yield the bands of a node from 0 to `until_s`; a new band begins with each change of the slot."""
    changes: dict[float, Counter[tuple[bool, bool]]] = {0.0: Counter(), until_s: Counter()}
    for span in spans:
        kind = span.job in parallel_jobs, span.kind in RUNS
        changes.setdefault(span.begin_s, Counter())[kind] += 1
        changes.setdefault(min(end_of(span), until_s), Counter())[kind] -= 1
    there: Counter[tuple[bool, bool]] = Counter()
    pieces = []
    for (begin_s, change), (end_s, _) in pairwise(sorted(changes.items(), key=lambda item: item[0])):
        for kind, count in change.items():
            there[kind] += count
        slot = partitions.slot(node, [kind for kind, count in there.items() if count > 0])
        pieces.append(Band(node, slot, begin_s, end_s))
    for slot, group in groupby(pieces, key=lambda piece: piece.slot):
        own = list(group)
        yield Band(node, slot, own[0].begin_s, own[-1].end_s)


def _moves(
    spans: Sequence[Span], parallel_jobs: frozenset[int]
) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Return (node, wall second) of all suspensions of serial jobs, and of all resumptions.

    A job that is started a second time because its node was lost is neither suspended nor resumed.
    """
    suspended, resumed = [], []
    own = sorted(
        (span for span in spans if span.job not in parallel_jobs and span.kind in IN_MEMORY),
        key=lambda span: (span.job, span.begin_s),
    )
    for _, group in groupby(own, key=lambda span: span.job):
        for span, after in pairwise([*group, None]):
            if span is None:
                continue
            comes_back = after is not None and after.kind != START
            if _leaves(span, after) and (comes_back or span.kind == SAVE):
                suspended.append((span.node, end_of(span)))
                if after is not None and comes_back:
                    resumed.append((after.node, after.begin_s))
    return suspended, resumed


def _leaves(span: Span, after: Span | None) -> bool:
    """Return whether a task leaves its node's memory at the end of a span; `after` is its next span in memory."""
    if after is None or after.node != span.node or after.begin_s - end_of(span) > _HAIR_S:
        return True
    return span.kind == SAVE and after.kind == RESTORE  # after a failed save the task continues in memory


def _periods(bands: Iterable[Band]) -> list[Band]:
    """Return the bands of active slots, joined over changes that lead back to the same slot."""
    found: list[Band] = []
    was_idle = True
    for band in bands:
        if band.slot == CHANGING:
            continue
        if band.slot == IDLE:
            was_idle = True
            continue
        if found and not was_idle and found[-1].slot == band.slot:
            found[-1] = Band(band.node, band.slot, found[-1].begin_s, band.end_s)
        else:
            found.append(band)
        was_idle = False
    return found


def _begun(bands: Iterable[Band], slot: str) -> int:
    return sum(period.slot == slot for period in _periods(bands))


def _taken_back(bands: Sequence[Band], saves_s: Sequence[float]) -> int:
    """Return the number of lendings that ended with suspended serial jobs and a parallel job on the node."""
    found = 0
    for period, after in pairwise(_periods(bands)):
        if period.slot == LENT and after.slot in PARALLEL_JOBS:
            found += any(period.begin_s < time_s <= after.begin_s + _HAIR_S for time_s in saves_s)
    return found
