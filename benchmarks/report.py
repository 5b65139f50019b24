"""The page of a large run: `python benchmarks/report.py [--points 1000000] [--jobs 2000] [--nodes 128] [--json]`.

Wall seconds and peak resident memory of a process `testbed report RUN`, including its start, on a synthetic run
directory (`made_run.py`), with and without `--no-html` (tables only). The goals are 30 s and 1 GiB for a million points
of 2,000 jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from lab import cpu_model, print_machine, print_table
from made_run import make_run

GOAL_S, GOAL_MIB = 30.0, 1024.0
# VmHWM starts from zero at exec; ru_maxrss would be at least the memory of this process at the fork.
_COMMAND = """
import re, sys
from testbed.cli.main import main
try:
    sys.exit(main())
finally:
    with open("/proc/self/status") as status:
        print("peak KiB", re.search(r"VmHWM:\\s+(\\d+)", status.read())[1], file=sys.stderr)
"""


def report(run: Path, *options: str) -> tuple[float, float, float]:
    """Return wall s, CPU s and peak MiB of the command."""
    command = [sys.executable, "-c", _COMMAND, "report", str(run), *options]
    begin_s = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    wall_s = time.perf_counter() - begin_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = re.search(r"peak KiB (\d+)", ended.stderr)
    if ended.returncode or peak is None:
        raise SystemExit(f"testbed report ended with {ended.returncode}: {ended.stderr}")
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, int(peak[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dfrs-report-") as folder:
        run = Path(folder) / "made"
        begin_s = time.perf_counter()
        shape = make_run(run, points=options.points, jobs=options.jobs, nodes=options.nodes)
        made_s = time.perf_counter() - begin_s
        size_mib = sum(path.stat().st_size for path in run.glob("*.*")) / 2**20
        results = {
            name: [report(run, *extra) for _ in range(options.repeats)]
            for name, extra in (("tables and page", ()), ("tables alone", ("--no-html",)))
        }
        page_mib = (run / "report.html").stat().st_size / 2**20
    rows = [
        (
            name, f"{median(wall for wall, _, _ in found):.1f}", f"{max(wall for wall, _, _ in found):.1f}",
            f"{median(cpu for _, cpu, _ in found):.1f}", f"{max(mib for _, _, mib in found):.0f}",
        )
        for name, found in results.items()
    ]  # fmt: skip
    if options.json:
        print(json.dumps({
            "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "load": os.getloadavg()},
            "jobs": shape.jobs, "nodes": shape.nodes, "points": dict(shape.points), "journal_entries": shape.entries,
            "reschedulings": shape.reschedulings, "run_mib": size_mib, "made_s": made_s, "page_mib": page_mib,
            "results": {
                name: [{"wall_s": wall, "cpu_s": cpu, "peak_mib": mib} for wall, cpu, mib in found]
                for name, found in results.items()
            },
        }, indent=2))  # fmt: skip
        return
    print_machine()
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(shape.points.items()))
    print(
        f"{shape.jobs:,} jobs on {shape.nodes} nodes, {sum(shape.points.values()):,} points ({counts}), "
        f"{shape.entries:,} journal entries, {shape.reschedulings:,} reschedulings: {size_mib:.0f} MiB, "
        f"made in {made_s:.0f} s"
    )
    print_table(
        f"testbed report, {options.repeats} times each; goals {GOAL_S:g} s, {GOAL_MIB:g} MiB; page {page_mib:.1f} MiB",
        ("what", "wall s, median", "wall s, max", "CPU s, median", "peak MiB, max"),
        rows,
    )


if __name__ == "__main__":
    main()
