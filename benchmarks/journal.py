"""Cost of the journal: `python benchmarks/journal.py RUN... [--place DIR] [--entries 1000000] [--repeats 9] [--json]`

From the journals of existing run directories RUN:

* entries: creating, encoding and appending each entry again, as the controller does, and reading it back. Costs are CPU
  microseconds of the calling thread per entry, including the kernel's part; other load on the machine hardly changes
  them. The interval is that of the repeats; entries per second are those of the wall clock;
* size: bytes of the journal per job, raw and compressed (as full parts are);
* durability: milliseconds until an entry is durable, and entries per second, with a commit per entry and with group
  commit of 1, 10 and 100 coroutines that wait at the same time; on an idle disk, and beside a process that writes and
  syncs files of 64 MiB as saves of guests do;
* stalls: milliseconds of single calls of `append` in the event loop while another coroutine commits without a pause,
  for entries that are written in the call, and for entries that the thread writes;
* a long run: a journal of `--entries` entries (copies of the first run, jobs renumbered), rotated and compressed, read
  and folded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
from lab import percentile, print_machine, print_table

from testbed.measure.journal_writer import JournalWriter
from testbed.measure.packer import LEVEL, pack
from testbed.measure.rundir import RunDirectory
from testbed.run import events as kinds
from testbed.run.events import Entry, Known, Unknown, kind_of
from testbed.run.history import fold
from testbed.run.journal import encode, is_decision, read_events
from testbed.run.parts import journal_parts

ALL = "all"
PART_BYTES = 64 << 20
LOAD = """
import os, sys
block = os.urandom(1 << 20)
while True:
    with open(sys.argv[1], "wb") as file:
        for _ in range(64):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    print("synced", flush=True)
"""


class Cost(NamedTuple):
    """CPU microseconds per entry (median, minimum, maximum over the repeats), entries per second, bytes per entry."""

    what: str
    kind: str
    entries: int
    cpu_us: float
    least_us: float
    most_us: float
    per_s: float
    bytes: float


class Size(NamedTuple):
    """Bytes of a journal per job, raw and compressed."""

    run: str
    jobs: int
    entries_per_job: float
    bytes_per_job: float
    compressed_bytes_per_job: float


class Wait(NamedTuple):
    """Milliseconds until an entry is durable, or milliseconds of an append; entries per second."""

    disk: str
    what: str
    entries: int
    per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float


class Long(NamedTuple):
    """A long journal; `cpu_s` is CPU time of the calling thread, `per_s` entries per second of that time."""

    what: str
    entries: int
    wall_s: float
    cpu_s: float
    per_s: float


def timed(work: Callable[[], None], count: int, repeats: int) -> tuple[list[float], float]:
    """Return CPU microseconds per entry of each repeat, and the median of entries per second."""
    cpu_us, per_s = [], []
    for _ in range(repeats):
        begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
        work()
        cpu_us.append((time.thread_time() - begin_cpu_s) * 1e6 / count)
        per_s.append(count / (time.perf_counter() - begin_s))
    return cpu_us, median(per_s)


def values(event: Known) -> tuple[type[Entry], float, float, dict[str, Any]]:
    """Return the class of an event and the values that it is created from."""
    if isinstance(event, Unknown):
        raise TypeError(f"{event.kind}: expected a kind of this version")
    rest = {name: getattr(event, name) for name in event.__struct_fields__ if name not in ("t_s", "trace_s")}
    return type(event), event.t_s, event.trace_s, rest


def costs(events: Sequence[Known], repeats: int, folder: Path) -> list[Cost]:
    """Measure writing by kind of entry, and writing and reading of all entries."""
    groups: dict[str, list[Known]] = {ALL: list(events)}
    for event in events:
        groups.setdefault(kind_of(event), []).append(event)
    found = []
    for number, (kind, own) in enumerate(groups.items()):
        directory = RunDirectory(folder / str(number), {"run": "benchmark"})
        directory.open()
        made = [values(event) for event in own]

        def write(directory: RunDirectory = directory, made: Sequence[Any] = made) -> None:
            for made_of, t_s, trace_s, rest in made:
                directory.journal(made_of(round(t_s, 6), round(trace_s, 3), **rest))

        size = sum(len(encode(event)) + 1 for event in own) / len(own)
        cpu_us, per_s = timed(write, len(own), repeats)
        directory.close()
        found.append(Cost("write", kind, len(own), median(cpu_us), min(cpu_us), max(cpu_us), per_s, size))
        if kind == ALL:
            path = folder / str(number) / "events.jsonl"
            whole = len(own) * repeats
            cpu_us, per_s = timed(lambda path=path: [None for _ in read_events(path)], whole, 3)
            found.append(Cost("read", kind, whole, median(cpu_us), min(cpu_us), max(cpu_us), per_s, size))
    return found


def size_of(run: Path) -> Size:
    """Return the size of a run's journal per job."""
    content = b"".join(line for file in journal_parts(run / "events.jsonl").each() for line in file)
    jobs = sum(
        isinstance(event, kinds.Job) and event.state == "submitted" for event in read_events(run / "events.jsonl")
    )
    lines = content.count(b"\n")
    return Size(run.name, jobs, lines / jobs, len(content) / jobs, len(gzip.compress(content, LEVEL)) / jobs)


@contextlib.contextmanager
def busy_disk(folder: Path) -> Iterator[None]:
    """Write and sync large files in another process while the block runs."""
    command = [sys.executable, "-c", LOAD, str(folder / "load")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            if child.stdout is None or not child.stdout.readline():  # the disk is busy from the first sync on
                raise RuntimeError(f"{folder}: cannot be written")
            yield
        finally:
            child.kill()
    (folder / "load").unlink(missing_ok=True)


def summed(disk: str, what: str, waits_s: Sequence[float], elapsed_s: float) -> Wait:
    in_ms = [1e3 * each for each in waits_s]
    count = len(in_ms)
    return Wait(disk, what, count, count / elapsed_s, percentile(in_ms, 0.5), percentile(in_ms, 0.99), max(in_ms))


def commit_per_entry(disk: str, path: Path, lines: Sequence[bytes], seconds: float) -> Wait:
    """Append an entry and make it durable, then the next."""
    writer = JournalWriter(path, part_bytes=PART_BYTES, every_s=3600)
    waits_s, begin_s = [], time.perf_counter()
    for line in itertools.cycle(lines):
        entry_s = time.perf_counter()
        writer.append(line)
        writer.sync()
        waits_s.append(time.perf_counter() - entry_s)
        if time.perf_counter() - begin_s > seconds:
            break
    elapsed_s = time.perf_counter() - begin_s
    writer.close()
    return summed(disk, "a commit per entry", waits_s, elapsed_s)


async def group_commit(disk: str, path: Path, lines: Sequence[bytes], seconds: float, waiting: int) -> Wait:
    """Run `count` coroutines that append an entry and wait until it is durable, again and again."""
    writer = JournalWriter(path, part_bytes=PART_BYTES, every_s=3600)
    waits_s: list[float] = []
    begin_s = time.perf_counter()

    async def act(number: int) -> None:
        for line in itertools.cycle(lines[number:] + lines[:number]):
            entry_s = time.perf_counter()
            await writer.durable(writer.append(line))
            waits_s.append(time.perf_counter() - entry_s)
            if time.perf_counter() - begin_s > seconds:
                return

    await asyncio.gather(*(act(number % len(lines)) for number in range(waiting)))
    elapsed_s = time.perf_counter() - begin_s
    writer.close()
    return summed(disk, f"group commit, {waiting} waiting", waits_s, elapsed_s)


async def stalls(disk: str, path: Path, lines: Sequence[bytes], seconds: float, *, at_once: bool) -> Wait:
    """Time single appends, one per millisecond, while another coroutine waits for commits without a pause."""
    writer = JournalWriter(path, part_bytes=PART_BYTES, every_s=3600)
    took_s: list[float] = []
    begin_s = time.perf_counter()

    async def commit() -> None:
        while True:
            await writer.durable(writer.append(lines[0]))

    committing = asyncio.create_task(commit())
    for line in itertools.cycle(lines):
        entry_s = time.perf_counter()
        writer.append(line, at_once=at_once)
        took_s.append(time.perf_counter() - entry_s)
        if time.perf_counter() - begin_s > seconds:
            break
        await asyncio.sleep(0.001)
    elapsed_s = time.perf_counter() - begin_s
    committing.cancel()
    writer.close()
    return summed(disk, f"append, written {'in the call' if at_once else 'by the thread'}", took_s, elapsed_s)


def durability(lines: Sequence[bytes], folder: Path, seconds: float) -> list[Wait]:
    found = []
    number = itertools.count()

    def path() -> Path:
        return folder / f"{next(number)}.jsonl"

    for disk in ("idle", "busy"):
        with busy_disk(folder) if disk == "busy" else contextlib.nullcontext():
            found.append(commit_per_entry(disk, path(), lines, seconds))
            found += [asyncio.run(group_commit(disk, path(), lines, seconds, waiting)) for waiting in (1, 10, 100)]
            found += [
                asyncio.run(stalls(disk, path(), lines, 2 * seconds, at_once=at_once)) for at_once in (True, False)
            ]
    return found


def renumbered(event: Known, jobs: int, actions: int, t_s: float, trace_s: float) -> Known:
    """Return a copy of an event with other numbers of jobs and operations, and a later time."""
    new: dict[str, Any] = {"t_s": event.t_s + t_s, "trace_s": event.trace_s + trace_s}
    if hasattr(event, "job"):
        new["job"] = event.job + jobs
    if hasattr(event, "action"):
        new["action"] = event.action + actions
    if isinstance(event, kinds.Decision):
        view, asked = event.view, event.event
        new["view"] = msgspec.structs.replace(view, job_id=[job + jobs for job in view.job_id])
        new["event"] = msgspec.structs.replace(
            asked, completed=[job + jobs for job in asked.completed], submitted=[job + jobs for job in asked.submitted]
        )
    return msgspec.structs.replace(event, **new)


def copies(run: Path, entries: int) -> Iterator[Known]:
    """Yield events that repeat the jobs of `run` until the number of entries is reached."""
    found = list(read_events(run / "events.jsonl"))
    first = next(index for index, event in enumerate(found) if isinstance(event, kinds.Replay))
    replay = found[first]
    ends = (kinds.Results, kinds.Teardown, kinds.Clock, kinds.Aborted, kinds.Refused)
    body = [event for event in found[first + 1 :] if not isinstance(event, ends)]
    count = max(1, round(entries / len(body)))
    ids = [job.job for job in replay.trace]
    jobs, trace_s = max(ids) + 1, max(event.trace_s for event in body)
    actions = 1 + max(event.action for event in body if isinstance(event, kinds.Intent))
    trace = tuple(
        msgspec.structs.replace(job, job=job.job + copy * jobs, submit_time_s=job.submit_time_s + copy * trace_s)
        for copy in range(count)
        for job in replay.trace
    )
    yield from found[:first]
    yield msgspec.structs.replace(replay, jobs=len(trace), trace=trace)
    for copy in range(count):
        for event in body:
            yield renumbered(event, copy * jobs, copy * actions, copy * body[-1].t_s, copy * trace_s)


def long_run(run: Path, entries: int, folder: Path) -> tuple[list[Long], dict[str, float]]:
    """Write a long journal, compress its parts, read and fold it."""
    full: list[Path] = []
    path = folder / "long" / "events.jsonl"
    path.parent.mkdir()
    writer = JournalWriter(path, part_bytes=PART_BYTES, every_s=0.05, on_full=full.append)
    lines = [encode(event) for event in copies(run, entries)]
    found = []

    def measured(what: str, work: Callable[[], object]) -> None:
        begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
        work()
        elapsed_s, cpu_s = time.perf_counter() - begin_s, time.thread_time() - begin_cpu_s
        found.append(Long(what, len(lines), elapsed_s, cpu_s, len(lines) / cpu_s))

    def append_all() -> None:
        for number, line in enumerate(lines):
            writer.append(line)
            if number % 1000 == 0:
                writer.sync()
        writer.close()

    raw = sum(map(len, lines)) + len(lines)
    measured("append, a commit per 1,000 entries", append_all)
    sizes = sum(part.stat().st_size for part in full)
    measured(f"compress {len(full)} full parts", lambda: [pack(part) for part in full])
    packed = sum(each.stat().st_size for each in path.parent.glob("*.gz"))
    measured("read lines", lambda: deque((line for file in journal_parts(path).each() for line in file), 0))
    measured("read events but decisions", lambda: deque(read_events(path, is_decision), 0))
    measured("read events", lambda: deque(read_events(path), 0))
    measured("fold", lambda: fold(read_events(path)))
    return found, {"bytes": raw, "full_bytes": sizes, "compressed_bytes": packed, "parts": len(full)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of each measurement of the disk")
    parser.add_argument("--entries", type=int, default=1_000_000, help="entries of the long run; 0 for none")
    parser.add_argument("--place", type=Path, help="where files are written, instead of the temporary place")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    events = [event for run in options.runs for event in read_events(run / "events.jsonl")]
    with tempfile.TemporaryDirectory(prefix="dfrs-bench-", dir=options.place) as folder:
        found = costs(events, options.repeats, Path(folder))
        sizes = [size_of(run) for run in options.runs]
        waits = durability([encode(event) for event in events], Path(folder), options.seconds)
        longs, stored = long_run(options.runs[0], options.entries, Path(folder)) if options.entries else ([], {})
    if options.json:
        rows = {"entries": found, "sizes": sizes, "durability": waits, "long": longs}
        named = {name: [each._asdict() for each in table] for name, table in rows.items()}
        print(json.dumps({**named, "stored": stored}, indent=2))
        return
    print_machine()
    print_table(
        "Journal entries",
        ["", "kind", "entries", "CPU us per entry", "least", "most", "entries/s", "bytes"],
        [
            [each.what, each.kind, each.entries, f"{each.cpu_us:.1f}", f"{each.least_us:.1f}", f"{each.most_us:.1f}",
             f"{each.per_s:,.0f}", f"{each.bytes:.0f}"]
            for each in found
        ],
    )  # fmt: skip
    print_table(
        "Size",
        ["run", "jobs", "entries per job", "bytes per job", "compressed"],
        [[each[0], each[1], *(f"{value:.0f}" for value in each[2:])] for each in sizes],
    )
    print_table(
        "Durability and stalls",
        ["disk", "", "entries", "entries/s", "p50 ms", "p99 ms", "max ms"],
        [[each[0], each[1], each[2], f"{each[3]:,.0f}", *(f"{value:.3f}" for value in each[4:])] for each in waits],
    )
    print_table(
        f"A long run: {stored}",
        ["", "entries", "wall s", "CPU s", "entries per CPU s"],
        [[each[0], each[1], f"{each.wall_s:.2f}", f"{each.cpu_s:.2f}", f"{each.per_s:,.0f}"] for each in longs],
    )


if __name__ == "__main__":
    main()
