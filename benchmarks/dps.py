"""The experiment of [DPS] Figure 4, live and simulated: what moving shares does for a parallel job.


    python benchmarks/dps.py --repeats 10 --json dps.jsonl
    python benchmarks/dps.py --table dps.jsonl

Four nodes of 0.35 cores, two on a CPU. Half of each is booked by a serial job that takes all that it gets. A parallel
job of four tasks in a line, where the i-th task has a part 1/i of the work of the first, books 0.1 to 0.5 of each node,
and does the same work in all cases. Loads and modes come in random order within each repeat. The file gets a line for
each run; those that are in it are not run again.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from intervals import interval, ratio_of_medians
from lab import print_machine

from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.ranks import SharingModel
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job

MODES = ("none", "distributed", "bank")
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5)
NODES, NODE_CORES = 4, 0.35
WORK_S = 15.0  # of the first task, alone on its node
PARALLEL = 5  # the id of the parallel job
MODEL = SharingModel(("linear",), "1/i")
SCENARIO = """
name = "dps"
policy = "DPS/none"
[workload]
trace = "jobs.csv"
[programs]
topologies = ["linear"]
imbalance = "1/i"
iteration_s = 0.2
""" + "".join(
    f'[[nodes]]\nname = "node-{node}"\ncpus = {NODE_CORES}\ncpu_set = [{node * 2 // NODES}]\nmemory_mib = 320\n'
    for node in range(NODES)
)


def jobs(load: float, serial_s: float) -> list[Job]:
    """Return the jobs: the serial ones first."""
    serial = [Job(number, 0.0, 1, 0.5, 0.3, serial_s) for number in range(1, NODES + 1)]
    return [*serial, Job(PARALLEL, 1.0, NODES, load, 0.3, WORK_S / load)]


def simulated_s(load: float, mode: str) -> float:
    """Return the response time that the simulation says."""
    found = simulate(jobs(load, 1e6), NODES, parse(f"DPS/{mode}"), sharing=MODEL)
    return float(found.end_s[-1] - found.start_s[-1])


def live(load: float, mode: str) -> dict[str, object]:
    """Run it; return what was measured."""
    serial_s = 3 * simulated_s(load, "none")  # longer than the parallel job takes
    with tempfile.TemporaryDirectory(prefix="dfrs-dps-") as name:
        folder = Path(name)
        (folder / "dps.toml").write_text(SCENARIO)
        with (folder / "jobs.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["job_id", "submit_time_s", "tasks", "cpu_need_frac", "mem_req_frac", "run_time_s"])
            rows.writerows(
                [job.job_id, job.submit_time_s, job.tasks, job.cpu_need_frac, job.mem_req_frac, job.run_time_s]
                for job in jobs(load, serial_s)
            )
        command = [sys.executable, "-m", "testbed", "run", "dps.toml", "--policy", f"DPS/{mode}", "--out", "runs"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        (run,) = (folder / "runs").iterdir()
        with (run / "jobs.csv").open(newline="") as file:
            found = {int(row["job_id"]): row for row in csv.DictReader(file)}
        summary = json.loads((run / "summary.json").read_text())
        ends = {job: float(row["end_time_s"]) for job, row in found.items()}
        return {
            "response_s": ends[PARALLEL] - float(found[PARALLEL]["start_time_s"]),
            "alone_s": max(0.0, ends[PARALLEL] - min(ends.values())),  # without one of the serial jobs
            "done": summary["done"], "jobs": summary["jobs"], "right": summary["results"]["right"],
            "doubtful": len(summary["results"].get("doubtful", [])), "load_1_min": os.getloadavg()[0],
        }  # fmt: skip


def table(rows: Sequence[dict[str, object]]) -> str:
    """Return response times by load and mode with their intervals, what the exchange cuts, and the simulation."""
    lines = ["| CPU a node | mode | n | response s | 95 % interval | cut | interval | simulated s | cut |",
             "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for load in LOADS:
        found = {mode: [float(str(row["response_s"])) for row in rows if (row["load"], row["mode"]) == (load, mode)]
                 for mode in MODES}  # fmt: skip
        for mode in MODES:
            if not found[mode]:
                continue
            low, high = interval(found[mode])
            cells = [f"{load:g}", mode, str(len(found[mode])), f"{statistics.median(found[mode]):.1f}",
                     f"{low:.1f} to {high:.1f}", "", "", f"{simulated_s(load, mode):.1f}", ""]  # fmt: skip
            if mode != "none" and found["none"]:
                ratio, least, most = ratio_of_medians(found[mode], found["none"])
                cells[5], cells[6] = f"{1 - ratio:.1%}", f"{1 - most:.1%} to {1 - least:.1%}"
                cells[8] = f"{1 - simulated_s(load, mode) / simulated_s(load, 'none'):.1%}"
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1, help="number of the first repeat, which is its seed")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--loads", default=",".join(map(str, LOADS)), help="CPU booked on each node")
    parser.add_argument("--json", type=Path, default=Path("dps.jsonl"), help="file for the raw figures, added to")
    parser.add_argument("--table", type=Path, help="only print the table of this file")
    chosen = parser.parse_args()
    if chosen.table is None:
        if shutil.disk_usage(".").free < 1 << 30:
            raise SystemExit("expected 1 GiB of free disk")
        print_machine()
        known = _read(chosen.json)
        there = {(row["repeat"], row["load"], row["mode"]) for row in known}
        for repeat in range(chosen.first, chosen.first + chosen.repeats):
            cases = [(float(load), mode) for load in chosen.loads.split(",") for mode in MODES]
            random.Random(repeat).shuffle(cases)  # noqa: S311  # an order
            for load, mode in cases:
                if (repeat, load, mode) in there:
                    continue
                row = {"repeat": repeat, "load": load, "mode": mode, **live(load, mode)}
                with chosen.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{repeat}: {load:g} {mode}: {row['response_s']:.1f} s", flush=True)
    print(table(_read(chosen.table or chosen.json)))


def _read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
