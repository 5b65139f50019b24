"""Weights, guarantees and decay under DFRS, simulated: the gain of favoured jobs, and the cost for the others.

    python benchmarks/fairness.py --seeds 20 --json fairness.jsonl
    python benchmarks/fairness.py --table fairness.jsonl

Synthetic traces (Lublin-Feitelson) of 500 jobs on 64 nodes with a penalty of 300 s. A fifth of the jobs, drawn by
seed, is favoured: with weight 4, or with a guaranteed yield of 0.5 for jobs of one task. Decay halves the weight of a
job after an hour of virtual time. Stretches are shown for favoured and other jobs, and for the shorter and the longer
half. The file gets one line per run; runs that are in it are skipped.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from intervals import interval_text
from lab import print_machine
from rows import add_rows, read_rows

from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.load import scale_load
from testbed.scheduling.workload.synthetic import synthetic_trace

POLICY = "GreedyPM */per/OPT=MIN/MINVT=600"
WAYS = ("", "/WEIGHTS=jobs", "/LEAST=jobs", "/DECAY=3600", "/WEIGHTS=jobs/LEAST=jobs/DECAY=3600")
LOADS = (0.5, 0.9)
NODES, JOBS, PENALTY_S, FAVOURED_FRAC, WEIGHT, LEAST = 64, 500, 300.0, 0.2, 4.0, 0.5
GROUPS = ("favoured", "others", "shorter half", "longer half")


def jobs_of(seed: int, load: float) -> tuple[list[Job], list[bool]]:
    """Return a trace in which some jobs have weights and guarantees, and which jobs these are."""
    favoured = np.random.default_rng(seed).random(JOBS) < FAVOURED_FRAC
    jobs = scale_load(synthetic_trace(NODES, JOBS, seed), NODES, load)
    return [
        replace(job, weight=WEIGHT if mine else 1.0, least_yield_frac=LEAST if mine and job.tasks == 1 else 0.0)
        for job, mine in zip(jobs, favoured.tolist(), strict=True)
    ], favoured.tolist()


def simulated(seed: int, load: float, way: str) -> dict[str, float]:
    """Simulate one case: mean and maximum stretch of each group of jobs."""
    jobs, favoured = jobs_of(seed, load)
    run = simulate(jobs, NODES, parse(POLICY + way), constant(PENALTY_S))
    stretches, mine = run.stretches(), np.array(favoured)
    short = run.run_time_s <= np.median(run.run_time_s)
    found = {}
    for group, chosen in zip(GROUPS, (mine, ~mine, short, ~short), strict=True):
        found[f"mean stretch, {group}"] = float(stretches[chosen].mean())
        found[f"max stretch, {group}"] = float(stretches[chosen].max())
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return medians over seeds with intervals, and the median ratio to the plain policy on the same seed."""
    lines = ["| load | suffix | n | measure | median | 95 % interval | to none | interval |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for load in LOADS:
        by_way = {way: {row["seed"]: row for row in rows if (row["load"], row["way"]) == (load, way)} for way in WAYS}
        for way, found in by_way.items():
            measures = [f"{kind} stretch, {group}" for group in GROUPS for kind in ("mean", "max")]
            for measure in measures if found else ():
                values = [row[measure] for row in found.values()]
                cells = [f"{load:g}", way or "none", str(len(values)), measure, f"{statistics.median(values):.3g}",
                         interval_text(values), "", ""]  # fmt: skip
                ratios = [row[measure] / by_way[""][seed][measure] for seed, row in found.items() if seed in by_way[""]]
                if way and ratios:
                    cells[6:] = [f"{statistics.median(ratios):.3f}", interval_text(ratios, ".3f")]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate the missing cases, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=0, help="number of seeds")
    parser.add_argument("--json", type=Path, default=Path("fairness.jsonl"), help="file for the raw figures")
    parser.add_argument("--table", type=Path, help="only print the table of this file")
    chosen = parser.parse_args()
    if chosen.table is None:
        print_machine()
        there = {(row["seed"], row["load"], row["way"]) for row in read_rows(chosen.json)}
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            cases = [(load, way) for load in LOADS for way in WAYS]
            random.Random(seed).shuffle(cases)  # noqa: S311  # a random order, not a secret
            for load, way in cases:
                if (seed, load, way) not in there:
                    add_rows(chosen.json, [{"seed": seed, "load": load, "way": way, **simulated(seed, load, way)}])
                    print(f"{seed}: {load:g} {way or 'none'}", flush=True)
    print(table(read_rows(chosen.table or chosen.json)))


if __name__ == "__main__":
    main()
