"""Comparison of the controller's state with its journal and with the guests of agents, in every run of a test."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from support.holdings import Holdings
from testbed.control.cluster import Cluster
from testbed.control.session import RunResult, _Session
from testbed.errors import TestbedError
from testbed.run.events import CANCELLED, Intent, Known, Outcome
from testbed.run.history import History
from testbed.run.journal import read_events
from testbed.run.phases import COURSES, Phase

_IN_MEMORY = frozenset({Phase.STARTING, Phase.RUNNING, Phase.SAVING, Phase.RESTORING, Phase.MIGRATING})
_UNDER_WAY = frozenset({Phase.STARTING, Phase.SAVING, Phase.TRANSFERRING, Phase.RESTORING, Phase.MIGRATING})


def differences(mine: History, journal: History) -> list[str]:
    """Return the differences between the history of a controller and the fold of its journal, by key."""
    found = _unequal("run", mine, journal, leave_out={"names", "jobs", "active", "nodes"})
    if mine.active.keys() != journal.active.keys():
        found.append(f"the controller has active jobs {list(mine.active)}, its journal {list(journal.active)}")
    if (mine.jobs.keys(), mine.nodes) != (journal.jobs.keys(), journal.nodes):
        found.append(f"the controller has jobs {list(mine.jobs)}, nodes {mine.nodes}, its journal {journal}")
    for job in mine.jobs.keys() & journal.jobs.keys():
        found += _unequal(f"job {job}", mine.jobs[job], journal.jobs[job])
    return found


def _unequal(whose: str, mine: object, journal: object, leave_out: Collection[str] = ()) -> list[str]:
    pairs = [(each.name, getattr(mine, each.name), getattr(journal, each.name)) for each in dataclasses.fields(mine)]
    return [
        f"{whose} {name}: the controller has {here!r}, its journal {there!r}"
        for name, here, there in pairs
        if name not in leave_out and here != there
    ]


def unlike(cluster: Cluster) -> list[str]:
    """Return the differences between the history of an ended run and the other state of its controller."""
    found = [f"operations {list(cluster.history.flights)} are under way still"] if cluster.history.flights else []
    for live in cluster.jobs.values():
        state = live.state
        if state is not cluster.history.jobs[live.job_id]:
            found.append(f"job {live.job_id} has another state than the history")
        if state.guests and state.guests != live.guests:
            found.append(f"job {live.job_id} has guests {live.guests}: its history has {state.guests}")
        told = {task: state.units_done.get(task, 0) for task in state.finished_tasks}
        measured = {task: live.progress.units[task] for task in state.finished_tasks}
        if told != measured:
            found.append(f"job {live.job_id} has done {measured} units: its history has {told}")
    return found


def faults_of(history: History, memory_mib: Sequence[int], given_up: Collection[int] = ()) -> list[str]:
    """Return the faults of a state: places that contradict the phase, or nodes that are over their memory.

    The operations on jobs that are `given_up` were cancelled, so the state of their guests is unknown.
    """
    found = []
    for job in history.jobs.values():
        phase, held, told = job.phase, job.running_on is not None, job.withdrawn
        course = None if job.flight is None else COURSES[job.flight.verb]
        rules = {
            "runs nowhere": held or told or phase not in _IN_MEMORY,
            "runs although it does not": not held or phase in {*_IN_MEMORY, Phase.FAILED},
            "has no images": job.saved_on is not None
            or phase not in {Phase.SAVED, Phase.TRANSFERRING, Phase.RESTORING},
            "has images although it runs": job.saved_on is None
            or phase not in {Phase.WAITING, Phase.RUNNING, Phase.SAVING},
            "is somewhere else": job.migrating_to is None or held,
            "is not under way": course is None or job.ended or phase is course.during,
            "is under way without an operation": course is not None
            or told
            or phase not in _UNDER_WAY
            or job.job in given_up,
            "is done before its tasks": phase is not Phase.DONE or len(job.finished_tasks) == job.tasks,
            "is wanted although it cannot run": job.wanted is None or job.active,
            "failed without a reason": (phase is Phase.FAILED) == (job.failure_code is not None),
        }
        found += [f"job {job.job}, {job.described()}: it {rule}" for rule, holds in rules.items() if not holds]
    for node, most_mib in enumerate(memory_mib):
        held_mib = sum(history.jobs[job].memory_mib or 0 for job, _ in history.on_node(node))
        if held_mib > most_mib:
            found.append(f"node {node}: {held_mib} MiB are held: it has {most_mib} MiB")
    return found


def fold_each(journal: Iterable[Known], memory_mib: Sequence[int] = ()) -> History:
    """Return the fold of a journal; raises `AssertionError` for the first event that leads to an illegal state."""
    history, given_up = History(), set[int]()
    for event in journal:
        history.apply(event)
        if isinstance(event, Intent | Outcome):
            (given_up.add if isinstance(event, Outcome) and event.code == CANCELLED else given_up.discard)(event.job)
        found = faults_of(history, memory_mib, given_up)
        assert found == [], f"after {event}: {found}"
    return history


@contextlib.contextmanager
def folds_compared(*, agents: bool = True) -> Iterator[list[str]]:
    """Compare the history of the controller, at the end of each run inside the block; yield the differences.

    The history is compared with a fold of the written journal, each prefix of which must be a legal state, and with the
    other state of the controller. After each operation it is compared with the guests of the `agents` of a dry run. If
    the journal of a run could not be written completely, the written part is folded, and not compared.
    """
    found: list[str] = []
    holdings = Holdings()
    finish = _Session.finish

    def compare(self: _Session, *, complete: bool) -> RunResult:
        directory = self.recorder.directory
        try:
            memory_mib = [node.memory_mib for node in self.scenario.nodes]
            journal = fold_each(read_events(directory.path / "events.jsonl"), memory_mib)
        except (TestbedError, AssertionError) as error:
            found.append(f"{directory.path}: {error}")
        else:
            if directory.failure is None:
                unequal = differences(self.recorder.history, journal)
                unequal += unlike(self.cluster) if self.cluster is not None else []
                found.extend(f"{directory.path}: {each}" for each in unequal)
        return finish(self, complete=complete)

    with pytest.MonkeyPatch.context() as patch:
        if agents:
            holdings.install(patch)
        patch.setattr(_Session, "finish", compare)
        yield found
    found += holdings.different


def check_directory(run: Path) -> History:
    """Compare the fold of the journal of a run, whose controller was a separate process, with its results."""
    history = fold_each(read_events(run / "events.jsonl"))
    if not (run / "summary.json").exists():
        return history
    summary = json.loads((run / "summary.json").read_text())
    failed = {str(job.job): job for job in history.jobs.values() if job.failure_code is not None}
    assert summary["failed"] == {job: each.failure_text for job, each in failed.items()}
    assert summary["failure_codes"] == {job: each.failure_code for job, each in failed.items()}
    assert summary["done"] == sum(job.state == "done" for job in history.jobs.values())
    with (run / "jobs.csv").open(newline="") as file:
        rows = {int(row["job_id"]): row for row in csv.DictReader(file)}
    assert rows.keys() == history.jobs.keys()
    for job_id, row in rows.items():
        job = history.jobs[job_id]
        told = {name: float(row[name]) if row[name] else None for name in ("start_time_s", "end_time_s")}
        assert told == {"start_time_s": job.start_trace_s, "end_time_s": job.end_trace_s}
        assert (int(row["preemptions"]), int(row["migrations"])) == (job.preemptions, job.migrations)
        live = sum(each.mechanism == "live" for each in job.reschedulings)
        moved = sum(each.bytes_moved for each in job.reschedulings)
        assert (int(row["live_migrations"]), int(row["bytes_moved"])) == (live, moved)
        if job.state == "done":
            assert all(each.measured is not None for each in job.interruptions if each.back_s is not None), job_id
    return history
