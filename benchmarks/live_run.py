"""A live run for a benchmark: a scenario and its jobs, run in a folder of their own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.table import write_table


@contextlib.contextmanager
def live_run(scenario: str, jobs: Sequence[Job], policy: str) -> Iterator[Path]:
    """Run the jobs by a scenario whose trace is `jobs.csv`; yield the run directory, which is removed afterwards.

    A run that fails ends the benchmark, with the end of what the run has said.
    """
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
