"""A run of two jobs that takes some seconds: a scenario of two nodes of processes, and its trace."""

from __future__ import annotations

from pathlib import Path

from support.deadlines import PATIENT_TOML

_SCENARIO = """
name = "short"
policy = "FCFS"
time_scale = 60
[programs]
calibration_s = 0.5
[workload]
trace = "short.csv"
[[nodes]]
name = "node-a"
cpus = 0.5
[[nodes]]
name = "node-b"
cpus = 0.5
"""
_JOBS = """job_id,submit_time_s,tasks,cpu_need_frac,mem_req_frac,run_time_s
1,0,1,1.0,0.1,60
2,1,2,1.0,0.1,60
"""


def write_short_run(folder: Path) -> None:
    """Write `short.toml` and its trace `short.csv` into a folder."""
    (folder / "short.toml").write_text(_SCENARIO + PATIENT_TOML)
    (folder / "short.csv").write_text(_JOBS)
