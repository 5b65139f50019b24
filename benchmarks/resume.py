"""Kill the controller of a run in each phase of its work, resume the run, and print blind and recovery times.

    python benchmarks/resume.py --times 5 --json resume.json --keep kept

Each repetition is a run of twelve jobs on two nodes of this machine, eight of one task and four of two, under a policy
that interrupts each job once and resumes it with its nodes swapped. Blind time: from the last sign of life of the
killed controller until the next one has asked every node. Recovery: from the start of `testbed resume` until then, and
until the first decision after it.

The exit code is 1 if not all jobs of a run were done with correct results; `--keep` copies the directory of such a run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lab import print_machine

from testbed.measure.rundir import read_journal

SUPPORT = Path(__file__).resolve().parent.parent / "tests" / "support" / "control"
PHASES: dict[str, dict[str, object]] = {
    "idle": {"kind": "job", "state": "submitted"},
    "starting": {"kind": "intent", "verb": "start", "nth": 4},
    "saving": {"kind": "intent", "verb": "save", "nth": 3},
    "transferring": {"kind": "intent", "verb": "transfer", "nth": 2},
    "restoring": {"kind": "intent", "verb": "restore", "nth": 2},
    "running": {"kind": "guest", "event": "progress", "nth": 5},
}
SCENARIO = """
name = "resume"
policy = "Interrupting"
on_controller_loss = "keep"
recorders = ["killing"]
period_s = 60
time_scale = 60
[programs]
units_per_core_s = 50000.0
iteration_s = 0.03
[workload]
trace = "jobs.csv"
[[nodes]]
name = "node-a"
memory_mib = 512
[[nodes]]
name = "node-b"
memory_mib = 512
"""
JOBS = "job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s\n" + "".join(
    f"{job},{5 * job},{1 + job % 2},1.0,0.2,30\n" for job in range(1, 13)
)


def install(folder: Path, module: str, entry_point: str) -> None:
    """Install a plug-in of one module of the tests in a folder."""
    about = folder / f"dfrs_{module}-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(SUPPORT / f"{module}.py", folder / f"dfrs_{module}.py")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dfrs_{module}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entry_point)


def repeat(phase: str, victim: str, keep: Path | None) -> dict[str, object]:
    """Kill and resume one run; return its measures. The directory of a run that failed is copied to `keep`."""
    with tempfile.TemporaryDirectory(prefix="dfrs-r") as name:
        folder = Path(name)
        install(folder / "site", "interrupting", "[testbed.policies]\nInterrupting = dfrs_interrupting:interrupting\n")
        install(folder / "site", "killing", "[testbed.recorders]\nkilling = dfrs_killing:Killing\n")
        (folder / "resume.toml").write_text(SCENARIO)
        (folder / "jobs.csv").write_text(JOBS)
        kill: dict[str, object] = {**PHASES[phase]}
        if victim != "controller":
            kill["agent_of"] = "node-a"
        env = {**os.environ, "PYTHONPATH": str(folder / "site"), "DFRS_KILL_AT": json.dumps(kill)}
        code = _testbed(folder, env, "run", "resume.toml")
        (run,) = (folder / "runs").iterdir()
        began_s = time.time()
        if victim == "controller":
            del env["DFRS_KILL_AT"]
            code = _testbed(folder, env, "resume", str(run))
        summary = json.loads((run / "summary.json").read_text())
        found: dict[str, object] = {
            "victim": victim, "phase": phase, "exit": code, "done": summary["done"], "jobs": summary["jobs"],
            "right": summary["results"]["right"],
        }  # fmt: skip
        if keep is not None and not is_whole(found):
            shutil.copytree(run, keep / f"{victim}-{phase}-{run.name}")
        return found | (_times(run, began_s) if victim == "controller" else {})


def is_whole(row: dict[str, object]) -> bool:
    """Return whether all jobs of a run are done with correct results."""
    return row["exit"] == 0 and row["done"] == row["jobs"] == row["right"]


def _testbed(folder: Path, env: dict[str, str], *command: str) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "testbed", *command], cwd=folder, env=env, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return done.returncode


def _times(run: Path, began_s: float) -> dict[str, object]:
    anchor_ns = json.loads((run / "manifest.json").read_text())["clocks"]["anchor_unix_ns"]
    entries = read_journal(run / "events.jsonl")
    place, recovered = next(each for each in enumerate(entries) if each[1]["kind"] == "recovered")
    decided_s = next((float(str(later["t_s"])) for later in entries[place:] if later["kind"] == "decision"), None)
    since_s = began_s - anchor_ns / 1e9  # both by the wall clock
    return {
        "blind_s": recovered["blind_s"], "recover_s": round(float(str(recovered["t_s"])) - since_s, 3),
        "decide_s": None if decided_s is None else round(decided_s - since_s, 3),
        "adopted": recovered.get("adopted", []), "carried_on": recovered.get("carried_on", []),
    }  # fmt: skip


def main() -> None:
    """Measure, print a table, and write the raw figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3, help="repetitions per phase")
    parser.add_argument("--victims", default="controller,agent", help="what is killed")
    parser.add_argument("--phases", default=",".join(PHASES), help="phases in which the controller or agent is killed")
    parser.add_argument("--json", type=Path, help="file for the raw figures")
    parser.add_argument("--keep", type=Path, help="folder for the directories of failed runs")
    chosen = parser.parse_args()
    found: list[dict[str, object]] = []
    print_machine()
    print(f"{'killed':12}{'while':14}{'12 of 12':>10}{'blind s':>18}{'to decision s':>18}")
    for victim in chosen.victims.split(","):
        for phase in chosen.phases.split(","):
            rows = [repeat(phase, victim, chosen.keep) for _ in range(chosen.times)]
            found += rows
            whole = sum(map(is_whole, rows))
            times = f"{_spread(rows, 'blind_s'):>18}{_spread(rows, 'decide_s'):>18}"
            print(f"{victim:12}{phase:14}{whole:>6}/{len(rows)}{times}", flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    if not all(map(is_whole, found)):
        raise SystemExit(1)


def _spread(rows: list[dict[str, object]], name: str) -> str:
    values = sorted(float(str(row[name])) for row in rows if row.get(name) is not None)
    return f"{statistics.median(values):.1f} ({values[0]:.1f}-{values[-1]:.1f})" if values else ""


if __name__ == "__main__":
    main()
