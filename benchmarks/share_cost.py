"""Cost of the exchange of shares for an agent with eight guests: `python benchmarks/share_cost.py --repeats 5`.

    python benchmarks/share_cost.py --repeats 5 --json share-cost.jsonl
    python benchmarks/share_cost.py --table share-cost.jsonl

Two jobs of eight tasks run on two nodes, so each node has eight guests, four of each job. The agents themselves report
their CPU time and their messages about shares, while all guests work. `none` is the same run without exchange: the
difference to it is the cost of the exchange. Goal: at most 1.5 % of a core in total. The same work takes more CPU time
on a slower core: each row has the speed of the cores that the agents measured meanwhile. The modes come in random order
within each repeat. The file gets a line per agent and run; runs that are in it are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from cases import missing, options
from intervals import interval_text
from lab import print_machine
from live_run import live_run
from rows import add_rows, read_rows
from tables import markdown

from testbed.measure.line_protocol import parse_line
from testbed.measure.rundir import read_journal
from testbed.scheduling.workload.jobs import Job

MODES = ("none", "distributed", "bank")
NODES, JOBS, TASKS = 2, 2, 8
WORK_S, SETTLE_S = 90.0, 5.0
TARGET_PERCENT = 1.5
SCENARIO = """
name = "share-cost"
policy = "DPS/none"
[workload]
trace = "jobs.csv"
[programs]
topologies = ["linear"]
imbalance = "1/i"
iteration_s = 0.2
""" + "".join(
    f'[[nodes]]\nname = "node-{node}"\ncpus = 0.9\ncpu_set = [{node}]\nmemory_mib = 1024\n' for node in range(NODES)
)


def measure(mode: str) -> list[dict[str, object]]:
    """Run one case; return the measures of each node's agent."""
    jobs = [Job(number, 0.0, TASKS, 0.1, 0.1, WORK_S) for number in range(1, JOBS + 1)]
    with live_run(SCENARIO, jobs, f"DPS/{mode}") as run:
        begin_ns, end_ns = at_work(run)
        return [{"node": node, **found} for node, found in agents(run, begin_ns, end_ns).items()]


def at_work(run: Path) -> tuple[int, int]:
    """Return the time span in which all guests worked, in wall nanoseconds."""
    first: dict[object, float] = {}
    ends = []
    for entry in read_journal(run / "events.jsonl"):
        if entry["kind"] != "guest":
            continue
        at_s = float(str(entry["t_s"]))
        if entry["event"] == "progress":
            first.setdefault((entry["job"], entry["task"]), at_s)
        elif entry["event"] in ("ended", "done"):
            ends.append(at_s)
    if len(first) != JOBS * TASKS:
        raise SystemExit(f"{len(first)} guests have worked: expected {JOBS * TASKS}")
    begin_ns = int(json.loads((run / "manifest.json").read_text())["clocks"]["anchor_unix_ns"])
    return begin_ns + int((max(first.values()) + SETTLE_S) * 1e9), begin_ns + int(min(ends) * 1e9)


def agents(run: Path, begin_ns: int, end_ns: int) -> dict[str, dict[str, object]]:
    """Return CPU time and messages per second of each agent between two times."""
    points: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for line in (run / "points.lp").read_text().splitlines():
        point = parse_line(line)
        if point.measurement == "node" and begin_ns <= point.time_ns <= end_ns:
            fields = {name: float(value) for name, value in point.fields.items() if not isinstance(value, str)}
            points.setdefault(point.tags["node"], []).append((point.time_ns, fields))
    found: dict[str, dict[str, object]] = {}
    for node, seen in points.items():
        (from_ns, before), (to_ns, after) = seen[0], seen[-1]
        for_s = (to_ns - from_ns) / 1e9
        found[node] = {
            "for_s": for_s,
            "cpu_percent": 100 * (after["agent_cpu_s"] - before["agent_cpu_s"]) / for_s,
            "sent_per_s": (after.get("exchange_sent", 0.0) - before.get("exchange_sent", 0.0)) / for_s,
            "received_per_s": (after.get("exchange_received", 0.0) - before.get("exchange_received", 0.0)) / for_s,
            "core_units_per_s": median(fields["core_units_per_s"] for _, fields in seen),
            "load_1_min": os.getloadavg()[0],
        }
    return found


def table(rows: Sequence[dict[str, object]]) -> str:
    """Return medians with their intervals by mode; each agent of each run is a value."""
    lines = []
    for mode in MODES:
        found = [row for row in rows if row["mode"] == mode]
        if not found:
            continue
        cpu = [float(str(row["cpu_percent"])) for row in found]
        sent, received = (median(float(str(row[f"{way}_per_s"])) for row in found) for way in ("sent", "received"))
        speed = f"{median(float(str(row['core_units_per_s'])) for row in found):,.0f}"
        cells = (f"{median(cpu):.2f}", interval_text(cpu, ".2f"), f"{sent:.2f}", f"{received:.2f}", speed)
        lines.append((mode, str(len(found)), *cells))
    cpu_of = "CPU of an agent, % of a core"
    head = ("mode", "n", cpu_of, "95 % interval", "messages sent per s", "received per s", "core speed, units/s")
    return markdown(head, lines)


def main() -> None:
    """Run the missing cases, and print the table."""
    parser = options(__doc__, "share-cost.jsonl")
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    if chosen.table is None:
        print_machine()
        repeats = range(chosen.first, chosen.first + chosen.repeats)
        cases = [{"repeat": repeat, "mode": mode} for repeat in repeats for mode in MODES]
        for case in missing(chosen.json, cases, "repeat"):
            rows = [case | found for found in measure(case["mode"])]
            add_rows(chosen.json, rows)
            shown = ", ".join(f"{row['cpu_percent']:.2f} %" for row in rows)
            print(f"{case['repeat']}: {case['mode']}: {shown}", flush=True)
    rows = read_rows(chosen.table or chosen.json)
    print(table(rows))
    above = [row for row in rows if row["mode"] != "none" and float(str(row["cpu_percent"])) > TARGET_PERCENT]
    print(f"goal of {TARGET_PERCENT} %: {'missed in ' + str(len(above)) + ' values' if above else 'met in all values'}")


if __name__ == "__main__":
    main()
