"""The experiment of [DPS] Figure 3: overhead of guests, and of the exchange of shares, for a communicating job.

    python benchmarks/share_overhead.py --repeats 10 --json share-overhead.jsonl
    python benchmarks/share_overhead.py --table share-overhead.jsonl

A job of four tasks, each of which sends to all others, runs alone on four nodes, two on each CPU, without caps. Its
work is the same in all cases. The fewer elements it computes in an iteration, the more messages it sends. `native` is
the same program without guests. Cases come in random order within each repeat. The file gets one line per case; cases
that are in it are skipped.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Sequence

from cases import missing, options
from intervals import interval_text, ratio_of_medians
from lab import open_nodes, print_machine
from live_run import live_run
from rows import add_rows, read_rows
from tables import markdown

from testbed.measure.rundir import read_journal
from testbed.scheduling.workload.jobs import Job

MODES = ("native", "none", "distributed", "bank")
ITERATIONS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # for a task with a whole core
NODES, NODE_CORES = 4, 1.0
WORK_S = 10.0  # for a task with a whole core
NATIVE_S = 10.0


SCENARIO = """
name = "overhead"
policy = "DPS/none"
[workload]
trace = "jobs.csv"
[programs]
topologies = ["all-to-all"]
iteration_s = {iteration_s}
""" + "".join(
    f'[[nodes]]\nname = "node-{node}"\ncpus = {NODE_CORES}\ncpu_set = [{node * 2 // NODES}]\nmemory_mib = 320\n'
    for node in range(NODES)
)


async def native(iteration_s: float) -> float:
    """Return work units per second of the slowest rank, without guests."""
    async with open_nodes(1, cpus=2.0, memory_mib=2048) as lab:
        found = await lab.native(
            lab.nodes[0], program="patterns", ranks=NODES, seconds=NATIVE_S, topology="all-to-all",
            iteration_s=iteration_s,
        )  # fmt: skip
    return found.units / found.elapsed_s


def guests(iteration_s: float, mode: str) -> float:
    """Return work units per second of the slowest task in a run, from its first progress to its end."""
    jobs = [Job(1, 0.0, NODES, 1.0, 0.3, WORK_S)]
    with live_run(SCENARIO.format(iteration_s=iteration_s), jobs, f"DPS/{mode}") as run:
        return slowest(read_journal(run / "events.jsonl"))


def slowest(journal: Sequence[dict[str, object]]) -> float:
    """Return work units per second of the slowest task."""
    first: dict[object, tuple[float, float]] = {}
    rates = []
    for entry in journal:
        if entry["kind"] != "guest" or entry["event"] not in ("progress", "ended", "done"):
            continue
        at_s, detail = float(str(entry["t_s"])), entry["detail"]
        units = float(detail["units"]) if isinstance(detail, dict) and "units" in detail else None
        if units is None:
            continue
        begin_s, begun = first.setdefault(entry["task"], (at_s, units))
        if at_s > begin_s:
            rates.append((units - begun) / (at_s - begin_s))
    return min(rates)


def table(rows: Sequence[dict[str, object]]) -> str:
    """Return rates by iteration and mode with their intervals, and the overhead against `native` and `none`."""
    lines = []
    for iteration_s in ITERATIONS_S:
        found = {
            mode: [
                float(str(row["units_per_s"]))
                for row in rows
                if (row["iteration_s"], row["mode"]) == (iteration_s, mode)
            ]
            for mode in MODES
        }
        for mode in MODES:
            if not found[mode]:
                continue
            cells = [f"{1e3 * iteration_s:g}", mode, str(len(found[mode])), f"{statistics.median(found[mode]):.0f}",
                     interval_text(found[mode], ".0f")]  # fmt: skip
            for floor in ("native", "none"):
                if mode in (floor, "native") or not found[floor]:
                    cells += ["", ""]
                    continue
                ratio, least, most = ratio_of_medians(found[mode], found[floor])
                cells += [f"{1 - ratio:.1%}", f"{1 - most:.1%} to {1 - least:.1%}"]
            lines.append(cells)
    rates = ("iteration ms", "mode", "n", "units/s", "95 % interval")
    return markdown((*rates, "slower than native", "interval", "than none", "interval"), lines)


def main() -> None:
    """Run the missing cases, and print the table."""
    parser = options(__doc__, "share-overhead.jsonl")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--iterations", default=",".join(map(str, ITERATIONS_S)), help="seconds of an iteration")
    chosen = parser.parse_args()
    if chosen.table is None:
        print_machine()
        cases = [
            {"repeat": chosen.first + number, "iteration_s": float(iteration), "mode": mode}
            for number in range(chosen.repeats) for iteration in chosen.iterations.split(",") for mode in MODES
        ]  # fmt: skip
        for case in missing(chosen.json, cases, "repeat"):
            repeat, iteration_s, mode = case.values()
            rate = asyncio.run(native(iteration_s)) if mode == "native" else guests(iteration_s, mode)
            add_rows(chosen.json, [case | {"units_per_s": rate, "load_1_min": os.getloadavg()[0]}])
            print(f"{repeat}: {iteration_s:g} s {mode}: {rate:.0f} units/s", flush=True)
    print(table(read_rows(chosen.table or chosen.json)))


if __name__ == "__main__":
    main()
