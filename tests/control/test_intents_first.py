"""Operations that create or move guests begin once their intents are durable; a cap does not wait for the disk."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from support.control.disturbed import LONG_TRACE_S, give_up
from support.control.rehearsal import Watcher, five_jobs, rehearse, scenario

from testbed.control.cluster import LiveJob
from testbed.control.recorder import Recorder
from testbed.errors import RunError
from testbed.lab.bring_up import dry_lab
from testbed.lab.fleet import Fleet
from testbed.lab.liveness import Passed
from testbed.lab.opening import open_lab
from testbed.lab.operations import Operations
from testbed.lab.virtual_time import run_in_virtual_time
from testbed.measure.rundir import RunDirectory, read_journal

COMMIT_S = 0.4  # of virtual time
ACTS = ("start", "save", "transfer", "set_running_cap")


class Disk:
    """A run directory with slow commits, which records written and committed entries and begun operations, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.durable = 0
        self.intents: dict[int, int] = {}  # by job: the entry number of its last intent
        self.begun: list[tuple[str, int, bool]] = []  # an operation, its job, and whether its intent was durable
        intent, durable = Recorder.intent, RunDirectory.durable

        def intend(recorder: Recorder, *arguments: object) -> None:
            intent(recorder, *arguments)
            self.intents[arguments[1].job_id] = recorder.ledger.written

        async def commit(directory: RunDirectory, number: int) -> None:
            await durable(directory, number)
            await asyncio.sleep(COMMIT_S)  # the length of a commit, in virtual time
            self.durable = max(self.durable, number)

        patch.setattr(Recorder, "intent", intend)
        patch.setattr(RunDirectory, "durable", commit)
        for name in ACTS:
            patch.setattr(Operations, name, self._noting(name, getattr(Operations, name)))

    def _noting(self, name: str, real: object) -> object:
        async def act(operations: Operations, live: object, *arguments: object) -> object:
            if isinstance(live, LiveJob):
                self.begun.append((name, live.job_id, self.intents[live.job_id] <= self.durable))
            return await real(operations, live, *arguments)

        return act


def test_an_operation_begins_once_its_intent_is_durable_and_a_cap_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    result, _ = rehearse(tmp_path, five_jobs())
    assert result.summary["done"] == 5
    waited = {name: [was_durable for act, _job, was_durable in disk.begun if act == name] for name in ACTS}
    assert {name for name, found in waited.items() if found} >= {"start", "save", "set_running_cap"}
    assert all(all(found) for name, found in waited.items() if name != "set_running_cap"), disk.begun
    assert not all(waited["set_running_cap"]), "no cap was set before its intent was durable"


def test_an_operation_whose_intent_cannot_be_made_durable_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)

    async def full(directory: RunDirectory, _number: int) -> None:
        directory._points.fail(directory.path / "events.jsonl", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        raise directory.failure

    monkeypatch.setattr(RunDirectory, "durable", full)
    with pytest.raises(RunError, match="No space left"):
        rehearse(tmp_path, five_jobs(), watcher=Watcher(give_up))
    assert disk.intents, "an operation was intended"
    assert disk.begun == []


@pytest.mark.parametrize("operation", ["start", "save", "set_running_cap", "drop_images"])
def test_a_mistake_in_an_operation_ends_the_run_and_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Such an error once stayed in a task that no code awaited: the run hung, and its journal said `ok`."""
    real = getattr(Operations, operation)

    async def mistaken(operations: Operations, live: object, *arguments: object) -> object:
        if isinstance(live, LiveJob | frozenset):  # images are named by a set of their holders
            raise ZeroDivisionError("a mistake")
        return await real(operations, live, *arguments)

    monkeypatch.setattr(Operations, operation, mistaken)
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        rehearse(tmp_path, five_jobs(), watcher=Watcher(give_up))
    (run,) = tmp_path.iterdir()
    journal = read_journal(run / "events.jsonl")
    assert [entry["reason"] for entry in journal if entry["kind"] == "aborted"] == ["a mistake"]
    verb = operation.replace("set_running_", "")
    outcomes = {entry["ok"] for entry in journal if entry["kind"] == "outcome" and entry["verb"] == verb}
    assert outcomes == (set() if operation == "drop_images" else {False})


def break_the_watch(patch: pytest.MonkeyPatch) -> None:
    """Let the watch over the nodes fail at its second check."""
    notice, looks = Fleet._notice, iter([False, True])

    def mistaken(fleet: Fleet, *arguments: object) -> None:
        if isinstance(arguments[0], Passed) and next(looks, False):
            raise ZeroDivisionError("a mistake")
        notice(fleet, *arguments)

    patch.setattr(Fleet, "_notice", mistaken)


def test_a_mistake_in_the_watch_over_the_nodes_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a lost node would stay unnoticed, as the error would be logged only at the end of the run."""
    break_the_watch(monkeypatch)
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        rehearse(tmp_path, five_jobs(), watcher=Watcher(give_up))


def test_a_mistake_in_the_watch_over_the_nodes_ends_a_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_the_watch(monkeypatch)

    async def main() -> None:
        async with open_lab(scenario(), folder=tmp_path, bring_up=dry_lab):
            await asyncio.sleep(LONG_TRACE_S)  # virtual

    with pytest.raises(ZeroDivisionError, match="a mistake"):
        run_in_virtual_time(main())
