"""Run times of jobs on a dedicated cluster, over those of the trace: `python benchmarks/dedicated.py [--repeats 5]`.

Each job runs alone on the cluster at full yield. `work` is from the first progress to the end, `all` from the
submission to the end, start-up included, both divided by run time / time scale. Goal: within 0.95 .. 1.05 for work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

from lab import print_machine, print_table

from testbed.control.session import run_session
from testbed.lab.bring_up import live_lab
from testbed.measure.rundir import read_journal
from testbed.scenario.schema import check_scenario
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.workload.jobs import Job

RUN_S, GAP_S = 8.0, 13.0


class Silent:
    """A display that shows nothing."""

    def line(self, trace_s: float, text: str) -> None:
        """Show nothing."""

    def show(self, snapshot: object) -> None:
        """Show nothing."""


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single measurement there")
    options = parser.parse_args()
    repeats = options.repeats
    kinds = {"eatcpu, need 1.0": (1, 1.0), "eatcpu, need 0.25": (1, 0.25), "patterns, 2 nodes": (2, 1.0)}
    jobs, names = [], {}
    for repeat in range(repeats):
        for number, (kind, (tasks, need)) in enumerate(kinds.items()):
            job_id = repeat * len(kinds) + number
            jobs.append(Job(job_id, job_id * GAP_S, tasks, need, 0.2, RUN_S))
            names[job_id] = kind
    table = {"name": "dedicated", "policy": "FCFS", "workload": {}, "nodes": [{"name": "node-a"}, {"name": "node-b"}]}
    scenario = check_scenario(table, Path("bench"))
    print_machine()
    with tempfile.TemporaryDirectory(prefix="dfrs-bench-") as folder:
        path = Path(folder) / "run"
        result = await run_session(scenario, parse("FCFS"), jobs, path, live_lab, Silent())
        journal = read_journal(path / "events.jsonl")
    begun: dict[int, float] = {}
    work: dict[str, list[float]] = {}
    whole: dict[str, list[float]] = {}
    for entry in journal:
        if entry["kind"] == "guest" and entry["event"] == "progress":
            begun[int(str(entry["job"]))] = float(str(entry["t_s"]))
        elif entry["kind"] == "job" and entry["state"] == "done":
            job = int(str(entry["job"]))
            work.setdefault(names[job], []).append((float(str(entry["t_s"])) - begun[job]) / RUN_S)
            whole.setdefault(names[job], []).append((float(str(entry["trace_s"])) - job * GAP_S) / RUN_S)
    rows = [
        (
            kind,
            len(work[kind]),
            min(work[kind]),
            sum(work[kind]) / len(work[kind]),
            max(work[kind]),
            sum(whole[kind]) / len(whole[kind]),
        )
        for kind in kinds
    ]
    print_table(
        f"Measured / expected, jobs of {RUN_S:g} s alone ({result.summary['done']} of {len(jobs)} done)",
        ("job", "n", "work min", "mean", "max", "all, mean"),
        rows,
    )
    if options.json is not None:
        options.json.write_text(json.dumps({"work": work, "whole": whole}, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
