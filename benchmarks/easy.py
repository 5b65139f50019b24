"""Batch policies over a whole log: `python benchmarks/easy.py LOG --nodes 120 [--reading hpc2n] [--repeats 9]`.

Times are CPU seconds of the process. A simulation begins with the jobs of the log and ends with their schedule. The
floor is work that every simulation of these jobs has to do: making arrays of their four columns, and reading these once
in compiled code. Peak memory is that of the whole process so far, including the reading of the log and the compiler.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from intervals import ratio_of_medians

from testbed.scheduling.compiler import fastest, kernel
from testbed.scheduling.policies.backfill import is_queue
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.view import Floats, Ints
from testbed.scheduling.simulation.batch import schedule_batch
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.trace import load_trace


@kernel
def read_once(submit_time_s: Floats, run_time_s: Floats, estimate_s: Floats, tasks: Ints) -> float:
    total = 0.0
    for row in range(tasks.size):
        total += submit_time_s[row] + (run_time_s[row] + estimate_s[row]) * tasks[row]
    return total


def floor(jobs: Sequence[Job]) -> float:
    count = len(jobs)
    return fastest(read_once)(
        np.fromiter((job.submit_time_s for job in jobs), np.float64, count),
        np.fromiter((job.run_time_s for job in jobs), np.float64, count),
        np.fromiter((job.batch_estimate_s for job in jobs), np.float64, count),
        np.fromiter((job.tasks for job in jobs), np.int64, count),
    )


def cpu_s(act: Callable[[], object]) -> float:
    began_s = time.process_time()
    act()
    return time.process_time() - began_s


def peak_mib() -> str:
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--reading", help="for SWF logs, as in `testbed trace convert`")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()

    rows: list[Sequence[object]] = [("start and imports", time.process_time(), "", "", "", "", peak_mib())]
    began_s = time.process_time()
    everything = load_trace(options.log, options.reading)
    took_s = time.process_time() - began_s
    rows.append(("log read as jobs", took_s, f"{len(everything) / took_s:,.0f}", "", "", "", peak_mib()))
    jobs = [job for job in everything if job.tasks <= options.nodes]
    policies = [policy for name in ("FCFS", "EASY", "EASY/2011") if is_queue(policy := parse(name))]
    took_s = cpu_s(lambda: (floor(jobs[:10]), schedule_batch(jobs[:10], options.nodes, policies[0])))
    rows.append(("kernels compiled, or from cache", took_s, "", "", "", "", peak_mib()))

    floors = [cpu_s(lambda: floor(jobs)) for _ in range(options.repeats)]
    rows.append(("floor", median(floors), f"{len(jobs) / median(floors):,.0f}", "1", "", "", peak_mib()))
    for policy in policies:
        taken: list[float] = []
        for _ in range(options.repeats):
            began_s = time.process_time()
            done = schedule_batch(jobs, options.nodes, policy)
            taken.append(time.process_time() - began_s)
        ratio, low, high = ratio_of_medians(taken, floors)
        rows.append(
            (
                policy.name,
                median(taken),
                f"{len(jobs) / median(taken):,.0f}",
                f"{ratio:.2f} ({low:.2f} .. {high:.2f})",
                f"{done.decisions:,}",
                f"{done.decide_total_s / done.decisions * 1e6:.2f}",
                peak_mib(),
            )
        )

    from lab import print_machine, print_table  # noqa: PLC0415  # it loads a live lab, whose memory must not count

    print_machine()
    print_table(
        f"{len(jobs):,} of {len(everything):,} jobs that fit {options.nodes} nodes; median of {options.repeats}",
        ("stage", "CPU s", "jobs / CPU s", "x floor (95 %)", "decisions", "mean decision us", "peak MiB so far"),
        rows,
    )


if __name__ == "__main__":
    main()
