"""The difference of two schedules of the same jobs: times and nodes at which a job ran in only one of them.

A positive shift means that the first schedule is later, such as a measured one against its simulation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from testbed.errors import UserError
from testbed.study.report.run.lanes import end_of
from testbed.study.report.run.schedule import RUNS, JobFacts, Schedule, Span


@dataclass(frozen=True, slots=True)
class JobDifference:
    """One job in both schedules; times in trace seconds, None if a schedule lacks the time.

    `tasks_elsewhere` is the number of tasks whose first node differs, as tasks of a job are interchangeable.
    """

    job: int
    tasks: int
    start_shift_s: float | None
    end_shift_s: float | None
    turnaround_first_s: float | None
    turnaround_second_s: float | None
    preemptions_first: int
    preemptions_second: int
    migrations_first: int
    migrations_second: int
    tasks_elsewhere: int


@dataclass(frozen=True, slots=True)
class Cell:
    """An interval on a node in which `more` tasks of a job ran in the first schedule than in the second.

    A negative number means more tasks in the second schedule. Times are wall seconds.
    """

    node: int
    job: int
    begin_s: float
    end_s: float
    more: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between the schedules `first` and `second`.

    `both_task_s`, `first_only_task_s` and `second_only_task_s` sum seconds of tasks (trace time) that ran at the same
    time on the same node in both schedules, or in one only.
    """

    first: Schedule
    second: Schedule
    jobs: tuple[JobDifference, ...]
    cells: tuple[Cell, ...]
    both_task_s: float
    first_only_task_s: float
    second_only_task_s: float

    @property
    def agreement_frac(self) -> float:
        """Task seconds at the same time on the same node in both, over the task seconds of either; 1 if none ran."""
        either = self.both_task_s + self.first_only_task_s + self.second_only_task_s
        return self.both_task_s / either if either > 0.0 else 1.0

    def as_dict(self) -> dict[str, object]:
        """Return sums and jobs as data for JSON."""
        return {
            "first": self.first.name,
            "second": self.second.name,
            "agreement_frac": self.agreement_frac,
            "both_task_s": self.both_task_s,
            "first_only_task_s": self.first_only_task_s,
            "second_only_task_s": self.second_only_task_s,
            "jobs": [asdict(job) for job in self.jobs],
        }


def difference(first: Schedule, second: Schedule) -> Difference:
    """Compare two schedules. Raises `UserError` if their numbers of nodes or time scales differ."""
    if first.nodes != second.nodes or first.time_scale != second.time_scale:
        raise UserError(
            f"{first.name} ({first.nodes} nodes, time scale {first.time_scale:g}) and {second.name} ({second.nodes} "
            f"nodes, time scale {second.time_scale:g}): expected schedules of the same nodes at one time scale"
        )
    cells, both_s, first_s, second_s = _cells(first.spans, second.spans)
    places = _first_nodes(first.spans), _first_nodes(second.spans)
    jobs = tuple(
        _job(job, first.jobs.get(job), second.jobs.get(job), first.time_scale, places)
        for job in sorted({*first.jobs, *second.jobs})
    )
    scale = first.time_scale
    return Difference(first, second, jobs, tuple(cells), both_s * scale, first_s * scale, second_s * scale)


def _job(
    job: int,
    one: JobFacts | None,
    other: JobFacts | None,
    scale: float,
    places: tuple[Mapping[int, Counter[int]], Mapping[int, Counter[int]]],
) -> JobDifference:
    one, other = one or JobFacts(job), other or JobFacts(job)
    here, there = places[0].get(job, Counter()), places[1].get(job, Counter())
    return JobDifference(
        job=job,
        tasks=one.tasks or other.tasks,
        start_shift_s=_known((one.start_s - other.start_s) * scale),
        end_shift_s=_known((one.end_s - other.end_s) * scale),
        turnaround_first_s=_known(one.turnaround_s * scale),
        turnaround_second_s=_known(other.turnaround_s * scale),
        preemptions_first=one.preemptions,
        preemptions_second=other.preemptions,
        migrations_first=one.migrations,
        migrations_second=other.migrations,
        tasks_elsewhere=(here - there).total() if here and there else 0,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _first_nodes(spans: Iterable[Span]) -> dict[int, Counter[int]]:
    """Return for each job the number of its tasks by their first node."""
    first: dict[tuple[int, int], Span] = {}
    for span in spans:
        key = span.job, span.task
        if span.kind in RUNS and (key not in first or span.begin_s < first[key].begin_s):
            first[key] = span
    out: dict[int, Counter[int]] = {}
    for (job, _), span in first.items():
        out.setdefault(job, Counter())[span.node] += 1
    return out


def _cells(first: Sequence[Span], second: Sequence[Span]) -> tuple[list[Cell], float, float, float]:
    """Return the cells by node and job, and the task seconds in both, in the first only, and in the second only."""
    events: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    for place, spans in enumerate((first, second)):
        for span in spans:
            if span.kind in RUNS:
                own = events.setdefault((span.node, span.job), [])
                own.append((span.begin_s, place, 1))
                own.append((end_of(span), place, -1))
    cells: list[Cell] = []
    sums = [0.0, 0.0, 0.0]
    for (node, job), own in sorted(events.items()):
        own.sort()
        count = [0, 0]
        begin_s = own[0][0]
        for time_s, place, change in own:
            if time_s > begin_s:
                more = count[0] - count[1]
                sums[0] += min(count) * (time_s - begin_s)
                sums[1] += max(more, 0) * (time_s - begin_s)
                sums[2] += max(-more, 0) * (time_s - begin_s)
                if more and cells and cells[-1] == Cell(node, job, cells[-1].begin_s, begin_s, more):
                    cells[-1] = Cell(node, job, cells[-1].begin_s, time_s, more)
                elif more:
                    cells.append(Cell(node, job, begin_s, time_s, more))
                begin_s = time_s
            count[place] += change
    return cells, sums[0], sums[1], sums[2]
