"""The gain under DFRS when tasks divide the CPU of their job: the same policy with and without `/WITHIN=dps`.


    python benchmarks/within.py --seeds 30 --json within.jsonl
    python benchmarks/within.py --live 3 --json within.jsonl
    python benchmarks/within.py --table within.jsonl

Jobs of 2 to 4 tasks in a line, the i-th with a part 1/i of the work of the first, arrive at random, at offered
loads of 0.5 and 0.9 by their declared needs. Simulations have 60 jobs of 5 to 60 minutes on 8 nodes with a penalty of
30 s for each resume and migration. Live runs have 6 jobs of 10 to 30 s on 4 nodes of processes with a fifth of a core.
Loads and policies come in random order within each seed. The file gets one line per run; runs in it are skipped.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from cases import by_seed, check_disk, core_rates, missing, options
from lab import print_machine
from live_run import live_run, measured_core_rate
from rows import add_rows, read_rows
from tables import markdown, measure_cells, ratio_cells

from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.ranks import SharingModel
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import scale_load

POLICY = "GreedyPM */per/OPT=MIN/MINVT=600"
WAYS = ("", "/WITHIN=dps", "/WITHIN=dps/distributed")
LOADS = (0.5, 0.9)
MEASURES = ("mean stretch", "max stretch", "mean response s", "max response s")
NODES, JOBS, PENALTY_S = 8, 60, 30.0
LIVE_NODES, LIVE_CORES, LIVE_JOBS = 4, 0.2, 6
SCENARIO = """
name = "within"
policy = "EASY"
[workload]
trace = "jobs.csv"
[programs]
topologies = ["linear"]
imbalance = "1/i"
iteration_s = 1
work = "cpu-time"
[shares]
period_s = 2
grant_s = 2
""" + "".join(f'[[nodes]]\nname = "node-{node}"\ncpus = {LIVE_CORES}\nmemory_mib = 512\n' for node in range(LIVE_NODES))


def jobs_of(seed: int, load: float, *, live: bool) -> list[Job]:
    """Return a trace: its run times are log-uniform, its arrivals a Poisson process at that load."""
    draw = random.Random(seed)  # noqa: S311  # the same jobs for the same seed
    least_s, most_s = (10.0, 30.0) if live else (300.0, 3600.0)
    found, now_s = [], 0.0
    for number in range(1, (LIVE_JOBS if live else JOBS) + 1):
        found.append(
            Job(
                number, now_s, draw.randint(2, 4), draw.choice((0.25, 0.5, 0.75, 1.0)), draw.choice((0.15, 0.2, 0.25)),
                round(math.exp(draw.uniform(math.log(least_s), math.log(most_s))), 3),
            )
        )  # fmt: skip
        now_s += draw.expovariate(1.0)
    scaled = scale_load(found, LIVE_NODES if live else NODES, load)
    return [replace(job, submit_time_s=round(job.submit_time_s, 3)) for job in scaled]


def measured(jobs: Sequence[Job], end_s: Sequence[float]) -> dict[str, float]:
    """Return the measures of a run."""
    responses = [end - job.submit_time_s for job, end in zip(jobs, end_s, strict=True)]
    stretches = [response / job.run_time_s for job, response in zip(jobs, responses, strict=True)]
    return dict(zip(MEASURES, (
        statistics.mean(stretches), max(stretches), statistics.mean(responses), max(responses)
    ), strict=True))  # fmt: skip


def simulated(seed: int, load: float, policy: str) -> dict[str, Any]:
    """Simulate one case."""
    jobs = jobs_of(seed, load, live=False)
    model = SharingModel(("linear",), "1/i")
    found = simulate(jobs, NODES, parse(policy), constant(PENALTY_S), sharing=model)
    return measured(jobs, found.end_s.tolist())


def live(seed: int, load: float, policy: str, core_rate: float) -> dict[str, Any]:
    """Run one case."""
    jobs = jobs_of(seed, load, live=True)
    with live_run(SCENARIO, jobs, policy, core_rate) as run:
        with (run / "jobs.csv").open(newline="") as file:
            ends = {int(row["job_id"]): float(row["end_time_s"]) for row in csv.DictReader(file)}
        results = json.loads((run / "summary.json").read_text())["results"]
        return {
            **measured(jobs, [ends[job.job_id] for job in jobs]), "right": results["right"], "jobs": len(jobs),
            "doubtful": len(results.get("doubtful", [])), "load_1_min": os.getloadavg()[0],
            "units_per_core_s": core_rate,
        }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return medians over seeds with their intervals, and the median of the gains of the seeds."""
    lines = []
    for world, load in product(("simulated", "live"), LOADS):
        equal = by_seed(rows, {"world": world, "load": load, "way": ""})
        for way, measure in product(WAYS, MEASURES):
            found = by_seed(rows, {"world": world, "load": load, "way": way})
            if cells := measure_cells(found, measure):
                ratio = ratio_cells(found, equal, measure) if way else ["", ""]
                lines.append([world, f"{load:g}", way or "equal caps", *cells, *ratio])
    head = ("world", "load", "policy", "n", "measure", "median", "95 % interval", "to equal caps", "interval")
    return markdown(head, lines)


def main() -> None:
    """Run the missing cases, and print the table."""
    parser = options(__doc__, "within.jsonl")
    parser.add_argument("--seeds", type=int, default=0, help="number of simulated seeds")
    parser.add_argument("--live", type=int, default=0, help="number of live seeds")
    parser.add_argument("--loads", default=",".join(map(str, LOADS)), help="offered loads")
    parser.add_argument("--ways", default=",".join(WAYS[:2]), help="suffixes of the policy; an empty one: equal caps")
    parser.add_argument("--policy", default=POLICY, help="the policy that decides")
    chosen = parser.parse_args()
    if chosen.table is None:
        check_disk()
        print_machine()
        cases = [
            {"world": world, "seed": chosen.first + number, "load": float(load), "way": way}
            for world, seeds in (("simulated", chosen.seeds), ("live", chosen.live)) for number in range(seeds)
            for load in chosen.loads.split(",") for way in chosen.ways.split(",")
        ]  # fmt: skip
        for case in missing(chosen.json, cases, "world", "seed"):
            world, seed, load, way = case.values()
            policy = parse(chosen.policy + way).name
            if world == "simulated":
                found = simulated(seed, load, policy)
            else:
                rates = core_rates(chosen.json)
                alone = Job(1, 0.0, 1, 0.5, 0.2, 5.0)
                rate = rates[0] if rates else measured_core_rate(SCENARIO, chosen.policy, alone)
                found = live(seed, load, policy, rate)
            add_rows(chosen.json, [case | {"policy": policy} | found])
            print(f"{world} {seed}: {load:g} {policy}: mean stretch {found['mean stretch']:.2f}", flush=True)
    print(table(read_rows(chosen.table or chosen.json)))


if __name__ == "__main__":
    main()
