"""Cost of a journal entry: `python benchmarks/journal.py RUN... [--repeats 9] [--json]`

Writes the entries of existing run directories again into a new one, as the controller does: each event is created from
its values, encoded and handed to the kernel. Then reads them back as events. Times are CPU microseconds of the thread
per entry, the kernel's part included; other load on the machine hardly changes them. The interval is that of the
repeats; the entries per second are those of the wall clock.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lab import print_machine, print_table

from testbed.measure.rundir import RunDirectory
from testbed.run.events import Entry, Known, Unknown, kind_of
from testbed.run.journal import encode, read_events

ALL = "all"


class Cost(NamedTuple):
    """CPU microseconds per entry (median, least, most over the repeats), entries per second, bytes per entry."""

    what: str
    kind: str
    entries: int
    cpu_us: float
    least_us: float
    most_us: float
    per_s: float
    bytes: float


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
    """Measure writing per kind and of all entries, and reading of all."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    events = [event for run in options.runs for event in read_events(run / "events.jsonl")]
    with tempfile.TemporaryDirectory() as folder:
        found = costs(events, options.repeats, Path(folder))
    if options.json:
        print(json.dumps([cost._asdict() for cost in found], indent=2))
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


if __name__ == "__main__":
    main()
