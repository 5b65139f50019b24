"""Latency from a guest's event to the caps that follow from it, in real runs: `python benchmarks/latency.py RUN...`.

The latencies come from the journals of finished runs. A job's last guest reports its end, the policy takes a decision,
and each cap of that decision is set on all nodes of its job and read back. The latency is the time from the journal
line of that guest's event to the line of the cap's outcome, by the controller's clock. So it includes the transport of
the command and of the reply, but not that of the event. A cap of a job with another operation under way at the decision
waits for that operation by design; such caps are counted separately. Goals: 20 ms in the median, 50 ms at the 99th
percentile.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intervals import interval
from lab import percentile, print_table

from testbed.measure.rundir import read_journal

GOALS_MS = {"p50": 20.0, "p99": 50.0}


@dataclass
class Latencies:
    """Milliseconds from an event to a cap, over some runs."""

    direct_ms: list[float]
    held_up_ms: list[float]
    failed: int = 0


def latencies(journal: Sequence[Mapping[str, Any]]) -> Latencies:
    """Return the latencies of one run's caps that follow from ends of jobs."""
    told_s: dict[int, float] = {}  # when the last guest's end was reported, by job
    cause_s = 0.0  # time of the cause of the newest decision, 0 if the cause is not the end of a job
    under_way: dict[int, int] = defaultdict(int)  # number of operations, by job
    begun: dict[int, tuple[float, bool]] = {}  # caps by action: time of their cause, whether they had to wait
    busy_jobs: set[int] = set()
    found = Latencies([], [])
    for entry in journal:
        match entry["kind"]:
            case "guest" if entry["event"] in ("done", "failed"):
                told_s[entry["job"]] = entry["t_s"]
            case "decision":
                ended = entry["event"]["completed"]
                cause_s = max((told_s[job] for job in ended if job in told_s), default=0.0)
                busy_jobs = {job for job, count in under_way.items() if count}
            case "intent":
                under_way[entry["job"]] += 1
                if entry["verb"] == "cap" and cause_s:
                    begun[entry["action"]] = cause_s, entry["job"] in busy_jobs
            case "outcome":
                under_way[entry["job"]] -= 1
                if entry["action"] in begun:
                    since_s, held_up = begun.pop(entry["action"])
                    if not entry["ok"]:
                        found.failed += 1
                    else:
                        (found.held_up_ms if held_up else found.direct_ms).append(1000 * (entry["t_s"] - since_s))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories; pooled by driver")
    parser.add_argument("--out", type=Path, help="results as JSON")
    options = parser.parse_args()
    pooled: dict[str, Latencies] = {}
    runs: dict[str, int] = defaultdict(int)
    for run in options.runs:
        manifest = json.loads((run / "manifest.json").read_text())
        driver = ", ".join(sorted({node["driver"] for node in manifest["scenario"]["nodes"]}))
        one, all_of_them = latencies(read_journal(run / "events.jsonl")), pooled.setdefault(driver, Latencies([], []))
        all_of_them.direct_ms += one.direct_ms
        all_of_them.held_up_ms += one.held_up_ms
        all_of_them.failed += one.failed
        runs[driver] += 1
    rows, results = [], []
    for driver, found in pooled.items():
        for kind, values in (("direct", found.direct_ms), ("held up", found.held_up_ms)):
            if not values:
                continue
            low, high = interval(values)
            p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
            rows.append((driver, kind, runs[driver], len(values), p50, f"{low:.2f} .. {high:.2f}", p99, max(values)))
            results.append({
                "driver": driver, "kind": kind, "runs": runs[driver], "n": len(values), "p50_ms": p50,
                "p50_interval_ms": [low, high], "p99_ms": p99, "max_ms": max(values), "goals_ms": GOALS_MS,
                "failed": found.failed,
            })  # fmt: skip
    heads = ("driver", "caps", "runs", "n", "p50 ms", "interval of it", "p99 ms", "max ms")
    print_table("From a guest's event to a cap that follows from it", heads, rows)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
