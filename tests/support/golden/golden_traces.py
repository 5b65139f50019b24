"""The traces of the golden schedules: synthetic, of a real log, and of the scenario that users run first."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path

from click.testing import CliRunner

from testbed.cli.trace import trace as trace_command
from testbed.scenario.jobs import load_jobs
from testbed.scenario.schema import load_scenario
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.readings import find_reading
from testbed.scheduling.workload.segments import WEEK_S, Week, Window, cut
from testbed.scheduling.workload.swf import read_records
from testbed.scheduling.workload.trace import load_trace, save_trace

SCENARIO = Path(__file__).parents[3] / "scenarios" / "quickstart.toml"
HPC2N = "HPC2N-2002-2.2-cln.swf.gz"
KTH = "KTH-SP2-1996.swf.gz"
HPC2N_WEEKS = (1, 2, 3, 5)  # 135, 192, 559 and 118 jobs: the kernels simulate them in about a second as plain Python

FindLog = Callable[[str], Path]  # returns the path of a log of the Parallel Workloads Archive


@dataclass(frozen=True, slots=True)
class GoldenTrace:
    """Jobs and the cluster that they are simulated on."""

    jobs: list[Job]
    nodes: int


def lublin() -> GoldenTrace:
    """Return a trace of the Lublin-Feitelson model as `testbed trace generate` writes it.

    Under this load memory is scarce for hours, so policies that can preempt do so.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        words = f"generate lublin --nodes 16 --jobs 150 --seed 4 --load 1.2 --out {path}".split()
        CliRunner().invoke(trace_command, words, catch_exceptions=False)
        return GoldenTrace(load_trace(path), 16)


def kth(find_log: FindLog) -> GoldenTrace:
    """Return two days of the log of KTH, with the estimates of its users."""
    begin_s, length_s = 5 * WEEK_S, 2 * 86_400
    jobs = _early_jobs(find_log(KTH), "processors-estimates", begin_s + length_s)
    return GoldenTrace(cut(jobs, Window(begin_s, length_s)), 100)


def kth_weeks(find_log: FindLog) -> GoldenTrace:
    """Return the first twelve weeks of the log of KTH, 5,599 jobs: batch policies simulate them in half a second."""
    return GoldenTrace(_early_jobs(find_log(KTH), "processors-estimates", 12 * WEEK_S), 100)


def quickstart() -> GoldenTrace:
    """Return the trace of the quickstart scenario."""
    scenario = load_scenario(SCENARIO)
    return GoldenTrace(list(load_jobs(scenario, SCENARIO)), len(scenario.nodes))


def hpc2n_weeks(find_log: FindLog) -> dict[str, GoldenTrace]:
    """Return some weeks of the log of HPC2N under the reading of [RR 5.3.1], by name."""
    jobs = _early_jobs(find_log(HPC2N), "hpc2n", (max(HPC2N_WEEKS) + 1) * WEEK_S)
    return {f"week-{index}": GoldenTrace(cut(jobs, Week(index)), 120) for index in HPC2N_WEEKS}


def _early_jobs(path: Path, reading: str, end_s: float) -> list[Job]:
    """Return the jobs of a log that were submitted before `end_s`.

    The log is sorted by submission, so the rest need not be read: the whole log of HPC2N takes ten seconds.
    """
    records = takewhile(lambda record: record.submit_time_s < end_s, read_records(path))
    return find_reading(reading)(records, str(path))


def trace_figures(trace: GoldenTrace) -> dict[str, object]:
    """Return the digest of the job table of a trace, and figures by which a reader recognises the trace."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        save_trace(path, trace.jobs)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    first, last = (
        {name: value for name, value in asdict(job).items() if value is not None}
        for job in (trace.jobs[0], trace.jobs[-1])
    )
    return {
        "nodes": trace.nodes, "jobs": len(trace.jobs), "tasks": sum(job.tasks for job in trace.jobs),
        "job_table_sha256": digest, "first_job": first, "last_job": last,
    }  # fmt: skip
