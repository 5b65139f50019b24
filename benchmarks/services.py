"""Live services under static placement: the minimum yield of the decision, the measured one, and the bound.

    python benchmarks/services.py --seeds 6 --json services.jsonl
    python benchmarks/services.py --table services.jsonl

8 services of one task arrive one by one, 10 s apart, on 4 nodes of a fifth of a core, as processes. Static policies
place all services again at each arrival. `Greedy */OPT=MIN` places each service once, where the CPU load is lowest.
After the last arrival the progress of each service is measured until the first one ends. The policies come in random
order within each seed. The file gets one line per run; runs that are in it are skipped.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from intervals import interval_text
from lab import print_machine
from live_run import live_run, measured_core_rate
from rows import add_rows, read_rows

from testbed.run.events import Decision
from testbed.run.journal import is_decision, read_events
from testbed.scheduling.static.problem import problem_of
from testbed.scheduling.workload.jobs import Job

POLICIES = ("static/MCB8", "static/SGB", "static/GR", "Greedy */OPT=MIN")
NODES, CORES, SERVICES, APART_S, SETTLE_S = 4, 0.2, 8, 10.0, 5.0
MEASURES = ("decided yield", "measured yield", "bound", "migrations", "penalty s")
SCENARIO = """
name = "services"
policy = "EASY"
[workload]
trace = "jobs.csv"
[programs]
iteration_s = 0.2
""" + "".join(f'[[nodes]]\nname = "node-{node}"\ncpus = {CORES}\nmemory_mib = 640\n' for node in range(NODES))


def services_of(seed: int) -> list[Job]:
    """Return the services; all of them outlast the last arrival by far."""
    draw = random.Random(seed)  # noqa: S311  # the same services for the same seed
    return [
        Job(
            number + 1, APART_S * number, 1, draw.choice((0.25, 0.5, 0.75, 1.0)), draw.choice((0.15, 0.3, 0.45)),
            APART_S * (SERVICES - number) + 30.0,
        )
        for number in range(SERVICES)
    ]  # fmt: skip


def live(seed: int, policy: str, core_rate: float) -> dict[str, Any]:
    """Run one case."""
    jobs = services_of(seed)
    with live_run(SCENARIO, jobs, policy, core_rate) as run:
        with (run / "jobs.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        results = json.loads((run / "summary.json").read_text())["results"]
        decisions = [event for event in read_events(run / "events.jsonl", is_decision) if isinstance(event, Decision)]
        last = next(each for each in decisions if len(each.view.job_id) == SERVICES)
        first_end_s = min(each.t_s for each in decisions if each.event.completed)
        rates = progress(run, last.t_s + SETTLE_S, first_end_s)
        dedicated = {job.job_id: core_rate * job.cpu_need_frac * CORES for job in jobs}
        return {
            "decided yield": min(last.decision.yield_frac), "bound": problem_of(jobs, NODES).bound,
            "measured yield": min(rates[job] / dedicated[job] for job in rates) if len(rates) == SERVICES else None,
            "migrations": sum(int(row["migrations"]) for row in rows),
            "penalty s": sum(float(row["penalty_s"]) for row in rows), "right": results["right"],
            "load_1_min": os.getloadavg()[0], "units_per_core_s": core_rate,
        }  # fmt: skip


def progress(run: Path, from_s: float, until_s: float) -> dict[int, float]:
    """Return the units per second of each job between two times of the run, by its samples."""
    anchor_ns = json.loads((run / "manifest.json").read_text())["clocks"]["anchor_unix_ns"]
    seen: dict[int, list[tuple[float, float]]] = {}
    for line in (run / "points.lp").read_text().splitlines():
        found = re.match(r"guest,.*\bjob=(\d+).*\bunits_done=(\d+)i.* (\d+)$", line)
        if found and from_s <= (at_s := (int(found[3]) - anchor_ns) / 1e9) <= until_s:
            seen.setdefault(int(found[1]), []).append((at_s, float(found[2])))
    return {
        job: (each[-1][1] - each[0][1]) / (each[-1][0] - each[0][0]) for job, each in seen.items() if len(each) > 2
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return medians over seeds with intervals."""
    lines = ["| policy | n | measure | median | 95 % interval |", "|---|---|---|---|---|"]
    for policy in POLICIES:
        found = [row for row in rows if row["policy"] == policy]
        for measure in MEASURES:
            values = [float(row[measure]) for row in found if row[measure] is not None]
            if values:
                median = f"{statistics.median(values):.3g}"
                cells = (policy, str(len(values)), measure, median, interval_text(values))
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the missing cases, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=0, help="number of seeds")
    parser.add_argument("--json", type=Path, default=Path("services.jsonl"), help="file for the raw figures")
    parser.add_argument("--table", type=Path, help="only print the table of this file")
    chosen = parser.parse_args()
    if chosen.table is None:
        if shutil.disk_usage(".").free < 1 << 30:
            raise SystemExit("expected 1 GiB of free disk")
        print_machine()
        run_missing(chosen)
    print(table(read_rows(chosen.table or chosen.json)))


def run_missing(chosen: argparse.Namespace) -> None:
    """Run the cases that the file does not have, each seed in random order."""
    rows = read_rows(chosen.json)
    there = {(row["seed"], row["policy"]) for row in rows}
    rates = [row["units_per_core_s"] for row in rows]
    if not rates:
        rates = [measured_core_rate(SCENARIO, POLICIES[0], Job(1, 0.0, 1, 0.5, 0.2, 5.0))]
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        policies = list(POLICIES)
        random.Random(seed).shuffle(policies)  # noqa: S311  # a random order, not a secret
        for policy in policies:
            if (seed, policy) in there:
                continue
            row = {"seed": seed, "policy": policy, **live(seed, policy, rates[0])}
            add_rows(chosen.json, [row])
            print(f"{seed}: {policy}: minimum yield {row['decided yield']:.2f}", flush=True)


if __name__ == "__main__":
    main()
