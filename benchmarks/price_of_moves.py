"""Live DFRS with passes that know the cost of moves, or that move few jobs, compared with the plain policy.

    python benchmarks/price_of_moves.py --seeds 6 --overheads calibration.toml --json price.jsonl
    python benchmarks/price_of_moves.py --table price.jsonl

8 jobs of 20 to 60 s, of 1 to 3 tasks, on 4 nodes of a fifth of a core, as processes, at an offered load of 0.9. Passes
come every 10 s. `--overheads` is the calibration of such nodes, whose costs the policy knows. The ways come in random
order within each seed. The file gets one line per run; runs that are in it are skipped.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from intervals import interval_text
from lab import print_machine
from live_run import live_run, measured_core_rate
from rows import add_rows, read_rows

from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import scale_load

POLICY = "GreedyPM */per/OPT=MIN"
WAYS = ("", "/KNOWS=cost", "/MOVES=1", "/KNOWS=cost/MOVES=1")
NODES, CORES, JOBS, LOAD, PERIOD_S = 4, 0.2, 8, 0.9, 10
MEASURES = ("mean stretch", "max stretch", "migrations", "preemptions", "penalty s")
SCENARIO = f"""
name = "price"
policy = "EASY"
period_s = {PERIOD_S}
overheads = "OVERHEADS"
[workload]
trace = "jobs.csv"
[programs]
iteration_s = 0.2
""" + "".join(f'[[nodes]]\nname = "node-{node}"\ncpus = {CORES}\nmemory_mib = 512\n' for node in range(NODES))


def jobs_of(seed: int) -> list[Job]:
    """Return a trace: run times are log-uniform, arrivals a Poisson process."""
    draw = random.Random(seed)  # noqa: S311  # the same jobs for the same seed
    found, now_s = [], 0.0
    for number in range(1, JOBS + 1):
        run_time_s = round(math.exp(draw.uniform(math.log(20.0), math.log(60.0))), 3)
        need = draw.choice((0.25, 0.5, 1.0))
        found.append(Job(number, now_s, draw.randint(1, 3), need, draw.choice((0.2, 0.3, 0.45)), run_time_s))
        now_s += draw.expovariate(1.0)
    return [replace(job, submit_time_s=round(job.submit_time_s, 3)) for job in scale_load(found, NODES, LOAD)]


def live(seed: int, way: str, overheads: Path, core_rate: float) -> dict[str, Any]:
    """Run one case."""
    jobs = jobs_of(seed)
    with live_run(_scenario(overheads), jobs, POLICY + way, core_rate) as run:
        with (run / "jobs.csv").open(newline="") as file:
            rows = {int(row["job_id"]): row for row in csv.DictReader(file)}
        results = json.loads((run / "summary.json").read_text())["results"]
        stretches = [
            (float(rows[job.job_id]["end_time_s"]) - job.submit_time_s) / job.run_time_s for job in jobs
        ]  # fmt: skip
        return {
            "mean stretch": statistics.mean(stretches), "max stretch": max(stretches),
            "migrations": sum(int(row["migrations"]) for row in rows.values()),
            "preemptions": sum(int(row["preemptions"]) for row in rows.values()),
            "penalty s": sum(float(row["penalty_s"]) for row in rows.values()),
            "right": results["right"], "jobs": len(jobs), "load_1_min": os.getloadavg()[0],
            "units_per_core_s": core_rate,
        }  # fmt: skip


def _scenario(overheads: Path) -> str:
    return SCENARIO.replace("OVERHEADS", str(overheads.absolute()))


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return medians over seeds with intervals, and the median difference to the plain policy on the same seed."""
    lines = ["| suffix | n | measure | median | 95 % interval | difference to none | interval |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    by_way = {way: {row["seed"]: row for row in rows if row["way"] == way} for way in WAYS}
    for way, found in by_way.items():
        for measure in MEASURES if found else ():
            values = [float(row[measure]) for row in found.values()]
            cells = [way or "none", str(len(values)), measure, f"{statistics.median(values):.3g}",
                     interval_text(values), "", ""]  # fmt: skip
            gaps = [row[measure] - by_way[""][seed][measure] for seed, row in found.items() if seed in by_way[""]]
            if way and gaps:
                cells[5:] = [f"{statistics.median(gaps):+.3g}", interval_text(gaps, "+.3g")]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the missing cases, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=0, help="number of seeds")
    parser.add_argument("--overheads", type=Path, help="calibration of the nodes")
    parser.add_argument("--json", type=Path, default=Path("price.jsonl"), help="file for the raw figures, appended to")
    parser.add_argument("--table", type=Path, help="only print the table of this file")
    chosen = parser.parse_args()
    if chosen.table is None:
        if chosen.overheads is None or not chosen.overheads.exists():
            raise SystemExit("expected --overheads with the file of a calibration: `testbed calibrate` makes it")
        if shutil.disk_usage(".").free < 1 << 30:
            raise SystemExit("expected 1 GiB of free disk")
        print_machine()
        run_missing(chosen)
    print(table(read_rows(chosen.table or chosen.json)))


def run_missing(chosen: argparse.Namespace) -> None:
    """Run the cases that the file does not have, each seed in random order."""
    rows = read_rows(chosen.json)
    there = {(row["seed"], row["way"]) for row in rows}
    rates = [row["units_per_core_s"] for row in rows]
    if not rates:
        rates = [measured_core_rate(_scenario(chosen.overheads), POLICY, Job(1, 0.0, 1, 0.5, 0.2, 5.0))]
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        ways = list(WAYS)
        random.Random(seed).shuffle(ways)  # noqa: S311  # a random order, not a secret
        for way in ways:
            if (seed, way) in there:
                continue
            row = {"seed": seed, "way": way, **live(seed, way, chosen.overheads, rates[0])}
            add_rows(chosen.json, [row])
            print(f"{seed}: {way or 'none'}: mean stretch {row['mean stretch']:.2f}", flush=True)


if __name__ == "__main__":
    main()
