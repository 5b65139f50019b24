"""Campaigns for tests: small traces, and policies that need no compiler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.live import HANG_S

ROOT = Path(__file__).parents[3]
SMALL = """
name = "small"
policies = ["FCFS", "EASY", "EQUIPARTITION"]
bound = ["theorem1", "fluid"]
[[traces]]
name = "scaled"
label = "Scaled & tiny"
kind = "lublin"
nodes = 16
jobs = 30
seeds = "1..3"
loads = [0.5, 0.9]
[[traces]]
name = "unscaled"
kind = "lublin"
nodes = 16
jobs = 30
seeds = [1, 2]
[[tables]]
name = "table-2"
title = "[RR] Table 2"
measures = "degradation_theorem1"
[[figures]]
name = "figure-1"
title = "[RR] Figure 1"
x = "load"
measures = "max_stretch"
log_y = true
"""


def write(folder: Path, text: str = SMALL, name: str = "small.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def start(*arguments: object, **settings: str) -> subprocess.Popen[str]:
    """Start the command in a process group of its own, so that the group can be killed."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "testbed", "campaign", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def command(*arguments: object, **settings: str) -> tuple[int, str, str]:
    """Run the command; return exit code, standard output and standard error."""
    process = start(*arguments, **settings)
    try:
        out, err = process.communicate(timeout=HANG_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, out, err
