"""Decisions of a live run and of its simulation in one form, independent of the names of nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from testbed.run import events
from testbed.scheduling.policies.discovering import watches_needs
from testbed.scheduling.policies.view import NOT_PLACED

if TYPE_CHECKING:
    from testbed.study.report.run.simulated import Simulation

SUBMISSION, COMPLETION, RETRY, PERIODIC, CHANGE = "submission", "completion", "retry", "periodic pass", "change"
_SLACK_S = 1e-6  # of trace time: tolerance for rounding in the time of a periodic pass


class Trigger(NamedTuple):
    """The trigger of a decision: a submission or completion of job `number`, or pass, retry or change `number`.

    The k-th pass is at k periods, from 1; a pass at 0 s is no trigger, as it coincides with a submission or has no
    jobs. Retries (of a policy that tries waiting jobs again at instants of its own) and changes (of the available
    nodes, or after an operation failed) are numbered over the run, from 1.
    """

    kind: str
    number: int

    def __str__(self) -> str:
        of = "of job " if self.kind in (SUBMISSION, COMPLETION) else ""
        return f"{self.kind} {of}{self.number}"


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision at trace second `time_s`, taken for `triggers`, while the jobs `active` were in the system.

    `placement` maps the jobs that shall run to the nodes of their tasks, `yields` to their yields. `progress_s` maps
    active jobs to their virtual times in the policy's view, as far as these were recorded.
    """

    time_s: float
    triggers: tuple[Trigger, ...]
    active: frozenset[int]
    placement: Mapping[int, tuple[int, ...]]
    yields: Mapping[int, float]
    progress_s: Mapping[int, float]

    @property
    def running(self) -> frozenset[int]:
        """The jobs that shall run."""
        return frozenset(self.placement)

    @property
    def shape(self) -> Counter[frozenset[tuple[int, int]]]:
        """The shape of the placement: see `shape_of`."""
        return shape_of(self.placement)


def shape_of(placement: Mapping[int, tuple[int, ...]]) -> Counter[frozenset[tuple[int, int]]]:
    """Return the shape of a placement, which is independent of the names of nodes: the multiset of node contents.

    The content of a node is its number of tasks of each job. Nodes are identical and tasks of a job are
    interchangeable, so two placements differ by a renaming of nodes if and only if their shapes are equal.
    """
    contents: dict[int, Counter[int]] = {}
    for job, nodes in placement.items():
        for node in nodes:
            contents.setdefault(node, Counter())[job] += 1
    return Counter(frozenset(content.items()) for content in contents.values())


class Numbering:
    """Numbers for the retries and changes of a run; it also distinguishes a submission from a retry."""

    def __init__(self) -> None:
        self._submitted: set[int] = set()
        self._counts: Counter[str] = Counter()

    def _next(self, kind: str) -> Trigger:
        self._counts[kind] += 1
        return Trigger(kind, self._counts[kind])

    def triggers(
        self, completed: Iterable[int], submitted: Iterable[int], passes: int | None, *, changed: bool, retried: bool
    ) -> tuple[Trigger, ...]:
        """Return the triggers of the next decision; `passes` is the number of the periodic pass, None if it is none."""
        found = [Trigger(COMPLETION, job) for job in completed]
        for job in submitted:
            if job in self._submitted:
                retried = True
            else:
                self._submitted.add(job)
                found.append(Trigger(SUBMISSION, job))
        if retried:
            found.append(self._next(RETRY))
        if passes:
            found.append(Trigger(PERIODIC, passes))
        if changed:
            found.append(self._next(CHANGE))
        return tuple(found)


def of_journal(event: events.Decision, period_s: float | None, numbering: Numbering) -> DecisionRecord:
    """Return the record of a decision in a journal; must be called for all decisions in their order."""
    view, trigger, decision = event.view, event.event, event.decision
    jobs, time_s = view.job_id, view.time_s
    placement = placement_of(jobs, view.tasks, decision.task_node)
    passes = int((time_s + _SLACK_S) // period_s) if trigger.periodic and period_s else None
    return DecisionRecord(
        time_s=time_s,
        triggers=numbering.triggers(
            trigger.completed, trigger.submitted, passes, changed=trigger.changed, retried=False
        ),
        active=frozenset(jobs),
        placement=placement,
        yields={job: share for job, share in zip(jobs, decision.yield_frac, strict=True) if job in placement},
        progress_s=dict(zip(jobs, view.virtual_time_s, strict=True)),
    )


def of_simulation(simulation: Simulation, period_s: float | None) -> tuple[DecisionRecord, ...]:
    """Return the decisions of a simulation; the triggers of a decision are the events at its instant.

    As in a live run, the completion of the last job in the system also triggers a decision, which is empty.
    """
    run = simulation.run
    ids = np.array([job.job_id for job in run.jobs], dtype=np.int64)
    numbering = Numbering()
    records = []
    by_needs = watches_needs(simulation.policy)  # decisions without an event are those with a new need
    for each in simulation.decisions:
        time_s = each.time_s
        active = frozenset(ids[(run.submit_s <= time_s) & (run.end_s > time_s)].tolist())
        if not active:
            continue
        completed = ids[run.end_s == time_s].tolist()
        submitted = ids[run.submit_s == time_s].tolist()
        passes = None
        if period_s and active and abs(time_s - round(time_s / period_s) * period_s) < _SLACK_S:
            passes = round(time_s / period_s)
        records.append(
            DecisionRecord(
                time_s=time_s,
                triggers=numbering.triggers(
                    completed, submitted, passes, changed=False,
                    retried=passes is None and not completed and not submitted and not by_needs,
                ),
                active=active,
                placement={job: nodes for job, (nodes, _) in each.placements.items()},
                yields={job: share for job, (_, share) in each.placements.items()},
                progress_s={},
            )
        )  # fmt: skip
    for time_s in sorted(set(run.end_s.tolist())):
        if not ((run.submit_s <= time_s) & (run.end_s > time_s)).any():
            ended = tuple(Trigger(COMPLETION, job) for job in ids[run.end_s == time_s].tolist())
            records.append(DecisionRecord(time_s, ended, frozenset(), {}, {}, {}))
    return tuple(sorted(records, key=lambda record: record.time_s))


def placement_of(jobs: Sequence[int], tasks: Sequence[int], task_node: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return the nodes of the tasks of each placed job, from columns of a view and of the decision on it."""
    places, first = {}, 0
    for job, count in zip(jobs, tasks, strict=True):
        nodes = tuple(task_node[first : first + count])
        first += count
        if nodes and nodes[0] != NOT_PLACED:
            places[job] = nodes
    return places
