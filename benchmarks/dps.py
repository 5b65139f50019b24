"""The experiment of [DPS] Figure 4, live and simulated: the effect of moving shares on a parallel job.

    python benchmarks/dps.py --repeats 10 --json dps.jsonl --runs runs
    python benchmarks/dps.py --guests --loads 0.1,0.3,0.5 --repeats 10 --json dps-guests.jsonl
    python benchmarks/dps.py --table dps.jsonl

Four nodes of 0.35 cores, two on each CPU. Half of each is booked by a serial job that uses its whole share. A parallel
job of four tasks in a line, where the i-th task has a part 1/i of the work of the first, books 0.1 to 0.5 of each node,
and does the same work in all modes: a CPU time, or work units with `--guests`. Its response time begins when all its
tasks have begun to work. With `--guests` tasks are virtual machines, in a lab that is made and removed. A run in which
a serial job ended before the parallel one had no competition at the end. The table leaves such runs out, and counts
them. Loads and modes come in random order within each repeat. The file gets one line per run; runs that are in it are
skipped. `--runs` keeps the files of each run that `testbed compare` needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cases import check_disk, core_rates, missing, options
from guest_lab import made_lab
from intervals import interval_text, ratio_of_medians
from lab import print_machine
from live_run import live_run, measured_core_rate
from rows import add_rows, read_rows
from tables import markdown

from testbed.lab.boxes import spec_of
from testbed.measure.rundir import read_journal
from testbed.scenario.schema import load_scenario
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.simulation.ranks import SharingModel
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job

MODES = ("none", "distributed", "bank")
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5)
NODES, NODE_CORES = 4, 0.35
WORK_S = 15.0  # work of the first task, in seconds alone on its node
PARALLEL = 5  # the id of the parallel job
BOOT_S = 60.0  # about the longest time that a virtual machine takes to boot beside another one
SERIAL_FACTOR = 2.4  # run time of serial jobs, at half of a node, over the time that the parallel job takes beside them
MODEL = SharingModel(("linear",), "1/i")
KEPT = ("jobs.csv", "summary.json", "manifest.json", "events.jsonl")
NOT_KEPT = ("superstep,", "bus,")  # most of a run's points; `testbed compare` does not need them


def scenario(lab: str | None) -> str:
    """Return the scenario: of processes, or of virtual machines in a lab."""
    head = 'name = "dps"\npolicy = "DPS/none"\n'
    tables = """
[workload]
trace = "jobs.csv"
[programs]
topologies = ["linear"]
imbalance = "1/i"
iteration_s = 2
"""
    node, memory_mib = "", 320
    if lab is None:
        tables += 'work = "cpu-time"\n'  # does not depend on the speed of the cores, which changes during a run
    else:
        head += f'lab = "{lab}"\n'
        tables += '[box]\nguest_network = "10.77.0.0/16"\n[deadlines]\ncommand_s = 300\nannounce_s = 60\n'
        node, memory_mib = 'driver = "libvirt"\n', 640
    return head + tables + "".join(
        f'[[nodes]]\nname = "node-{number}"\n{node}cpus = {NODE_CORES}\ncpu_set = [{number * 2 // NODES}]\n'
        f"memory_mib = {memory_mib}\n"
        for number in range(NODES)
    )  # fmt: skip


def jobs(load: float, serial_s: float) -> list[Job]:
    """Return the jobs: the serial ones first."""
    serial = [Job(number, 0.0, 1, 0.5, 0.3, serial_s) for number in range(1, NODES + 1)]
    return [*serial, Job(PARALLEL, 1.0, NODES, load, 0.3, WORK_S / load)]


def simulated_s(load: float, mode: str) -> float:
    """Return the simulated response time."""
    found = simulate(jobs(load, 1e6), NODES, parse(f"DPS/{mode}"), sharing=MODEL)
    return float(found.end_s[-1] - found.start_s[-1])


def live(load: float, mode: str, lab: str | None, core_rate: float, keep: Path | None) -> dict[str, object]:
    """Run one case; return its measures. The files that `testbed compare` needs are copied to the folder `keep`."""
    serial_s = SERIAL_FACTOR * simulated_s(load, "none") + (0.0 if lab is None else BOOT_S)
    with live_run(scenario(lab), jobs(load, serial_s), f"DPS/{mode}", core_rate) as run:
        if keep is not None:
            keep.mkdir(parents=True)
            for each in KEPT:
                shutil.copy(run / each, keep)
            lines = (run / "points.lp").read_text().splitlines(keepends=True)
            (keep / "points.lp").write_text("".join(line for line in lines if not line.startswith(NOT_KEPT)))
        response_s, ends_s = times(read_journal(run / "events.jsonl"))
        summary = json.loads((run / "summary.json").read_text())
        return {
            "response_s": response_s, "units_per_core_s": core_rate,
            "alone_s": max(0.0, ends_s[PARALLEL] - min(ends_s.values())),  # without one of the serial jobs
            "done": summary["done"], "jobs": summary["jobs"], "right": summary["results"]["right"],
            "doubtful": len(summary["results"].get("doubtful", [])), "load_1_min": os.getloadavg()[0],
        }  # fmt: skip


def times(journal: Sequence[dict[str, Any]]) -> tuple[float, dict[int, float]]:
    """Return the response time of the parallel job, and when each job ended.

    The time is measured from the moment when the last of its tasks has reported its first progress, to the end. It is
    scaled by all work over the work in between, because the first iteration is not sampled, and takes seconds if shares
    are small.
    """
    first: dict[int, tuple[float, int]] = {}
    last: dict[int, int] = {}
    ends_s: dict[int, float] = {}
    for entry in journal:
        if entry["kind"] != "guest":
            continue
        if entry["event"] == "progress" and entry["job"] == PARALLEL:
            first.setdefault(entry["task"], (entry["t_s"], entry["detail"]["units"]))
        elif entry["event"] == "done":
            ends_s[entry["job"]] = entry["t_s"]
            if entry["job"] == PARALLEL:
                last[entry["task"]] = entry["detail"]["units"]
    began_s, task, units = max((at_s, task, units) for task, (at_s, units) in first.items())
    return (ends_s[PARALLEL] - began_s) * last[task] / (last[task] - units), ends_s


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return response times by load and mode with intervals, their reduction by the exchange, and simulated ones."""
    lines = []
    head = (
        "CPU a node",
        "mode",
        "n",
        "left out",
        "response s",
        "95 % interval",
        "cut",
        "interval",
        "simulated s",
        "cut",
    )
    for load in LOADS:
        cases = {mode: [row for row in rows if (row["load"], row["mode"]) == (load, mode)] for mode in MODES}
        found = {mode: [row["response_s"] for row in case if not row["alone_s"]] for mode, case in cases.items()}
        for mode in MODES:
            if not found[mode]:
                continue
            n, cuts = len(found[mode]), ["", "", f"{simulated_s(load, mode):.1f}", ""]
            cells = [f"{load:g}", mode, str(n), str(len(cases[mode]) - n), f"{statistics.median(found[mode]):.1f}",
                     interval_text(found[mode], ".1f"), *cuts]  # fmt: skip
            if mode != "none" and found["none"]:
                ratio, least, most = ratio_of_medians(found[mode], found["none"])
                cells[6], cells[7] = f"{1 - ratio:.1%}", f"{1 - most:.1%} to {1 - least:.1%}"
                cells[9] = f"{1 - simulated_s(load, mode) / simulated_s(load, 'none'):.1%}"
            lines.append(cells)
    return markdown(head, lines)


def main() -> None:
    """Run the missing cases, and print the table."""
    parser = options(__doc__, "dps.jsonl")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--loads", default=",".join(map(str, LOADS)), help="CPU booked on each node")
    parser.add_argument("--guests", action="store_true", help="virtual machines; needs root")
    parser.add_argument("--runs", type=Path, help="folder in which runs are kept, as LOAD/MODE-REPEAT")
    chosen = parser.parse_args()
    if chosen.table is None:
        check_disk()
        print_machine()
        cases = list(missing(chosen.json, [
            {"repeat": chosen.first + number, "load": float(load), "mode": mode}
            for number in range(chosen.repeats) for load in chosen.loads.split(",") for mode in MODES
        ], "repeat"))  # fmt: skip
        with nodes_of_guests() if chosen.guests and cases else contextlib.nullcontext() as lab:
            rates = core_rates(chosen.json)
            if cases and not rates:
                rates = [measured_core_rate(scenario(lab), "DPS/none", Job(1, 0.0, 1, 0.5, 0.3, 5.0))]
                print(f"{rates[0]:.0f} work units per second of a core", flush=True)
            for case in cases:
                repeat, load, mode = case.values()
                keep = None if chosen.runs is None else chosen.runs / f"{load:g}" / f"{load:g}-{mode}-{repeat}"
                row = case | live(load, mode, lab, rates[0], keep)
                add_rows(chosen.json, [row])
                print(f"{repeat}: {load:g} {mode}: {row['response_s']:.1f} s", flush=True)
    print(table(read_rows(chosen.table or chosen.json)))


@contextlib.contextmanager
def nodes_of_guests() -> Iterator[str]:
    """Make the lab of the nodes of virtual machines, and remove it at the end; yield its name."""
    lab = f"dps{os.getpid():x}"
    with tempfile.TemporaryDirectory(prefix="dfrs-dps-") as name:
        path = Path(name) / "lab.toml"
        path.write_text(scenario(lab))
        (path.parent / "jobs.csv").write_text("job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n")
        with made_lab(spec_of(load_scenario(path)), path):
            yield lab


if __name__ == "__main__":
    main()
