"""Weights, guarantees and decay under DFRS, simulated: the gain of favoured jobs, and the cost for the others.

    python benchmarks/fairness.py --seeds 20 --json fairness.jsonl
    python benchmarks/fairness.py --table fairness.jsonl

Synthetic traces (Lublin-Feitelson) of 500 jobs on 64 nodes with a penalty of 300 s. A fifth of the jobs, drawn by
seed, is favoured: with weight 4, and those of one task with a guaranteed yield of 0.5. Decay halves the weight of a job
after an hour of virtual time. Stretches are shown for favoured, guaranteed and other jobs, and for the shorter and the
longer half. `least yield` is the lowest yield at which a job with a guarantee ever ran, and `pauses` and `wait` are of
these jobs: means over jobs. The file gets one line per run; runs that are in it are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cases import by_seed, missing, options
from lab import print_machine
from rows import add_rows, read_rows
from tables import markdown, measure_cells, ratio_cells

from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.run import MIGRATION, RESUME, SHARE, START
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import scale_load
from testbed.scheduling.workload.synthetic import synthetic_trace

POLICY = "GreedyPM */per/OPT=MIN/MINVT=600"
WAYS = ("", "/WEIGHTS=jobs", "/LEAST=jobs", "/DECAY=3600", "/WEIGHTS=jobs/LEAST=jobs/DECAY=3600")
LOADS = (0.5, 0.9)
NODES, JOBS, PENALTY_S, FAVOURED_FRAC, WEIGHT, LEAST = 64, 500, 300.0, 0.2, 4.0, 0.5
GROUPS = ("favoured", "guaranteed", "others", "shorter half", "longer half")
MEASURES = (*(f"{kind} stretch, {group}" for group in GROUPS for kind in ("mean", "max")), "least yield", "pauses",
            "wait s")  # fmt: skip


def jobs_of(seed: int, load: float) -> tuple[list[Job], list[bool]]:
    """Return a trace in which some jobs have weights and guarantees, and which jobs these are."""
    favoured = np.random.default_rng(seed).random(JOBS) < FAVOURED_FRAC
    jobs = scale_load(synthetic_trace(NODES, JOBS, seed), NODES, load)
    return [
        replace(job, weight=WEIGHT if mine else 1.0, least_yield_frac=LEAST if mine and job.tasks == 1 else 0.0)
        for job, mine in zip(jobs, favoured.tolist(), strict=True)
    ], favoured.tolist()


def simulated(seed: int, load: float, way: str) -> dict[str, float]:
    """Simulate one case: mean and maximum stretch of each group of jobs, and how guarantees were kept."""
    jobs, favoured = jobs_of(seed, load)
    run = simulate(jobs, NODES, parse(POLICY + way), constant(PENALTY_S), record=True)
    stretches, mine = run.stretches(), np.array(favoured)
    short = run.run_time_s <= np.median(run.run_time_s)
    sure = np.array([job.least_yield_frac > 0.0 for job in jobs])
    found = {}
    for group, chosen in zip(GROUPS, (mine, sure, ~mine, short, ~short), strict=True):
        found[f"mean stretch, {group}"] = float(stretches[chosen].mean())
        found[f"max stretch, {group}"] = float(stretches[chosen].max())
    changes = run.recording
    runs = np.isin(changes.kind, (START, RESUME, MIGRATION, SHARE))
    found["least yield"] = float(changes.yield_frac[runs & sure[changes.row]].min())
    found["pauses"] = float(run.preemptions[sure].mean())
    found["wait s"] = float((run.start_s - run.submit_s)[sure].mean())
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return medians over seeds with intervals, and the median ratio to the plain policy on the same seed."""
    lines = []
    for load in LOADS:
        plain = by_seed(rows, {"load": load, "way": ""})
        for way in WAYS:
            found = by_seed(rows, {"load": load, "way": way})
            for measure in MEASURES:
                if cells := measure_cells(found, measure):
                    ratio = ratio_cells(found, plain, measure) if way and "stretch" in measure else ["", ""]
                    lines.append([f"{load:g}", way or "none", *cells, *ratio])
    columns = ("load", "suffix", "n", "measure", "median", "95 % interval", "to none", "interval")
    return markdown(columns, lines)


def main() -> None:
    """Simulate the missing cases, and print the table."""
    parser = options(__doc__, "fairness.jsonl")
    parser.add_argument("--seeds", type=int, default=0, help="number of seeds")
    chosen = parser.parse_args()
    if chosen.table is None:
        print_machine()
        seeds = range(chosen.first, chosen.first + chosen.seeds)
        cases = [{"seed": seed, "load": load, "way": way} for seed in seeds for load in LOADS for way in WAYS]
        for case in missing(chosen.json, cases, "seed"):
            add_rows(chosen.json, [case | simulated(**case)])
            print("{seed}: {load:g} {way}".format(**case), flush=True)
    print(table(read_rows(chosen.table or chosen.json)))


if __name__ == "__main__":
    main()
