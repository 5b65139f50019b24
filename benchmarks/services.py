"""Live services under static placement: the minimum yield of the decision, the measured one, and the bound.

    python benchmarks/services.py --seeds 6 --json services.jsonl
    python benchmarks/services.py --table services.jsonl

8 services of one task arrive one by one, 10 s apart, on 4 nodes of a fifth of a core, as processes. Static policies
place all services again at each arrival. `Greedy */OPT=MIN` places each service once, where the CPU load is lowest.
After the last arrival the progress of each service is measured until the first one ends. The policies come in random
order within each seed. The file gets one line per run; runs that are in it are skipped.
"""

from __future__ import annotations

import csv
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cases import by_seed, check_disk, core_rates, missing, options
from guest_samples import guest_samples
from lab import print_machine
from live_run import live_run, measured_core_rate
from rows import add_rows, read_rows
from tables import markdown, measure_cells

from testbed.run.events import Decision
from testbed.run.journal import read_events
from testbed.scheduling.static.problem import problem_of
from testbed.scheduling.workload.jobs import Job

POLICIES = ("static/MCB8", "static/SGB", "static/SG", "Greedy */OPT=MIN")  # GR places as Greedy does here
NODES, CORES, SERVICES, APART_S = 4, 0.2, 8, 10.0
SETTLE_S = 15.0  # after the last decision, whose moves take time
MEASURES = ("decided yield", "measured yield", "decided to bound", "measured to decided", "migrations", "penalty s")
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
        decisions = [event for event in read_events(run / "events.jsonl") if isinstance(event, Decision)]
        last = next(each for each in decisions if len(each.view.job_id) == SERVICES)
        first_end_s = min(each.t_s for each in decisions if each.event.completed)
        rates = progress(run, last.t_s + SETTLE_S, first_end_s)
        dedicated = {job.job_id: core_rate * job.cpu_need_frac * CORES for job in jobs}
        decided, bound = min(last.decision.yield_frac), problem_of(jobs, NODES).bound
        measured = min(rates[job] / dedicated[job] for job in rates) if len(rates) == SERVICES else None
        return {
            "decided yield": decided, "bound": bound, "decided to bound": decided / bound,
            "measured yield": measured, "measured to decided": None if measured is None else measured / decided,
            "yields": {job: rate / dedicated[job] for job, rate in rates.items()},
            "migrations": sum(int(row["migrations"]) for row in rows),
            "penalty s": sum(float(row["penalty_s"]) for row in rows), "right": results["right"],
            "load_1_min": os.getloadavg()[0], "units_per_core_s": core_rate,
        }  # fmt: skip


def progress(run: Path, from_s: float, until_s: float) -> dict[int, float]:
    """Return the units per second of each job between two times of the run, by its samples."""
    found = {}
    for job, samples in guest_samples(run).items():
        own = [each for each in samples if from_s <= each.at_s <= until_s and "units_done" in each.values]
        if len(own) > 2:
            units = own[-1].values["units_done"] - own[0].values["units_done"]
            found[job] = units / (own[-1].at_s - own[0].at_s)
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return medians over seeds with intervals."""
    found = {policy: by_seed(rows, {"policy": policy}) for policy in POLICIES}
    cells = ((policy, measure_cells(found[policy], measure)) for policy in POLICIES for measure in MEASURES)
    columns = ("policy", "n", "measure", "median", "95 % interval")
    return markdown(columns, ([policy, *each] for policy, each in cells if each))


def main() -> None:
    """Run the missing cases, and print the table."""
    parser = options(__doc__, "services.jsonl")
    parser.add_argument("--seeds", type=int, default=0, help="number of seeds")
    chosen = parser.parse_args()
    if chosen.table is None:
        check_disk()
        print_machine()
        seeds = range(chosen.first, chosen.first + chosen.seeds)
        cases = [{"seed": seed, "policy": policy} for seed in seeds for policy in POLICIES]
        for case in missing(chosen.json, cases, "seed"):
            rates = core_rates(chosen.json)
            rate = rates[0] if rates else measured_core_rate(SCENARIO, POLICIES[0], Job(1, 0.0, 1, 0.5, 0.2, 5.0))
            row = case | live(case["seed"], case["policy"], rate)
            add_rows(chosen.json, [row])
            print(f"{row['seed']}: {row['policy']}: minimum yield {row['decided yield']:.2f}", flush=True)
    print(table(read_rows(chosen.table or chosen.json)))


if __name__ == "__main__":
    main()
