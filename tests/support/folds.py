"""The state of the controller against the fold of its journal: equal at the end of every run that a test makes."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from testbed.control.cluster import Cluster, LiveJob
from testbed.control.session import RunResult, _Session
from testbed.errors import TestbedError
from testbed.run.events import Known
from testbed.run.history import History
from testbed.run.job_history import Interruption, JobHistory
from testbed.run.journal import read_events
from testbed.run.phases import COURSES, ENDED, Phase

_IN_MEMORY = frozenset({Phase.STARTING, Phase.RUNNING, Phase.SAVING, Phase.RESTORING, Phase.MIGRATING})
_UNDER_WAY = frozenset({Phase.STARTING, Phase.SAVING, Phase.TRANSFERRING, Phase.RESTORING, Phase.MIGRATING})
_FROM_IMAGES = frozenset({Phase.SAVED, Phase.TRANSFERRING, Phase.RESTORING})
_WITHOUT_IMAGES = frozenset({Phase.WAITING, Phase.RUNNING, Phase.SAVING})
# a guest that migrates live is between two lives: whether it progressed counts again when it has arrived
_PROGRESS_KNOWN = frozenset(Phase) - ENDED - {Phase.MIGRATING}


def of_controller(live: LiveJob) -> dict[str, Any]:
    """Return what the controller knows of a job that its journal shall know, too."""
    open_tasks = set(range(live.job.tasks)) - live.finished_tasks
    flight, intended = live.flight, live.intended
    return {
        "phase": live.phase,
        "tasks": live.job.tasks,
        "trace": (live.job.submit_time_s, live.job.cpu_need_frac, live.job.mem_req_frac, live.job.run_time_s),
        "guest": (live.memory_mib, live.specs[0].cpu_cores),
        "running_on": live.running_on,
        "migrating_to": live.migrating_to,
        "live_refused": live.live_refused,
        "saved_on": live.saved_on,
        "images": [(image.image, image.bytes, image.digest) for image in live.images],
        "image_holders": live.image_holders,
        "yield_frac": live.yield_frac,
        "flight": flight and (flight.verb.value, flight.nodes, flight.yield_frac),
        "wanted": intended and (intended.nodes, intended.yield_frac),
        "was_started": live.was_started,
        "start_trace_s": live.start_trace_s,
        "end_trace_s": live.end_trace_s,
        "progressed": live.progressed & open_tasks if live.phase in _PROGRESS_KNOWN else None,
        "finished_tasks": live.finished_tasks,
        "units_done": {task: live.units_done[task] for task in live.finished_tasks},
        "unchecked": live.unchecked,
        "checksums": live.checksums,
        "doubts": live.doubts,
        "been": live.been,
        "failure": live.failure and (live.failure.code.value, live.failure.text),
        "stranded": None if live.ended or live.stranded is None else live.stranded.text,
        "withdrawn": live.withdrawn,
        "restarts": live.restarts,
        "preemptions": live.preemptions,
        "migrations": live.migrations,
        "interruptions": [
            (
                each.reason, each.mechanism, each.saved_on, each.moved_tasks, each.saved_bytes, each.transferred_bytes,
                each.restored_bytes, each.migrated_bytes, each.complete, each.cut_off, each.back_s is not None,
            )
            for each in live.reschedulings
        ],
    }  # fmt: skip


def of_journal(job: JobHistory) -> dict[str, Any]:
    """Return the same of the fold of a journal."""
    open_tasks = set(range(job.tasks)) - job.finished_tasks
    flight, wanted = job.flight, job.wanted
    return {
        "phase": job.phase,
        "tasks": job.tasks,
        "trace": (job.submit_trace_s, job.cpu_need_frac, job.mem_req_frac, job.run_time_s),
        "guest": (job.memory_mib, job.cpu_cores),
        "running_on": job.running_on,
        "migrating_to": job.migrating_to,
        "live_refused": job.live_refused,
        "saved_on": job.saved_on,
        "images": [(image.name, image.bytes, image.digest) for image in job.images],
        "image_holders": job.image_holders,
        "yield_frac": job.yield_frac,
        "flight": flight and (flight.verb, flight.nodes, flight.yield_frac),
        "wanted": wanted and (wanted.nodes, wanted.yield_frac),
        "was_started": job.was_started,
        "start_trace_s": job.start_trace_s,
        "end_trace_s": job.end_trace_s,
        "progressed": job.progressed & open_tasks if job.phase in _PROGRESS_KNOWN else None,
        "finished_tasks": job.finished_tasks,
        "units_done": {task: job.units_done.get(task, 0) for task in job.finished_tasks},
        "unchecked": job.unchecked,
        "checksums": job.checksums,
        "doubts": job.doubts,
        "been": job.been,
        "failure": (job.failure_code, job.failure_text) if job.failure_code else None,
        "stranded": None if job.ended else job.stranded or None,
        "withdrawn": job.withdrawn,
        "restarts": job.restarts,
        "preemptions": job.preemptions,
        "migrations": job.migrations,
        "interruptions": [_account(each) for each in job.interruptions],
    }


def _account(each: Interruption) -> tuple[Any, ...]:
    return (
        each.reason, each.mechanism, each.saved_on, each.moved_tasks, each.saved_bytes, each.transferred_bytes,
        each.restored_bytes, each.migrated_bytes, each.complete, each.cut_off, each.back_s is not None,
    )  # fmt: skip


def _guests(cluster: Cluster, node: int) -> list[tuple[int, int]]:
    return [
        (live.job_id, spec.task)
        for live in cluster.jobs.values()
        for spec in live.specs
        if node in live.places(spec.task)
    ]


def differences(cluster: Cluster, history: History) -> list[str]:
    """Return what the controller and the fold of its journal say differently: job or node, key, and both values."""
    count = len(cluster.node_available)
    columns = {
        "available": (cluster.node_available, [node.available for node in history.nodes]),
        "reachable": (cluster.node_reachable, [node.reachable for node in history.nodes]),
        "guests": ([_guests(cluster, node) for node in range(count)], [history.on_node(node) for node in range(count)]),
    }
    found = [
        f"node {node} {what}: the controller has {mine!r}, its journal {theirs!r}"
        for what, both in columns.items()
        for node, (mine, theirs) in enumerate(zip(*both, strict=True))
        if mine != theirs
    ]
    if cluster.jobs.keys() != history.jobs.keys():
        found.append(f"jobs: the controller has {list(cluster.jobs)}, its journal {list(history.jobs)}")
    for job_id in cluster.jobs.keys() & history.jobs.keys():
        live, told = cluster.jobs[job_id], history.jobs[job_id]
        mine, theirs = of_controller(live), of_journal(told)
        found += [
            f"job {job_id} {key}: the controller has {mine[key]!r}, its journal {theirs[key]!r}"
            for key in mine
            if mine[key] != theirs[key]
        ]
        if told.guests and told.guests != live.guests:
            found.append(f"job {job_id} guests: the controller has {live.guests}, its journal {told.guests}")
    return found


def faults_of(history: History, memory_mib: Sequence[int]) -> list[str]:
    """Return what no legal state has: places that do not go with the phase, or more memory held than there is."""
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
            "is under way without an operation": course is not None or told or phase not in _UNDER_WAY,
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
    history = History()
    for event in journal:
        history.apply(event)
        found = faults_of(history, memory_mib)
        assert found == [], f"after {event}: {found}"
    return history


@contextlib.contextmanager
def folds_compared() -> Iterator[list[str]]:
    """Compare the controller with its journal at the end of each run inside the block; yield what differs.

    A run whose journal could not be written whole is folded as far as it goes, and not compared.
    """
    found: list[str] = []
    finish = _Session.finish

    def compare(self: _Session, *, complete: bool) -> RunResult:
        directory = self._recorder.directory
        try:
            memory_mib = [node.memory_mib for node in self._scenario.nodes]
            history = fold_each(read_events(directory.path / "events.jsonl"), memory_mib)
        except (TestbedError, AssertionError) as error:
            found.append(f"{directory.path}: {error}")
        else:
            if self.cluster is not None and history.replay is not None and directory.failure is None:
                found.extend(f"{directory.path}: {each}" for each in differences(self.cluster, history))
        return finish(self, complete=complete)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Session, "finish", compare)
        yield found


def check_directory(run: Path) -> History:
    """Compare the fold of the journal of a run, whose controller was a process of its own, with its results."""
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
        live = sum(each.mechanism == "live" for each in job.interruptions)
        moved = sum(each.bytes_moved for each in job.interruptions)
        assert (int(row["live_migrations"]), int(row["bytes_moved"])) == (live, moved)
    return history
