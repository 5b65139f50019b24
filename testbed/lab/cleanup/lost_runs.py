"""Finds and cleans up runs whose controller was lost while their agents and images stay.

Such a run waits for `testbed resume`, or has ended. It is found by the claims of its agents, whose images are in the
run directory, and by its file lab.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import UserError
from testbed.host.agents import Claim, claims
from testbed.host.process_identity import start_ticks
from testbed.lab.cleanup.leftover import Leftover
from testbed.lab.lab_record import FILE, LabRecord
from testbed.lab.lease import holder_name
from testbed.lab.local_agents import GRACE_S, remove_empty
from testbed.measure.append_file import AppendFile
from testbed.measure.run_lock import RunLock
from testbed.measure.torn_lines import cut_torn_lines
from testbed.run import events
from testbed.run.journal import BadEntryError, decode, encode, is_whole, read_events, seal
from testbed.run.parts import has_journal
from testbed.run.reader import read_history

_LAST_BYTES = 1 << 16
_LAST_ENTRIES = 3  # `teardown` is followed by `clock`
_BROKER = "broker"  # folder of the run's broker, beside those of its agents


def run_of(claim: Claim) -> Path | None:
    """Return the run whose lab an agent belongs to, if agents of that run may outlive their controller."""
    images = Path(claim.image_dir)
    run = images.parent.parent
    return run if images.parent.name == "images" and (run / FILE).is_file() else None


def abandon(run: Path, *, dry_run: bool) -> None:
    """Record in its journal that a run has ended whose controller was lost; with `dry_run` only check the run.

    The run cannot be resumed then. Its agents and images stay until `clean_lost_runs`. Raises `UserError` for a run
    that does not wait to be resumed.
    """
    if not (run / FILE).is_file() or not has_journal(run):
        raise UserError(f"{run}: nothing waits to be resumed: expected a run that `testbed cleanup` lists")
    try:
        lock = RunLock(run)
    except OSError as error:
        raise UserError(f"{run}: {error.strerror}: expected a run directory that this user may write in") from error
    try:
        if dry_run or _is_over(run):
            return
        cut_torn_lines(run)
        history = read_history(run / "events.jsonl")
        event = events.Aborted(history.last_s, history.last_trace_s, reason=f"abandoned by {holder_name()}")
        journal = AppendFile(run / "events.jsonl", continues=True)
        try:
            journal.write(seal(encode(event)) + b"\n")
            journal.sync()
        finally:
            journal.close()
    except OSError as error:
        raise UserError(f"{run}: cannot abandon the run: {error.strerror}") from error
    finally:
        lock.release()


async def clean_lost_runs(abandoned: Sequence[Path], *, dry_run: bool) -> list[Leftover]:
    """List runs that can be resumed; of other runs end the agents and remove the images, with `dry_run` only list them.

    `abandoned` are runs that must not be resumed, including runs without agents on this machine.
    """
    of_run: dict[Path, list[Claim]] = {run.resolve(): [] for run in abandoned if (run / FILE).is_file()}
    named = set(of_run)
    for _, claim in claims():
        run = run_of(claim)
        if run is not None:
            of_run.setdefault(run, []).append(claim)
    found = []
    for run, its in sorted(of_run.items()):
        lab = _Lab.of(run, its)
        try:
            lock = RunLock(run)
        except UserError:
            continue  # the run's controller is alive
        except OSError as error:
            found.append(Leftover(f"run {run}", str(lab), f"{run}: {error.strerror}"))
            continue
        try:
            kept = "" if run in named else _why_kept(run)
            if not (dry_run or kept):
                await lab.end()
            found.append(Leftover(f"run {run}", str(lab), kept))
        finally:
            lock.release()
    return found


def _why_kept(run: Path) -> str:
    """Return why a run without a controller must stay; empty if the run cannot be resumed."""
    try:
        if _is_over(run) or not any(isinstance(event, events.Replay) for event in read_events(run / "events.jsonl")):
            return ""
    except UserError as error:
        return f"unknown whether it can be resumed: {error}; `testbed cleanup --abandon RUN` ends it"
    return "`testbed resume RUN` can continue it, `testbed cleanup --abandon RUN` ends it"


def _is_over(run: Path) -> bool:
    """Whether a run has its results, or its journal records the end of the run."""
    if (run / "summary.json").exists() or not has_journal(run):
        return True
    with contextlib.suppress(OSError, BadEntryError), (run / "events.jsonl").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = [line for line in file.readlines()[-_LAST_ENTRIES:] if is_whole(line)]
        return any(isinstance(decode(line), events.Aborted | events.Teardown) for line in lines)
    return False


@dataclass(frozen=True, slots=True)
class _Lab:
    """Resources of a lost controller's run on this machine; `alive` are running agents as (process id, start ticks)."""

    run: Path
    nodes: tuple[str, ...]
    alive: tuple[tuple[int, int], ...]
    images: int
    folders: tuple[Path, ...]

    @classmethod
    def of(cls, run: Path, its: Iterable[Claim]) -> _Lab:
        try:
            record = LabRecord.open(run)
        except UserError:  # the file is damaged: use the claims alone
            record = LabRecord.of(run)
        alive = {(claim.pid, claim.started_ticks) for claim in its if claim.alive} | set(record.alive())
        folders = {Path(claim.state_dir).parent for claim in its} | ({record.folder} if record.folder else set())
        nodes = {claim.node for claim in its} | set(record.nodes)
        images = len([path for path in (run / "images").glob("*/*.img") if path.is_file()])
        return cls(run, tuple(sorted(nodes)), tuple(sorted(alive)), images, tuple(sorted(folders)))

    def __str__(self) -> str:
        agents = f"agents {', '.join(self.nodes)} ({len(self.alive)} at work)" if self.nodes else "no agents here"
        return f"{agents}, {self.images} images"

    async def end(self) -> None:
        """End the agents, which destroy their guests, and remove images and lab.json."""
        await asyncio.gather(*(asyncio.to_thread(_end, pid, started) for pid, started in self.alive))
        for folder in self.folders:
            shutil.rmtree(folder / _BROKER, ignore_errors=True)
            remove_empty(folder)
        shutil.rmtree(self.run / "images", ignore_errors=True)
        LabRecord.of(self.run).remove()


def _end(pid: int, started_ticks: int) -> None:
    """End an agent by SIGTERM, then SIGKILL; leftovers of a killed agent can be found by its claim."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if start_ticks(pid) != started_ticks:
                return
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)
            poll = select.poll()
            poll.register(process, select.POLLIN)
            poll.poll(GRACE_S * 1000)
    finally:
        os.close(process)
