"""Run directories for comparisons: dry runs in virtual time, their copies as repeats, each with one disturbance."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.control.rehearsal import BEST, five_jobs, rehearse
from support.entries import whole
from testbed.scenario.jobs import load_jobs
from testbed.scenario.schema import load_scenario
from testbed.scheduling.workload.jobs import Job

SCENARIO = Path(__file__).parents[3] / "scenarios" / "quickstart.toml"

Entry = dict[str, Any]


def quickstart_jobs() -> list[Job]:
    return list(load_jobs(load_scenario(SCENARIO), SCENARIO))


def dry_run(folder: Path, policy: str = BEST, jobs: Sequence[Job] | None = None, **changes: object) -> Path:
    """Make a dry run of five jobs, or of `jobs`, and return the run directory."""
    folder.mkdir(exist_ok=True)
    result, _ = rehearse(folder, five_jobs() if jobs is None else jobs, policy=policy, **changes)
    return result.path


def repeat(
    source: Path,
    name: str,
    *,
    longer: Callable[[int], float] = lambda _job: 1.0,
    journal: Callable[[list[Entry]], list[Entry]] = lambda entries: entries,
    points: Callable[[list[str]], list[str]] = lambda lines: lines,
    manifest: Callable[[Entry], None] = lambda _manifest: None,
) -> Path:
    """Copy a run, with turnarounds in jobs.csv multiplied by `longer(job)`, and with other changes."""
    target = source.with_name(name)
    shutil.copytree(source, target)
    about = json.loads((target / "manifest.json").read_text())
    about["run_tag"] = name
    manifest(about)
    (target / "manifest.json").write_text(json.dumps(about))
    entries = [json.loads(line) for line in (target / "events.jsonl").read_text().splitlines()]
    entries = journal([entry | ({"run_tag": name} if entry["kind"] == "begin" else {}) for entry in entries])
    (target / "events.jsonl").write_text("".join(json.dumps(whole(entry)) + "\n" for entry in entries))
    lines = points((target / "points.lp").read_text().splitlines())
    (target / "points.lp").write_text("".join(f"{line}\n" for line in lines))
    with (target / "jobs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        submit_s, end_s = float(row["submit_time_s"]), float(row["end_time_s"])
        row["end_time_s"] = str(submit_s + (end_s - submit_s) * longer(int(row["job_id"])))
    with (target / "jobs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return target


def add(**entry: object) -> Callable[[list[Entry]], list[Entry]]:
    """Return a function that inserts an entry into the middle of a journal."""

    def change(entries: list[Entry]) -> list[Entry]:
        middle = len(entries) // 2
        return [*entries[:middle], {"t_s": entries[middle]["t_s"], "trace_s": 0.0, **entry}, *entries[middle:]]

    return change


add_offline = add(kind="node", node="node-0", online=False, reason="no word for 6 s")
