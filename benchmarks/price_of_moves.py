"""Live DFRS with passes that know the cost of moves, or that move few jobs, compared with the plain policy.

    python benchmarks/price_of_moves.py --seeds 6 --json price.jsonl
    python benchmarks/price_of_moves.py --table price.jsonl

8 jobs of 20 to 60 s, of 1 to 3 tasks, on 4 nodes of a fifth of a core, as processes, at an offered load of 0.9. Passes
come every 10 s. The nodes are calibrated first, into the file of `--overheads`, unless it exists; the policy knows
these costs. `/MOVES=999999` limits nothing: nodes of its plans are renamed so that jobs keep theirs, and jobs go back
where nothing is lost, as under all priced policies; it shows what that alone gains. With `saves_at_once = 1` a node
saves one job after the other, first those that free what a waiting job needs. The ways come in random order within each
seed. The file gets one line per run; runs that are in it are skipped.

`waited s` is the mean time that starts and restores wait for room on their nodes. `felt to known` is the median over
migrations of the penalty that was measured to the cost that the policy knew.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import by_seed, check_disk, core_rates, missing, options
from lab import print_machine
from live_run import live_run, measured_core_rate
from rows import add_rows, read_rows
from tables import difference_cells, markdown, measure_cells

from testbed.run.events import Decision, Outcome, Rescheduling
from testbed.run.journal import read_events
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import scale_load
from testbed.scheduling.workload.table import write_table

POLICY = "GreedyPM */per/OPT=MIN"
WAYS = {way: (way, "") for way in ("", "/MOVES=999999", "/KNOWS=cost", "/MOVES=1", "/KNOWS=cost/MOVES=1")}
WAYS["saves_at_once = 1"] = ("", "[migration]\nsaves_at_once = 1\n")
NODES, CORES, JOBS, LOAD, PERIOD_S = 4, 0.2, 8, 0.9, 10
MEASURES = ("mean stretch", "max stretch", "migrations", "preemptions", "penalty s", "waited s", "felt to known")
CALIBRATION = ("save-restore", "mpi-save-restore", "transfer")
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


def live(seed: int, way: str, scenario: str, core_rate: float) -> dict[str, Any]:
    """Run one case."""
    jobs, (suffix, tables) = jobs_of(seed), WAYS[way]
    with live_run(scenario + tables, jobs, POLICY + suffix, core_rate) as run:
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
            **prices(run), "right": results["right"], "jobs": len(jobs), "load_1_min": os.getloadavg()[0],
            "units_per_core_s": core_rate,
        }  # fmt: skip


def prices(run: Path) -> dict[str, float | None]:
    """Return the measures of waiting and of known costs; None where nothing waited or moved."""
    known_s: dict[int, float] = {}
    waited_s, ratios = [], []
    for event in read_events(run / "events.jsonl"):
        match event:
            case Decision() if event.view.move_cost_s is not None:
                known_s |= dict(zip(event.view.job_id, event.view.move_cost_s, strict=True))
            case Outcome(verb="start" | "restore", ok=True):
                waited_s.append(event.waited_s)
            case Rescheduling(reason="migration") if known_s.get(event.job, 0.0) > 0.0:
                ratios.append(event.penalty_s / known_s[event.job])
    return {
        "waited s": statistics.mean(waited_s) if waited_s else None,
        "felt to known": statistics.median(ratios) if ratios else None,
    }


def calibrate(scenario: str, path: Path) -> None:
    """Calibrate the nodes of the scenario into a file, unless it exists."""
    if path.exists():
        return
    with tempfile.TemporaryDirectory(prefix="dfrs-bench-") as name:
        write_table(Path(name) / "jobs.csv", jobs_of(1))
        lab = Path(name) / "lab.toml"
        lab.write_text(re.sub("^overheads = .*$", "", scenario, flags=re.MULTILINE))
        command = [sys.executable, "-m", "testbed", "calibrate", str(lab), "--repeats", "3", "--experiments",
                   ",".join(CALIBRATION), "--out", str(path.absolute())]  # fmt: skip
        if subprocess.run(command, check=False).returncode != 0 and not path.exists():
            raise SystemExit(f"{' '.join(command)} made no file")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return medians over seeds with intervals, and the median difference to the plain policy on the same seed."""
    lines = []
    for way in WAYS:
        found = by_seed(rows, {"way": way})
        for measure in MEASURES:
            if cells := measure_cells(found, measure):
                difference = difference_cells(found, by_seed(rows, {"way": ""}), measure) if way else ["", ""]
                lines.append([way or "none", *cells, *difference])
    columns = ("suffix", "n", "measure", "median", "95 % interval", "difference to none", "interval")
    return markdown(columns, lines)


def main() -> None:
    """Run the missing cases, and print the table."""
    parser = options(__doc__, "price.jsonl")
    parser.add_argument("--seeds", type=int, default=0, help="number of seeds")
    parser.add_argument("--overheads", type=Path, default=Path("nodes.toml"), help="calibration of the nodes")
    chosen = parser.parse_args()
    if chosen.table is None:
        check_disk()
        print_machine()
        calibrate(SCENARIO, chosen.overheads)
        scenario = SCENARIO.replace("OVERHEADS", str(chosen.overheads.absolute()))
        cases = [{"seed": chosen.first + number, "way": way} for number in range(chosen.seeds) for way in WAYS]
        for case in missing(chosen.json, cases, "seed"):
            rates = core_rates(chosen.json)
            rate = rates[0] if rates else measured_core_rate(scenario, POLICY, Job(1, 0.0, 1, 0.5, 0.2, 5.0))
            row = case | live(case["seed"], case["way"], scenario, rate)
            add_rows(chosen.json, [row])
            print(f"{row['seed']}: {row['way'] or 'none'}: mean stretch {row['mean stretch']:.2f}", flush=True)
    print(table(read_rows(chosen.table or chosen.json)))


if __name__ == "__main__":
    main()
