"""Delay and overshoot of shares that follow moving work: both forms of the exchange.


    python benchmarks/drift.py --seeds 20 --json drift.jsonl
    python benchmarks/drift.py --live 2 --json drift.jsonl
    python benchmarks/drift.py --table drift.jsonl

A parallel job of four tasks has work 1, 1/2, 1/3, 1/4 by task, which moves on by one task again and again. Under DPS,
a serial job that uses its whole share books half of each node. Under DFRS, the job divides its yield. The file gets one
line per move, with two measures of the task that now has the most work:

* the time until it has 90 % of the shares that it gains by the move
* its overshoot: by how much of that gain its shares exceed their level in the last fifth of the time until the next
  move

A move with a gain of less than a tenth of the mean share is left out, and counted. In simulations, the seed draws
booked shares and the time between moves, and times are trace seconds with periods of 5 s. In live runs, times are wall
seconds with periods of 2 s, and shares are sampled once per second. Runs that are in the file are skipped.
"""

from __future__ import annotations

import math
import os
import random
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cases import missing, options
from intervals import interval_text
from lab import print_machine
from live_run import live_run
from rows import add_rows, read_rows
from tables import markdown

from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.overheads import constant
from testbed.scheduling.simulation.ranks import SharingModel
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job

FORMS = (
    "DPS/bank", "DPS/distributed", "Greedy */OPT=MIN/WITHIN=dps", "Greedy */OPT=MIN/WITHIN=dps/distributed"
)  # fmt: skip
TOPOLOGIES = ("linear", "all-to-all")
TASKS, MOVES = 4, 7
LIVE_CORES, LIVE_ITERATION_S = 0.3, 1.0
TICK_S = 1.0
Seen = list[tuple[float, float, list[float]]]  # time, how often the work has moved, shares by task

SCENARIO = """
name = "drift"
policy = "EASY"
[workload]
trace = "jobs.csv"
[programs]
topologies = ["{topology}"]
imbalance = "drift:{every}"
iteration_s = {iteration_s}
work = "cpu-time"
[shares]
period_s = 2
grant_s = 2
"""
NODE_TABLES = "".join(
    f'[[nodes]]\nname = "node-{node}"\ncpus = {LIVE_CORES}\ncpu_set = [{node * 2 // TASKS}]\nmemory_mib = 320\n'
    for node in range(TASKS)
)


def jobs_of(form: str, need: float, run_s: float, serial_s: float) -> list[Job]:
    """Return the jobs: the parallel one is the last."""
    serial = range(1, TASKS + 1) if form.startswith("DPS") else ()
    found = [Job(number, 0.0, 1, 0.5, 0.3, serial_s) for number in serial]
    return [*found, Job(TASKS + 1, 0.0, TASKS, need, 0.3, run_s)]


def reactions(seen: Seen) -> list[dict[str, Any]]:
    """Return the measures of each move except the first and the last one, whose intervals are incomplete."""
    begins_s = [next((at_s for at_s, moved, _ in seen if moved >= number - 1e-6), math.inf) for number in range(99)]
    begins_s = [at_s for at_s in begins_s if at_s < math.inf]
    mean = statistics.mean(seen[0][2])
    found: list[dict[str, Any]] = []
    for number in range(1, len(begins_s) - 1):
        begin_s, end_s = begins_s[number], begins_s[number + 1]
        task = number % TASKS
        level = [(at_s, shares[task]) for at_s, _, shares in seen]
        old = [each for at_s, each in level if at_s < begin_s][-1]
        after = [(at_s, each) for at_s, each in level if begin_s <= at_s < end_s]
        new = statistics.mean(each for at_s, each in after[-max(1, len(after) // 5) :])
        gain = new - old
        row: dict[str, Any] = {"move": number, "react_s": None, "overshoot": None, "between_s": end_s - begin_s}
        if gain >= 0.1 * mean:
            row["react_s"] = next(at_s for at_s, each in after if each >= old + 0.9 * gain) - begin_s
            row["overshoot"] = max(max(each for _, each in after) - new, 0.0) / gain
        found.append(row)
    return found


def simulated(seed: int, form: str, topology: str) -> list[dict[str, Any]]:
    """Simulate one case."""
    draw = random.Random(seed)  # noqa: S311  # the same jobs for the same seed
    need, run_s = draw.uniform(0.1, 0.3), MOVES * draw.uniform(100.0, 300.0)
    jobs = jobs_of(form, need, run_s, 20 * run_s)
    iteration_s = 0.5
    every = round(run_s / MOVES / iteration_s)
    told: Seen = []

    def watch(now_s: float, row: int, done_s: float, shares: Sequence[float]) -> None:
        if row == len(jobs) - 1:
            told.append((now_s, done_s / (every * iteration_s), list(shares)))

    model = SharingModel((topology,), f"drift:{every}", iteration_s=iteration_s, watch=watch)
    simulate(jobs, TASKS, parse(form), constant(0.0), sharing=model)
    seen: Seen = []
    place = 0
    for tick in range(math.floor(told[-1][0] / TICK_S)):  # as samples at regular times would have it
        while place + 1 < len(told) and told[place + 1][0] <= tick * TICK_S + 1e-6:
            place += 1
        seen.append((tick * TICK_S, told[place][1], told[place][2]))
    return reactions(seen)


def live(form: str, topology: str) -> list[dict[str, Any]]:
    """Run one case live."""
    run_s, need = 25.0 * MOVES, 0.3
    jobs = jobs_of(form, need, run_s, 1.2 * run_s)  # the serial ones run longer than the parallel one
    every = round(run_s / MOVES / LIVE_ITERATION_S)
    scenario = SCENARIO.format(topology=topology, every=every, iteration_s=LIVE_ITERATION_S) + NODE_TABLES
    with live_run(scenario, jobs, form) as run:
        load = os.getloadavg()[0]
        return [{**row, "load_1_min": load} for row in reactions(seen_of(run))]


def seen_of(run: Path) -> Seen:
    """Return the samples of a run's parallel job: for each second, the last one of each task."""
    units, last = {}, {}
    seconds: dict[int, tuple[float, list[float]]] = {}
    total = max(_points(run), key=lambda point: point[2])[2]
    for at_s, task, done, share in _points(run):
        units[task], last[task] = done, share
        if len(last) == TASKS:
            moved = min(units.values()) / total * MOVES
            seconds[math.floor(at_s)] = moved, [last[each] for each in range(TASKS)]
    return [(float(second), moved, shares) for second, (moved, shares) in sorted(seconds.items())]


def _points(run: Path) -> list[tuple[float, int, float, float]]:
    """Return time, task, units done, and share or cap of each sample of the parallel job, by time."""
    found = []
    for line in (run / "points.lp").read_text().splitlines():
        tags, _, rest = line.replace("\\ ", "").partition(" ")
        values = dict(re.findall(r"(\w+)=([-+.0-9e]+)", rest))
        share = values.get("share_cores", values.get("wanted_cores"))
        task = re.search(r",task=(\d+)", tags)
        if tags.startswith("guest,") and f",job={TASKS + 1}," in tags and task and share and "units_done" in values:
            found.append((int(rest.split()[-1]) / 1e9, int(task[1]), float(values["units_done"]), float(share)))
    return sorted(found)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return medians over moves with their intervals."""
    cases = defaultdict(list)
    for row in rows:
        cases[row["world"], row["topology"], row["form"]].append(row)
    lines = []
    head = (
        "world",
        "topology",
        "form",
        "moves",
        "little gained",
        "s to 90 %",
        "95 % interval",
        "overshoot",
        "interval",
    )
    for (world, topology, form), moves in sorted(cases.items(), key=lambda case: (case[0][0] != "simulated", case[0])):
        known = [row for row in moves if row["react_s"] is not None]
        cells = [world, topology, form, str(len(moves)), str(len(moves) - len(known)), "", "", "", ""]
        if known:
            for place, key in ((5, "react_s"), (7, "overshoot")):
                values = [row[key] for row in known]
                kind = ".1f" if key == "react_s" else ".0%"
                cells[place] = format(statistics.median(values), kind)
                cells[place + 1] = interval_text(values, kind)
        lines.append(cells)
    return markdown(head, lines)


def main() -> None:
    """Run the missing cases, and print the table."""
    parser = options(__doc__, "drift.jsonl")
    parser.add_argument("--seeds", type=int, default=0, help="number of simulated seeds")
    parser.add_argument("--live", type=int, default=0, help="number of live repeats")
    parser.add_argument("--forms", default=",".join(FORMS), help="policies")
    parser.add_argument("--topologies", default=",".join(TOPOLOGIES))
    chosen = parser.parse_args()
    if chosen.table is None:
        print_machine()
        cases = [
            {"world": world, "seed": chosen.first + number, "form": form, "topology": topology}
            for world, seeds in (("simulated", chosen.seeds), ("live", chosen.live)) for number in range(seeds)
            for form in chosen.forms.split(",") for topology in chosen.topologies.split(",")
        ]  # fmt: skip
        for case in missing(chosen.json, cases, "world", "seed"):
            world, seed, form, topology = case.values()
            moves = simulated(seed, form, topology) if world == "simulated" else live(form, topology)
            add_rows(chosen.json, [case | row for row in moves])
            print(f"{world} {seed}: {form}, {topology}: {len(moves)} moves", flush=True)
    print(table(read_rows(chosen.table or chosen.json)))


if __name__ == "__main__":
    main()
