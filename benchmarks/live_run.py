"""A live run for a benchmark: a scenario and its jobs, run in a folder of their own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.table import write_table


@contextlib.contextmanager
def live_run(scenario: str, jobs: Sequence[Job], policy: str, core_rate: float | None = None) -> Iterator[Path]:
    """Run the jobs by a scenario whose trace is `jobs.csv`; yield the run directory, which is removed afterwards.

    The work of the jobs is sized by `core_rate`, units per second of a core; by default each run measures this rate. A
    run that fails ends the benchmark with the last output of the run.
    """
    if core_rate is not None:
        scenario = scenario.replace("[programs]\n", f"[programs]\nunits_per_core_s = {core_rate}\n")
    with tempfile.TemporaryDirectory(prefix="dfrs-bench-") as name:
        folder = Path(name)
        (folder / "scenario.toml").write_text(scenario)
        write_table(folder / "jobs.csv", jobs)
        command = [sys.executable, "-m", "testbed", "run", "scenario.toml", "--policy", policy, "--out", "runs"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        (run,) = (folder / "runs").iterdir()
        yield run


def measured_core_rate(scenario: str, policy: str, job: Job) -> float:
    """Return the work units per second of a core: the highest rate that three runs of a serial job measure.

    Each run measures the rate before it begins. Rates differ by a fifth, so compared runs need the same one. The
    maximum is used because other load on the machine makes a core slower, never faster.
    """
    found = []
    for _ in range(3):
        with live_run(scenario, [job], policy) as run:
            (rate,) = json.loads((run / "manifest.json").read_text())["units_per_core_s"].values()
            found.append(float(rate))
    return max(found)
