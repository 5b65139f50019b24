"""DFRS with right, wrong and estimated CPU needs on the same jobs.

    python benchmarks/needs.py --seeds 20 --json needs.jsonl
    python benchmarks/needs.py --live 6 --json needs.jsonl
    python benchmarks/needs.py --table needs.jsonl

Four ways: needs declared right; declared wrong by a factor of 2, up or down at even odds, at most a node; the latter
with `/NEEDS=discovered`; and right declarations with `/NEEDS=discovered`, which shows the cost of estimation alone.
In half of the runs the need of each job falls to 40 % at half of its work (profile 1,0.4@0.5). `wrong frac` is the
part of the jobs whose declared need is wrong: a need of a whole node cannot be declared higher. `found s` and `found
frac` are of the needs that the policy did not know.

Simulated: synthetic traces (Lublin-Feitelson) of 300 jobs on 64 nodes, with a penalty of 300 s. Live: 6 jobs of 20 to
60 s on 4 nodes of a fifth of a core, as processes, at a load of 0.9. The ways come in random order within each seed.
The file gets one line per run; runs that are in it are skipped.
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
from pathlib import Path
from typing import Any

from cases import by_seed, check_disk, core_rates, missing, options
from lab import print_machine
from live_run import live_run, measured_core_rate
from rows import add_rows, read_rows
from tables import markdown, measure_cells, ratio_cells

from testbed.bus.need_profile import WHOLE_PARTS, parts_of
from testbed.run.events import Decision
from testbed.run.journal import is_decision, read_events
from testbed.scheduling.metrics import bounded_stretch
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.needs import NeedsModel
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import scale_load
from testbed.scheduling.workload.misdeclared import misdeclared
from testbed.scheduling.workload.synthetic import synthetic_trace

POLICY = "GreedyPM */per/OPT=MIN/MINVT=600"
SUFFIX = "/NEEDS=discovered"
WAYS = {"right": (1.0, ""), "wrong": (2.0, ""), "estimated": (2.0, SUFFIX), "right, estimated": (1.0, SUFFIX)}
LOADS = (0.5, 0.9)
WORLDS = {"simulated": LOADS, "live": (0.9,)}
PROFILES = ("1", "1,0.4@0.5")
NODES, JOBS, PENALTY_S = 64, 300, 300.0
LIVE_NODES, LIVE_CORES, LIVE_JOBS = 4, 0.2, 6
MEASURES = (
    "mean stretch", "max stretch", "wrong frac", "unused frac", "short frac", "overcommitted frac", "found s",
    "found frac",
)  # fmt: skip
SCENARIO = """
name = "needs"
policy = "EASY"
[workload]
trace = "jobs.csv"
[programs]
iteration_s = 0.2
profile = "PROFILE"
""" + "".join(f'[[nodes]]\nname = "node-{node}"\ncpus = {LIVE_CORES}\nmemory_mib = 512\n' for node in range(LIVE_NODES))


def simulated_jobs(seed: int, load: float) -> list[Job]:
    """Return a synthetic trace at an offered load."""
    return scale_load(synthetic_trace(NODES, JOBS, seed), NODES, load)


def live_jobs(seed: int, load: float) -> list[Job]:
    """Return a short trace: run times are log-uniform, arrivals a Poisson process at that load."""
    draw = random.Random(seed)  # noqa: S311  # the same jobs for the same seed
    found, now_s = [], 0.0
    for number in range(1, LIVE_JOBS + 1):
        run_time_s = round(math.exp(draw.uniform(math.log(20.0), math.log(60.0))), 3)
        need = draw.choice((0.25, 0.5, 0.5, 1.0))
        found.append(Job(number, now_s, draw.randint(1, 3), need, draw.choice((0.15, 0.2, 0.25)), run_time_s))
        now_s += draw.expovariate(1.0)
    scaled = scale_load(found, LIVE_NODES, load)
    return [replace(job, submit_time_s=round(job.submit_time_s, 3)) for job in scaled]


def stretches(jobs: Sequence[Job], end_s: Sequence[float]) -> dict[str, float]:
    """Return the mean and the maximum bounded stretch, and the part of the jobs whose need is declared wrong."""
    took_s = [end - job.submit_time_s for job, end in zip(jobs, end_s, strict=True)]
    found = bounded_stretch(took_s, [job.run_time_s for job in jobs])
    wrong = sum(job.cpu_need_frac != job.real_need_frac for job in jobs)
    return {"mean stretch": float(found.mean()), "max stretch": float(found.max()), "wrong frac": wrong / len(jobs)}


def simulated(seed: int, load: float, profile: str, way: str) -> dict[str, Any]:
    """Simulate one case."""
    factor, suffix = WAYS[way]
    jobs = misdeclared(simulated_jobs(seed, load), factor, seed)
    phases = tuple((begins / WHOLE_PARTS, part / WHOLE_PARTS) for begins, part in parts_of(profile))
    run = simulate(jobs, NODES, parse(POLICY + suffix), constant(PENALTY_S), needs=NeedsModel(phases, seed=seed))
    found: dict[str, Any] = stretches(jobs, run.end_s.tolist())
    if run.needs is None:  # needs are as declared: progress is the yield
        return found
    figures = run.needs
    found["unused frac"] = figures.unused_cpu_s / figures.used_cpu_s
    found["short frac"] = figures.short_cpu_s / figures.used_cpu_s
    found["overcommitted frac"] = figures.overcommitted_s / (NODES * run.makespan_s)
    unknown = [seconds for seconds in figures.found_s if seconds > 0.0]
    if suffix and (unknown or figures.not_found):
        found["found frac"] = len(unknown) / (len(unknown) + figures.not_found)
        found |= {"found s": statistics.median(unknown)} if unknown else {}
    return found


def live(seed: int, load: float, profile: str, way: str, core_rate: float) -> dict[str, Any]:
    """Run one case."""
    factor, suffix = WAYS[way]
    jobs = misdeclared(live_jobs(seed, load), factor, seed)
    with live_run(SCENARIO.replace("PROFILE", profile), jobs, POLICY + suffix, core_rate) as run:
        with (run / "jobs.csv").open(newline="") as file:
            ends = {int(row["job_id"]): float(row["end_time_s"]) for row in csv.DictReader(file)}
        results = json.loads((run / "summary.json").read_text())["results"]
        return {
            **stretches(jobs, [ends[job.job_id] for job in jobs]), **live_needs(run, jobs), "right": results["right"],
            "jobs": len(jobs), "load_1_min": os.getloadavg()[0], "units_per_core_s": core_rate,
        }  # fmt: skip


def live_needs(run: Path, jobs: Sequence[Job]) -> dict[str, float]:
    """Return the median ratio of the needs that the policy had at the end to the real ones at the beginning."""
    real = {job.job_id: job.real_need_frac for job in jobs}
    seen: dict[int, float] = {}
    for event in read_events(run / "events.jsonl", is_decision):
        if isinstance(event, Decision):
            seen.update(zip(event.view.job_id, event.view.cpu_need_frac, strict=True))
    return {"seen to real need": statistics.median(seen[job] / real[job] for job in seen)}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return medians over seeds with intervals, and the median ratio to right needs on the same seed."""
    lines = []
    for world, load, profile in product(WORLDS, LOADS, PROFILES):
        case = {"world": world, "load": load, "profile": profile}
        right = by_seed(rows, case | {"way": "right"})
        for way in WAYS:
            found = by_seed(rows, case | {"way": way})
            for measure in (*MEASURES, "seen to real need"):
                if cells := measure_cells(found, measure):
                    compared = way != "right" and measure.endswith("stretch")
                    ratio = ratio_cells(found, right, measure) if compared else ["", ""]
                    lines.append([world, f"{load:g}", profile, way, *cells, *ratio])
    head = (
        "world",
        "load",
        "profile",
        "needs",
        "n",
        "measure",
        "median",
        "95 % interval",
        "to right needs",
        "interval",
    )
    return markdown(head, lines)


def main() -> None:
    """Run the missing cases, and print the table."""
    parser = options(__doc__, "needs.jsonl")
    parser.add_argument("--seeds", type=int, default=0, help="number of simulated seeds")
    parser.add_argument("--live", type=int, default=0, help="number of live seeds")
    chosen = parser.parse_args()
    if chosen.table is None:
        check_disk()
        print_machine()
        cases = [
            {"world": world, "seed": chosen.first + number, "load": load, "profile": profile, "way": way}
            for world, seeds in (("simulated", chosen.seeds), ("live", chosen.live)) for number in range(seeds)
            for load in WORLDS[world] for profile in PROFILES for way in WAYS
        ]  # fmt: skip
        for case in missing(chosen.json, cases, "world", "seed"):
            row = case | measured(core_rates(chosen.json), **case)
            add_rows(chosen.json, [row])
            print(f"{' '.join(map(str, case.values()))}: mean stretch {row['mean stretch']:.2f}", flush=True)
    print(table(read_rows(chosen.table or chosen.json)))


def measured(rates: Sequence[float], world: str, **case: Any) -> dict[str, Any]:
    """Simulate or run one case; `rates` are those of a core in earlier live runs, all the same."""
    if world == "simulated":
        return simulated(**case)
    alone = Job(1, 0.0, 1, 0.5, 0.2, 5.0)
    rate = rates[0] if rates else measured_core_rate(SCENARIO.replace("PROFILE", "1"), POLICY, alone)
    return live(**case, core_rate=rate)


if __name__ == "__main__":
    main()
