"""Cost of appending points in the controller: `python benchmarks/appending.py [--points 100000] [--repeats 9] [--json]`

A point is appended when `RunDirectory.point` returns: it is checked, written as line protocol, and passed on towards
the kernel. The spool's own thread makes all points durable each second. The mix is that of a busy run: per second one
point per node and four points of its guests, and per ten seconds one cap window and one action per guest. Values have
as many digits as measured ones.

The floor is the same lines, made in advance, written to a plain buffered file in the same order. Both are timed in
alternation in one run. The peer is the class `Point` of InfluxDB's own client (if that is installed), which makes a
line without writing it anywhere. Times are CPU seconds of the thread, including the kernel's part, which other work on
the machine does not change; points per second of the wall clock are beside them. Ratios are ratios of medians, with
bootstrap intervals.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from intervals import ratio_of_medians
from lab import cpu_model, print_machine, print_table

from testbed.measure.points import Value, to_line
from testbed.measure.rundir import RunDirectory
from testbed.measure.spool import read_lines

RUN_TAGS = {"run": "2026-11-21T10-29-37-quickstart", "lab": "local", "policy": "GreedyPM */per/OPT=MIN/MINVT=600"}
NODES, GUESTS_A_NODE = 16, 4

Point = tuple[str, dict[str, str], dict[str, Value], int]


def make_points(count: int) -> list[Point]:
    """Return the points of a run of `NODES` nodes, second by second."""
    draw = random.Random(20261121)  # noqa: S311  # made-up measurements

    def seconds(most: float) -> float:
        return draw.random() * most

    points: list[Point] = []
    second = 0
    while len(points) < count:
        second += 1
        time_ns = 1_795_171_867_000_000_000 + second * 1_000_000_000 + draw.randrange(10**9)
        for node in range(NODES):
            name = {"node": f"node-{node}"}
            fields: dict[str, Value] = {
                "cpu_frac": draw.random(),
                **{f"{what}_mib": draw.randrange(1 << 32) / (1 << 20) for what in (
                    "memory_used", "disk_read", "disk_written", "net_received", "net_sent")},
                "agent_cpu_s": round(seconds(100), 2),
                "agent_rss_mib": draw.randrange(1 << 28) / (1 << 20),
            }  # fmt: skip
            points.append(("node", name, fields, time_ns))
            for slot in range(GUESTS_A_NODE):
                job = str(second // 300 * 40 + node * GUESTS_A_NODE + slot)
                tags = {**name, "job": job, "task": str(slot)}
                fields = {
                    "cap_cores": draw.random(),
                    "cpu_s": seconds(1000),
                    **{f"{what}_mib": draw.randrange(1 << 32) / (1 << 20) for what in ("rss", "read", "written")},
                    "units_done": draw.randrange(1 << 30),
                }
                points.append(("guest", tags, fields, time_ns))
                if draw.random() < 0.1:
                    fields = {"requested_cores": draw.random(), "achieved_cores": draw.random(), "window_s": 10.0}
                    points.append(("cap", tags, fields, time_ns))
                    fields = {"elapsed_s": seconds(1), "waited_s": seconds(1), "bytes": 0, "ok": True}
                    points.append(("action", {"job": job, "verb": "cap"}, fields, time_ns))
    return points[:count]


class Taken(NamedTuple):
    cpu_s: float  # of this thread
    wall_s: float


def timed(act: Callable[[], object]) -> Taken:
    cpu_s, wall_s = time.thread_time(), time.perf_counter()
    act()
    return Taken(time.thread_time() - cpu_s, time.perf_counter() - wall_s)


def append(points: Sequence[Point], path: Path) -> tuple[Taken, float]:
    """Return the cost of appending all points, and the wall seconds from then until all were durable."""
    run = RunDirectory(path, RUN_TAGS)
    run.open()

    def all_of_them() -> None:
        for point in points:
            run.point(*point)

    taken = timed(all_of_them)
    durable_s = timed(run.sync).wall_s
    run.close()
    return taken, durable_s


def serialise(points: Sequence[Point]) -> None:
    for measurement, tags, fields, time_ns in points:
        to_line(measurement, {**RUN_TAGS, **tags}, fields, time_ns)


def write_plainly(lines: Sequence[str], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(line + "\n")


def peer(points: Sequence[Point]) -> Callable[[], None] | None:
    """Return a function that makes lines of the points with InfluxDB's client, None without the client."""
    try:
        from influxdb_client import Point as ClientPoint  # noqa: PLC0415  # only if it is installed
    except ImportError:
        return None

    def make() -> None:
        for measurement, tags, fields, time_ns in points:
            point = ClientPoint(measurement)
            both: Mapping[str, str] = {**RUN_TAGS, **tags}
            for name, text in both.items():
                point.tag(name, text)
            for name, value in fields.items():
                point.field(name, value)
            point.time(time_ns)
            point.to_line_protocol()

    return make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--place", type=Path, help="where run directories are written, instead of the temporary place")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()

    points = make_points(options.points)
    lines = [to_line(name, {**RUN_TAGS, **tags}, fields, time_ns) for name, tags, fields, time_ns in points]
    some = points[: max(1, options.points // 10)]  # the client is slow: a tenth is enough
    with_client, share = peer(some), len(points) / len(some)
    taken: dict[str, list[Taken]] = {"floor: lines to a plain file": [], "RunDirectory.point": [], "to_line alone": []}
    durable: list[float] = []
    if with_client:
        taken["influxdb_client.Point, lines alone"] = []
    floor, whole, alone, client = [*taken, ""][:4]
    with tempfile.TemporaryDirectory(prefix="dfrs-bench-", dir=options.place) as folder:
        for number in range(options.repeats):
            taken[floor].append(timed(lambda: write_plainly(lines, Path(folder) / "plain.lp")))
            run = Path(folder) / f"run{number}"
            appended, durable_s = append(points, run)
            taken[whole].append(appended)
            durable.append(durable_s)
            if not all(a == b for (a, _), b in zip(read_lines(run), lines, strict=True)):
                raise RuntimeError("the file does not have the appended points")
            for path in run.iterdir():
                path.unlink()
            taken[alone].append(timed(lambda: serialise(points)))
            if with_client:
                tenth = timed(with_client)
                taken[client].append(Taken(tenth.cpu_s * share, tenth.wall_s * share))

    rows: list[dict[str, Any]] = []
    cpu_s = {what: [each.cpu_s for each in times] for what, times in taken.items()}
    for what, times in taken.items():
        ratio, low, high = ratio_of_medians(cpu_s[what], cpu_s[floor])
        rows.append(
            {
                "what": what,
                "points_per_cpu_s": len(points) / median(cpu_s[what]),
                "least_points_per_cpu_s": len(points) / max(cpu_s[what]),
                "us_per_point": median(cpu_s[what]) / len(points) * 1e6,
                "points_per_wall_s": len(points) / median(each.wall_s for each in times),
                "times_floor": [ratio, low, high],
            }
        )
    if with_client:
        ratio, low, high = ratio_of_medians(cpu_s[client], cpu_s[alone])
    if options.as_json:
        machine = {
            "cpu": cpu_model(), "cores": os.cpu_count(), "kernel": platform.release(),
            "python": platform.python_version(), "load": os.getloadavg(),
        }  # fmt: skip
        peers = (
            {"client_times_to_line": [ratio, low, high], "version": version("influxdb-client")} if with_client else None
        )
        print(
            json.dumps(
                {
                    "machine": machine, "points": len(points), "repeats": options.repeats, "rows": rows, "peer": peers,
                    "durable_after_s": median(durable),
                },
                indent=2,
            )
        )  # fmt: skip
        return
    print_machine()
    print_table(
        f"{len(points):,} points of {sum(map(len, lines)) / len(lines):.0f} B; median of {options.repeats}",
        ("", "points / CPU s", "least", "CPU us / point", "x floor (95 %)", "points / wall s"),
        [
            (
                row["what"],
                f"{row['points_per_cpu_s']:,.0f}",
                f"{row['least_points_per_cpu_s']:,.0f}",
                f"{row['us_per_point']:.2f}",
                "{:.2f} ({:.2f} .. {:.2f})".format(*row["times_floor"]),
                f"{row['points_per_wall_s']:,.0f}",
            )
            for row in rows
        ],
    )
    print(f"durable {median(durable) * 1000:.1f} ms after the last was appended")
    if with_client:
        print(
            f"influxdb_client {version('influxdb-client')} takes {ratio:.1f} ({low:.1f} .. {high:.1f}) times as long "
            "as to_line to make the same lines"
        )


if __name__ == "__main__":
    main()
