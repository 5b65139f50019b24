"""Flows of shares, summed over a run by giver and receiver: between the tasks of a job, or between nodes."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.study.report.page.style import short
from testbed.study.report.run.schedule import Schedule, ShareMove, Span

MOST_MEMBERS = 16  # most members that are shown; the others are one member
_LONGEST_NODE = 14
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Flows:
    """Shares that moved between the members of an exchange; a bank is the last member.

    `cores` (givers, receivers) are sums of transfers: a share that moves twice counts twice.
    """

    names: tuple[str, ...]
    cores: Floats
    banked: bool

    @property
    def by_bank_only(self) -> bool:
        """Whether all shares moved to or from the bank."""
        return self.banked and not self.cores[:-1, :-1].any()

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Giver and receiver of each flow, the greatest flow first."""
        found = [(int(giver), int(receiver)) for giver, receiver in np.argwhere(self.cores > 0)]
        return sorted(found, key=lambda pair: (-self.cores[pair], pair))


def flows_of_job(schedule: Schedule, job: int) -> Flows:
    """Return the flows between the tasks of a job, each named with its first node."""
    nodes: dict[int, str] = {}
    for span in schedule.spans:
        if span.job == job:
            nodes.setdefault(span.task, schedule.node_name(span.node))
    moves = [(move.giver, move.receiver, move.cores) for move in schedule.share_moves if move.job == job]
    facts = schedule.jobs.get(job)
    tasks = set(range(facts.tasks if facts is not None else 0))
    names = {task: f"{task} · {short(nodes[task], _LONGEST_NODE)}" if task in nodes else str(task) for task in tasks}
    return _flows(moves, names, "bank")


def flows_of_nodes(schedule: Schedule) -> Flows:
    """Return the flows between nodes, summed over all jobs; all banks are one member."""
    places = _Places(schedule.spans)
    moves = [(places.of(move, move.giver), places.of(move, move.receiver), move.cores) for move in schedule.share_moves]
    names = {node: short(schedule.node_name(node), _LONGEST_NODE) for node in range(schedule.nodes)}
    return _flows(moves, names, "banks")


class _Places:
    """Lookup of a task's node at a given time."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans: dict[tuple[int, int], list[Span]] = defaultdict(list)
        for span in sorted(spans, key=lambda span: span.begin_s):
            self._spans[span.job, span.task].append(span)

    def of(self, move: ShareMove, task: int | None) -> int | None:
        """Return the node of a task at the time of a move; None for the bank."""
        if task is None:
            return None
        spans = self._spans.get((move.job, task), [])
        before = bisect_right(spans, move.t_s, key=lambda span: span.begin_s)
        return spans[max(before - 1, 0)].node if spans else None


def _flows(moves: Sequence[tuple[int | None, int | None, float]], names: dict[int, str], bank: str) -> Flows:
    """Return the sums of moves; of very many members, those with the least amounts are combined into one."""
    amounts: dict[int, float] = dict.fromkeys(names, 0.0)
    for giver, receiver, cores in moves:
        for member in {giver, receiver} - {None}:
            amounts[member] = amounts.get(member, 0.0) + cores  # type: ignore[index,arg-type]  # no None is left
    shown = sorted(amounts)
    if len(shown) > MOST_MEMBERS:
        shown = sorted(sorted(amounts, key=lambda member: (-amounts[member], member))[: MOST_MEMBERS - 1])
    labels = [names.get(member, str(member)) for member in shown]
    place = {member: index for index, member in enumerate(shown)}
    others = len(amounts) - len(shown)
    if others:
        place |= dict.fromkeys(amounts.keys() - place.keys(), len(labels))
        labels.append(f"{others} others")
    banked = any(None in (giver, receiver) for giver, receiver, _ in moves)
    if banked:
        labels.append(bank)
    cores_by_pair = np.zeros((len(labels), len(labels)))
    for giver, receiver, cores in moves:
        row, column = (len(labels) - 1 if member is None else place[member] for member in (giver, receiver))
        cores_by_pair[row, column] += cores
    return Flows(tuple(labels), cores_by_pair, banked)
