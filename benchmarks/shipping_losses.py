"""Points that InfluxDB loses during faults: `python benchmarks/shipping_losses.py [--rate 2000] [--away-s 20]`.

Synthetic runs record points while a real influxd, the network to it, or the shipper is disturbed. Then every point is
read back and compared, including types and bits. The columns:

* written: points in the run directory
* lost, altered: those of them that the database lacks, or has with other values
* sent twice: points that the server wrote more than once
* caught up: the time from the end of the disturbance until all points that had been recorded by then were shipped
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lab import print_machine, print_table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.live import wait_until
from support.measure.influx_lab import INFLUXD, Adapter, Influxd, Recording, compare, influx

from testbed.measure.influx_address import find_address
from testbed.measure.influx_writer import InfluxWriter
from testbed.measure.shipping import ship
from testbed.measure.shipping_batches import points_left
from testbed.measure.shipping_position import read_shipped

COLUMNS = (
    "disturbance", "recorded", "written", "in the database", "lost", "altered", "sent twice", "caught up s",
    "longest point ms", "the recorder says",
)  # fmt: skip
Row = tuple[object, ...]
TABLE = "testbed"


class Case:
    """One run with an empty database."""

    def __init__(self, server: Influxd, adapter: Adapter, folder: Path, rate: float, away_s: float) -> None:
        self.server = server
        self.adapter = adapter
        self.path = folder / "run"
        self.rate = rate
        self.away_s = away_s
        self.adapter.behave = lambda _number: "pass"
        self.adapter.written_points = 0
        server.query(f'DROP DATABASE "{TABLE}"')
        server.create(TABLE)

    def record(self, *, ship: bool = True) -> Recording:
        return Recording(self.path, self.adapter.url, self.rate, ship=ship)

    def shipped(self) -> int:
        return max((at.read_points for at in read_shipped(self.path).values()), default=0)

    def caught_up_s(self, run: Recording) -> float:
        wanted, began_s = run.count, time.monotonic()
        wait_until(lambda: self.shipped() >= wanted, "catching up")
        return time.monotonic() - began_s

    def row(self, name: str, run: Recording, caught_up_s: float | None) -> Row:
        failures = run.end()
        said = failures.get("influx", "nothing")
        written = points_left(self.path, 1, 0)
        if self.shipped() < written:  # the shipper reports the same in its message
            address = find_address({"url": self.adapter.url})
            ship(self.path, address, InfluxWriter(address), print, lambda _s: None, from_start=False, patience_s=30)
        found = compare(self.server, TABLE, written)
        return (
            name, run.count, written, found.found, found.lost, found.altered,
            self.adapter.written_points - found.found, "-" if caught_up_s is None else f"{caught_up_s:.1f}",
            f"{1000 * run.longest_s:.1f}", said.replace(str(self.path), "RUN"),
        )  # fmt: skip


def go_on(for_s: float) -> None:
    """Let the run record for some seconds. The duration is part of the measurement, so no condition ends it."""
    time.sleep(for_s)


def nothing(case: Case) -> Row:
    run = case.record()
    go_on(5)
    return case.row("none", run, case.caught_up_s(run))


def server_killed(case: Case) -> Row:
    run = case.record()
    go_on(3)
    case.server.kill(signal.SIGKILL)
    go_on(case.away_s)
    case.server.start()
    return case.row(f"server killed (-9), away {case.away_s:g} s", run, case.caught_up_s(run))


def network_cut(case: Case) -> Row:
    run = case.record()
    go_on(3)
    case.adapter.cut_network()
    go_on(case.away_s)
    case.adapter.start()
    return case.row(f"network cut for {case.away_s:g} s", run, case.caught_up_s(run))


def shipper_killed(case: Case) -> Row:
    """A case in which the shipper is a separate process: `testbed ingest`."""
    draw = random.Random(1)  # noqa: S311  # the same moments in every run
    run = case.record(ship=False)
    command = [sys.executable, "-m", "testbed", "ingest", str(case.path), "--url", case.adapter.url, "--json"]
    go_on(8)  # something to ship
    for _ in range(5):
        before = case.adapter.writes
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: case.adapter.writes > before + draw.randint(0, 2), "a write")  # noqa: B023  # at once
        child.kill()
        child.wait()
        go_on(2)
    began_s, wanted = time.monotonic(), run.count
    while case.shipped() < wanted:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return case.row("shipper killed (-9) and restarted 5 times", run, time.monotonic() - began_s)


def answers_lost(case: Case) -> Row:
    run = case.record()
    faults = itertools.cycle(("pass", "cut after", "pass", "500 after", "cut"))
    case.adapter.behave = lambda _number: next(faults)
    go_on(15)
    case.adapter.behave = lambda _number: "pass"
    return case.row("2 of 5 answers lost, 1 of 5 requests cut", run, case.caught_up_s(run))


def disk_full(case: Case) -> Row:
    run = case.record()
    wait_until(lambda: run.directory.failure is not None, "a full disk")
    print(f"the run says: {run.directory.failure}".replace(str(case.path), "RUN"))
    go_on(1)  # points that are refused from now on
    return case.row("disk of the run directory full", run, None)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=2000.0, help="points per second")
    parser.add_argument("--away-s", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if INFLUXD is None:
        raise SystemExit("influxd is not installed (Debian: influxdb)")
    cases: tuple[Callable[[Case], Row], ...] = (
        nothing, server_killed, network_cut, shipper_killed, answers_lost, disk_full,
    )  # fmt: skip
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="dfrs-bench-") as name:
        folder = Path(name)
        with influx(folder / "influx", TABLE) as (server, adapter):
            for number, work in enumerate(cases):
                place = folder / str(number)
                if work is disk_full:
                    if os.geteuid() != 0:
                        print("disk full: left out: a small disk needs root")
                        continue
                    with small_disk(place):
                        rows.append(work(Case(server, adapter, place, options.rate, options.away_s)))
                else:
                    rows.append(work(Case(server, adapter, place, options.rate, options.away_s)))
                print(f"{rows[-1][0]}: done", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=2))
    else:
        print_machine()
        print_table(f"{options.rate:g} points per second, one run each", COLUMNS, rows)
    if any(row[4] or row[5] for row in rows):
        raise SystemExit("points were lost or altered")


if __name__ == "__main__":
    main()
