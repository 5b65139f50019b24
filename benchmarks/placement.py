"""Quality of static placements by slack of memory: every algorithm of `testbed place` on a grid of instances.

    python benchmarks/placement.py --set small --seeds 30 --json placement.jsonl
    python benchmarks/placement.py --set large --seeds 10 --time-limit-s 300 --json placement.jsonl
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from intervals import LEAST_VALUES, bootstrap
from lab import print_machine
from rows import add_rows, read_rows
from tables import markdown

from testbed.scheduling.static.algorithms import ALGORITHMS, NOT_IN_TIME, Settings, place
from testbed.scheduling.static.packing import packed_at
from testbed.scheduling.static.problem import StaticProblem
from testbed.scheduling.static.programs import NO_SOLUTION, OPTIMAL

SLACKS = tuple(round(0.1 * tenth, 1) for tenth in range(1, 10))
SETS = {"small": (4, (12,)), "large": (64, (100, 250, 500))}
PROGRAMS = ("RRNZ", "RRND")  # these solve a linear program
MOST_LINEAR, MOST_INTEGER = 100 * 64, 12 * 4  # pairs of a service and a node
TIME_LIMIT_S = 60.0
LEAST, MOST, MEAN, DEVIATION = 0.01, 1.0, 0.5, 0.25
SPEED_TASKS, SPEED_NODES, SPEED_TIMES = 10_000, 1_000, 20
SPEED_SLACKS = (0.1, 0.5)
BASE = "MCB8"  # which [PHD] says to be as good as, or better than, the others "nearly across the board"
EQUAL_FRAC = 0.001  # the accuracy of MCB8


def instance(nodes: int, services: int, slack: float, seed: int) -> StaticProblem:
    """Return an instance; all slacks of a seed have the same needs, and memory in the same proportions."""
    draw = np.random.default_rng([seed, nodes, services])
    need, memory = (np.clip(draw.normal(MEAN, DEVIATION, services), LEAST, MOST) for _ in range(2))
    total = (1.0 - slack) * nodes
    if total > services:
        raise SystemExit(f"{services} services cannot fill {total:g} nodes")
    memory *= total / memory.sum()
    for _ in range(100):  # cutting values to 1 leaves more memory to the others
        memory = np.minimum(memory, MOST)
        open_ = memory < MOST
        missing = total - float(memory.sum())
        if abs(missing) < 1e-9 * total:
            break
        memory[open_] *= 1.0 + missing / memory[open_].sum()
    return StaticProblem(need, memory, nodes)


def algorithms_for(services: int, nodes: int) -> list[str]:
    """Return the algorithms that can handle this number of services and nodes."""
    pairs = services * nodes
    return [
        name for name in ALGORITHMS
        if not (name == "MILP" and pairs > MOST_INTEGER) and not (name in PROGRAMS and pairs > MOST_LINEAR)
    ]  # fmt: skip


class Case(NamedTuple):
    """The placements at one slack, by seed and algorithm; a seed has those of all algorithms."""

    services: int
    nodes: int
    slack: float
    found: dict[int, dict[str, dict[str, Any]]]

    def of(self, name: str) -> list[dict[str, Any]]:
        """Return the placements of an algorithm; without the instances for which there is provably none."""
        rows = [by_name[name] for by_name in self.found.values() if name in by_name and not self._impossible(by_name)]
        return [row for row in rows if row["note"] != NOT_IN_TIME]

    def late(self, name: str) -> int:
        """Return the number of instances for which the time limit ended a linear program."""
        return sum(by_name[name]["note"] == NOT_IN_TIME for by_name in self.found.values() if name in by_name)

    def impossible(self) -> int:
        """Return the number of instances for which there is provably no placement."""
        return sum(map(self._impossible, self.found.values()))

    def pairs(self, name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return the placements of an algorithm and of MCB8 for the instances that both have placed."""
        both = [(by_name.get(name), by_name[BASE]) for by_name in self.found.values()]
        return [(one, base) for one, base in both if one is not None and one["placed"] and base["placed"]]

    @staticmethod
    def _impossible(by_name: Mapping[str, Mapping[str, Any]]) -> bool:
        return "MILP" in by_name and by_name["MILP"]["note"] == NO_SOLUTION


def cases_of(rows: Sequence[dict[str, Any]]) -> list[Case]:
    """Return the cases, without instances that lack an algorithm so far."""
    cases = []
    for services, nodes in sorted({(row["services"], row["nodes"]) for row in rows}):
        names = algorithms_for(services, nodes)
        for slack in SLACKS:
            found: dict[int, dict[str, dict[str, Any]]] = {}
            for row in rows:
                if (row["services"], row["nodes"], row["slack"]) == (services, nodes, slack):
                    found.setdefault(row["seed"], {})[row["algorithm"]] = row
            whole = {seed: each for seed, each in sorted(found.items()) if len(each) == len(names)}
            if whole:
                cases.append(Case(services, nodes, slack, whole))
    return cases


COLUMNS = ("services on nodes", "slack", "algorithm", "placed", "n", "minimum yield", "gap to bound", "ratio to MCB8",
           "95 % interval", "better, equal, worse", "s", "note")  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a row for each case and algorithm.

    `placed` counts all instances that have a placement, as far as this is known. Yields, gaps and ratios are means over
    the n instances that both the algorithm and MCB8 have placed, with the interval of the mean ratio.
    """
    lines = []
    for case in cases_of(rows):
        for name in ALGORITHMS:
            own = case.of(name)
            if not own:
                continue
            placed = f"{sum(row['placed'] for row in own)}/{len(own)}"
            seconds = f"{statistics.median(row['elapsed_s'] for row in own):.2g}"
            about = [f"{case.services} on {case.nodes}", f"{case.slack:g}", name, placed]
            lines.append([*about, *_figures(case.pairs(name)), seconds, _note(case, name)])
    return markdown(COLUMNS, lines)


def _figures(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    if not pairs:
        return ["0", "", "", "", "", ""]
    ratios = [own["minimum_yield"] / base["minimum_yield"] for own, base in pairs]
    interval = ""
    if len(ratios) >= LEAST_VALUES:
        low, high = bootstrap(lambda draw: statistics.mean(draw.choices(ratios, k=len(ratios))))
        interval = f"{low:.3f} to {high:.3f}"
    better, worse = sum(ratio > 1.0 + EQUAL_FRAC for ratio in ratios), sum(ratio < 1.0 - EQUAL_FRAC for ratio in ratios)
    return [
        str(len(pairs)), f"{statistics.mean(own['minimum_yield'] for own, _ in pairs):.3f}",
        f"{statistics.mean(own['gap_frac'] for own, _ in pairs):.2%}", f"{statistics.mean(ratios):.3f}", interval,
        f"{better}, {len(ratios) - better - worse}, {worse}",
    ]  # fmt: skip


def _note(case: Case, name: str) -> str:
    own = case.of(name)
    if name == "MILP":
        placed = [row for row in own if row["placed"]]
        gaps = [max(1.0 - row["minimum_yield"] / row["proven_bound"], 0.0) for row in placed]
        gap = statistics.mean(gaps) if gaps else 0.0
        proven = sum(row["note"] == OPTIMAL for row in own)
        return f"{proven} optimal, mean proven gap {gap:.2%}, {case.impossible()} without a solution"
    late = case.late(name)
    return f"{late} not solved in time" if late else ""


def draw_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw minimum yield, relative to MCB8, and failures over slack, with one column per number of services."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # an extra

    cases = cases_of(rows)
    sizes = sorted({(case.services, case.nodes) for case in cases})
    figure = Figure(figsize=(3.6 * len(sizes), 6.0), layout="constrained")
    panels = figure.subplots(2, len(sizes), sharex=True, squeeze=False)
    for column, size in enumerate(sizes):
        here = [case for case in cases if (case.services, case.nodes) == size]
        for number, name in enumerate(ALGORITHMS):
            ratio = [(case.slack, [own["minimum_yield"] / base["minimum_yield"] for own, base in case.pairs(name)])
                     for case in here]  # fmt: skip
            drawn = [(slack, statistics.mean(values)) for slack, values in ratio if values]
            failed = [(case.slack, statistics.mean(not row["placed"] for row in case.of(name)))
                      for case in here if case.of(name)]  # fmt: skip
            for panel, points in ((panels[0][column], drawn), (panels[1][column], failed)):
                if points:
                    panel.plot(*zip(*points, strict=True), marker=".", color=f"C{number}", label=name)
        panels[0][column].set_title(f"{size[0]} services on {size[1]} nodes")
        panels[1][column].set_xlabel("memory slack")
    panels[0][0].set_ylabel("minimum yield, relative to MCB8\n(instances that both have placed)")
    panels[1][0].set_ylabel("instances not placed")
    lines = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()}
    panels[0][-1].legend(handles=list(lines.values()), fontsize="small")
    figure.savefig(path)


def speed(path: Path) -> None:
    """Time one packing and whole searches by MCB8, compiled and warm."""
    rows = []
    for slack in SPEED_SLACKS:
        problem = instance(SPEED_NODES, SPEED_TASKS, slack, 1)
        found = place(problem, BASE)
        if found.node is None or packed_at(problem, found.minimum_yield * 0.98) is None:
            raise SystemExit(f"no packing of {SPEED_TASKS} tasks on {SPEED_NODES} nodes at slack {slack:g}")
        for number in range(SPEED_TIMES):
            begin_s = time.perf_counter()
            packed = packed_at(problem, found.minimum_yield * 0.98)
            middle_s = time.perf_counter()
            again = place(problem, BASE)
            end_s = time.perf_counter()
            rows.append({
                "number": number, "tasks": SPEED_TASKS, "nodes": SPEED_NODES, "slack": slack,
                "packed": packed is not None, "packing_s": middle_s - begin_s, "search_s": end_s - middle_s,
                "minimum_yield": again.minimum_yield, "gap_frac": again.gap_frac,
            })  # fmt: skip
    add_rows(path, rows)
    lines = []
    for slack in SPEED_SLACKS:
        own = [row for row in rows if row["slack"] == slack]
        for what in ("packing_s", "search_s"):
            values = sorted(1e3 * row[what] for row in own)
            times = (statistics.median(values), values[0], values[-1])
            lines.append([f"{slack:g}", what.removesuffix("_s"), *(f"{each:.2f}" for each in times)])
    print(f"{SPEED_TASKS} tasks on {SPEED_NODES} nodes, {SPEED_TIMES} times, compiled and warm")
    print(markdown(("slack", "what", "median ms", "least", "most"), lines))


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
                "proven_bound": found.proven_bound, "gap_frac": found.gap_frac, "elapsed_s": found.elapsed_s,
                "note": found.note,
            }])  # fmt: skip
            if number % 100 == 0 or number == len(left):
                print(f"{number} of {len(left)} placements", flush=True)
    rows = read_rows(chosen.table or chosen.json)
    if chosen.figure is not None:
        draw_figure(rows, chosen.figure)
    print(table(rows))


if __name__ == "__main__":
    main()
