"""Quality of static placements by slack of memory: every algorithm of `testbed place` on a grid of instances.

    python benchmarks/placement.py --set small --seeds 30 --json placement.jsonl
    python benchmarks/placement.py --set large --seeds 10 --json placement.jsonl --figure placement.svg
    python benchmarks/placement.py --table placement.jsonl --figure placement.svg
    python benchmarks/placement.py --speed --json speed.jsonl

[PHD] leaves the parameters of its figure to other papers; these are ours. CPU needs and memory are normal with mean 0.5
and standard deviation 0.25, cut to 0.01 to 1. Memory is then scaled so that a slack of 0.1 to 0.9 of all memory remains
free. `small` has 12 services on 4 nodes, which the integer program can solve. `large` has 100, 250 and 500 services on
64 nodes, with linear programs for 100 services only. Instances and algorithms come in random order. The file gets one
line per placement; placements that are in it are skipped. `--speed` times packings of 10,000 tasks on 1,000 nodes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from intervals import bootstrap
from lab import print_machine
from rows import add_rows, read_rows

from testbed.scheduling.static.algorithms import ALGORITHMS, Settings, place
from testbed.scheduling.static.packing import packs_at
from testbed.scheduling.static.problem import StaticProblem

SLACKS = tuple(round(0.1 * tenth, 1) for tenth in range(1, 10))
SETS = {"small": (4, (12,)), "large": (64, (100, 250, 500))}
PROGRAMS = ("RRNZ", "RRND")  # these solve a linear program
MOST_LINEAR, MOST_INTEGER = 100 * 64, 12 * 4  # pairs of a service and a node
TIME_LIMIT_S = 60.0
LEAST, MOST, MEAN, DEVIATION = 0.01, 1.0, 0.5, 0.25
SPEED_TASKS, SPEED_NODES, SPEED_TIMES = 10_000, 1_000, 20


def instance(nodes: int, services: int, slack: float, seed: int) -> StaticProblem:
    """Return an instance; all slacks of a seed have the same needs, and memory in the same proportions."""
    draw = np.random.default_rng([seed, nodes, services])
    need, memory = (np.clip(draw.normal(MEAN, DEVIATION, services), LEAST, MOST) for _ in range(2))
    total = (1.0 - slack) * nodes
    if total > services:
        raise SystemExit(f"{services} services cannot fill {total:g} nodes")
    for _ in range(100):  # cutting values to 1 leaves more memory to the others
        open_ = memory < MOST
        memory = np.where(open_, memory * (total - (~open_).sum()) / memory[open_].sum(), memory)
        memory = np.minimum(memory, MOST)
        if abs(memory.sum() - total) < 1e-9 * total:
            break
    return StaticProblem(need, memory, nodes)


def algorithms_for(services: int, nodes: int) -> list[str]:
    """Return the algorithms that can handle this number of services and nodes."""
    pairs = services * nodes
    return [
        name for name in ALGORITHMS
        if not (name == "MILP" and pairs > MOST_INTEGER) and not (name in PROGRAMS and pairs > MOST_LINEAR)
    ]  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return means over the instances that every algorithm of the set has placed, and the failures of each."""
    lines = ["| services on nodes | slack | algorithm | placed | minimum yield | 95 % interval | gap to bound | s |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for services, nodes in sorted({(row["services"], row["nodes"]) for row in rows}):
        for slack in SLACKS:
            case = [row for row in rows if (row["services"], row["nodes"], row["slack"]) == (services, nodes, slack)]
            failed = {row["seed"] for row in case if not row["placed"]}
            for name in ALGORITHMS:
                own = [row for row in case if row["algorithm"] == name]
                both = [row for row in own if row["seed"] not in failed]
                if not own:
                    continue
                shown = [
                    f"{services} on {nodes}",
                    f"{slack:g}",
                    name,
                    f"{sum(row['placed'] for row in own)}/{len(own)}",
                ]
                shown += _figures(both)
                shown.append(f"{statistics.median(row['elapsed_s'] for row in own):.2g}")
                lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


def _figures(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return ["", "", ""]
    yields = [row["minimum_yield"] for row in rows]
    low, high = bootstrap(lambda draw: statistics.mean(draw.choices(yields, k=len(yields))))
    gap = statistics.mean(row["gap_frac"] for row in rows)
    return [f"{statistics.mean(yields):.3f}", f"{low:.3f} to {high:.3f}", f"{gap:.1%}"]


def draw_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw minimum yield and failures over slack, with one column per number of services."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # an extra

    cases = sorted({(row["services"], row["nodes"]) for row in rows})
    figure = Figure(figsize=(3.6 * len(cases), 6.0), layout="constrained")
    panels = figure.subplots(2, len(cases), sharex=True, squeeze=False)
    for column, (services, nodes) in enumerate(cases):
        for name in ALGORITHMS:
            own = [row for row in rows if (row["services"], row["nodes"], row["algorithm"]) == (services, nodes, name)]
            by_slack = {slack: [row for row in own if row["slack"] == slack] for slack in SLACKS}
            there = [slack for slack in SLACKS if by_slack[slack]]
            if not there:
                continue
            panels[0][column].plot(
                there, [statistics.mean(row["minimum_yield"] for row in by_slack[slack]) for slack in there],
                marker=".", label=name,
            )  # fmt: skip
            panels[1][column].plot(
                there, [statistics.mean(not row["placed"] for row in by_slack[slack]) for slack in there], marker="."
            )
        panels[0][column].set_title(f"{services} services on {nodes} nodes")
        panels[1][column].set_xlabel("memory slack")
    panels[0][0].set_ylabel("minimum yield (0 where not placed)")
    panels[1][0].set_ylabel("instances not placed")
    panels[0][-1].legend(fontsize="small")
    figure.savefig(path)


def speed(path: Path) -> None:
    """Time one packing and whole searches by MCB8, compiled and warm."""
    problem = instance(SPEED_NODES, SPEED_TASKS, 0.5, 1)
    found = place(problem, "MCB8")
    packs_at(problem, found.minimum_yield * 0.98)
    rows = []
    for number in range(SPEED_TIMES):
        begin_s = time.perf_counter()
        packed = packs_at(problem, found.minimum_yield * 0.98)
        middle_s = time.perf_counter()
        again = place(problem, "MCB8")
        end_s = time.perf_counter()
        rows.append({
            "number": number, "tasks": SPEED_TASKS, "nodes": SPEED_NODES, "packed": packed,
            "packing_s": middle_s - begin_s, "search_s": end_s - middle_s, "minimum_yield": again.minimum_yield,
        })  # fmt: skip
    add_rows(path, rows)
    for what in ("packing_s", "search_s"):
        values = sorted(row[what] for row in rows)
        print(
            f"{what.removesuffix('_s')} of {SPEED_TASKS} tasks on {SPEED_NODES} nodes: median "
            f"{1e3 * statistics.median(values):.2f} ms, {1e3 * values[0]:.2f} to {1e3 * values[-1]:.2f} ms"
        )


def main() -> None:
    """Make the missing placements, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=[*SETS], help="which instances")
    parser.add_argument("--seeds", type=int, default=10, help="instances at each point of the grid")
    parser.add_argument("--time-limit-s", type=float, default=TIME_LIMIT_S, help="limit of each program")
    parser.add_argument("--speed", action="store_true", help="time the packing of many tasks instead")
    parser.add_argument("--json", type=Path, default=Path("placement.jsonl"), help="file for the raw figures")
    parser.add_argument("--table", type=Path, help="only print the table of this file")
    parser.add_argument("--figure", type=Path, help="file of the figure")
    chosen = parser.parse_args()
    if chosen.speed:
        print_machine()
        speed(chosen.json)
        return
    if chosen.table is None:
        print_machine()
        nodes, sizes = SETS[chosen.set or "small"]
        there = {
            (row["nodes"], row["services"], row["slack"], row["seed"], row["algorithm"])
            for row in read_rows(chosen.json)
        }
        cases = [
            (nodes, services, slack, seed, name)
            for services in sizes for slack in SLACKS for seed in range(1, chosen.seeds + 1)
            for name in algorithms_for(services, nodes)
        ]  # fmt: skip
        left = [case for case in cases if case not in there]
        random.Random(1).shuffle(left)  # noqa: S311  # a random order, not a secret
        for number, (_, services, slack, seed, name) in enumerate(left, 1):
            problem = instance(nodes, services, slack, seed)
            found = place(problem, name, Settings(chosen.time_limit_s, seed))
            add_rows(chosen.json, [{
                "nodes": nodes, "services": services, "slack": slack, "seed": seed, "algorithm": name,
                "placed": found.node is not None, "minimum_yield": found.minimum_yield, "bound": found.bound,
                "gap_frac": 1.0 - found.minimum_yield / problem.bound, "elapsed_s": found.elapsed_s, "note": found.note,
            }])  # fmt: skip
            if number % 100 == 0 or number == len(left):
                print(f"{number} of {len(left)} placements", flush=True)
    rows = read_rows(chosen.table or chosen.json)
    if chosen.figure is not None:
        draw_figure(rows, chosen.figure)
    print(table(rows))


if __name__ == "__main__":
    main()
