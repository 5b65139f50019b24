"""Throughput of a run's points into InfluxDB: `python benchmarks/shipping.py [--points 200000] [--repeats 3]`.

The spool is complete before the measurement, as for `testbed ingest`. The server is a real influxd 1.x behind the
tests' adapter, a separate process that speaks the 2.x write path. Two floors are measured: the same shipper with a
server that discards the points, and plain posts of the same batches by http.client, which keep no position. Server,
adapter and shipper share the cores of one machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from lab import print_machine, print_table

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.measure.influx_lab import INFLUXD, Influxd, write_spool

from testbed.measure.influx_address import Address
from testbed.measure.influx_writer import InfluxWriter
from testbed.measure.shipper import MOST_BYTES, MOST_LINES, Shipper
from testbed.measure.shipping_batches import next_batch
from testbed.measure.shipping_position import POSITION_FILE

FOLDER = sys.path[0]
ADAPTER = """
import sys
sys.path.insert(0, sys.argv[1])
from support.measure.influx_lab import Adapter
adapter = Adapter(sys.argv[2])
adapter.start()
print(adapter.url, flush=True)
sys.stdin.read()
adapter.stop()
"""
SINK = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Forget(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response_only(204)
        self.end_headers()
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Forget)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
import threading
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""
COLUMNS = ("to", "lines in a batch", "n", "points/s, median", "least", "most", "MB/s", "own CPU us/point")


@contextmanager
def served(code: str, *arguments: str) -> Iterator[str]:
    """Run a server in a separate process; yields its address."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield (process.stdout or sys.stdin).readline().strip()
        finally:
            process.communicate(timeout=30)


def by_shipper(run: Path, address: Address, lines: int, *, gzip: bool = False) -> None:
    (run / POSITION_FILE).unlink(missing_ok=True)
    shipper = Shipper(
        run, address, InfluxWriter(address, gzip=gzip), print, most_lines=lines, most_bytes=8 * MOST_BYTES
    )
    while shipper.step():
        pass
    if shipper.reached.refused_points:
        raise SystemExit(f"{shipper.reached.refused_points} points were refused")
    shipper.close()


def by_posts(run: Path, address: Address, lines: int) -> None:
    parts = urlsplit(address.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    segment, offset = 1, 0
    while batch := next_batch(run, segment, offset, lines, 8 * MOST_BYTES):
        connection.request("POST", f"/api/v2/write?org=lab&bucket={address.bucket}&precision=ns", batch.lines)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 204:
            raise SystemExit(f"answered {answer.status}")
        segment, offset = batch.segment, batch.end_bytes
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if INFLUXD is None:
        raise SystemExit("influxd is not installed (Debian: influxdb)")
    with tempfile.TemporaryDirectory(prefix="dfrs-bench-") as name, ExitStack() as stack:
        run = Path(name) / "run"
        write_spool(run, options.points)
        size = (run / "points.lp").stat().st_size
        server = Influxd(Path(name) / "influx")
        server.start()
        stack.callback(server.kill)
        adapter = stack.enter_context(served(ADAPTER, FOLDER, server.url))
        sink = stack.enter_context(served(SINK))
        work: list[tuple[str, int, str, Callable[[Path, Address, int], None]]] = [
            *(("influxd, by the shipper", lines, adapter, by_shipper) for lines in (1000, 2000, 5000, 10_000, 20_000)),
            ("influxd, by the shipper, gzip", MOST_LINES, adapter, lambda r, a, n: by_shipper(r, a, n, gzip=True)),
            ("influxd, by bare posts", MOST_LINES, adapter, by_posts),
            ("a sink, by the shipper", MOST_LINES, sink, by_shipper),
            ("a sink, by bare posts", MOST_LINES, sink, by_posts),
        ]
        taken: dict[int, list[tuple[float, float]]] = {}
        order = [index for index in range(len(work)) for _ in range(options.repeats)]
        random.Random(1).shuffle(order)  # noqa: S311  # the same order in every run
        for number, index in enumerate(order):
            _, lines, url, do = work[index]
            bucket = f"bench{number}"
            server.create(bucket)  # empty for each measurement
            began_s, cpu_s = time.monotonic(), time.process_time()
            do(run, Address(url, "lab", bucket), lines)
            taken.setdefault(index, []).append((time.monotonic() - began_s, time.process_time() - cpu_s))
            server.query(f'DROP DATABASE "{bucket}"')
        rows = [
            (
                what, lines, options.repeats,
                *(round(options.points / pick([t for t, _ in taken[index]])) for pick in (median, max, min)),
                size / median([t for t, _ in taken[index]]) / 1e6,
                1e6 * median([cpu for _, cpu in taken[index]]) / options.points,
            )
            for index, (what, lines, _, _) in enumerate(work)
        ]  # fmt: skip
    if options.json:
        print(json.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows], indent=2))
    else:
        print_machine()
        print_table(f"{options.points} points, {size / options.points:.0f} B each, in random order", COLUMNS, rows)


if __name__ == "__main__":
    main()
