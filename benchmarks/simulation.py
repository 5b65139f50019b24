"""Speed of simulated policies: `python benchmarks/simulation.py [--traces 10] [--large 10000]`.

Times are CPU seconds of the process, with compiled code already loaded. Traces are unscaled ones of the
Lublin-Feitelson model, 1000 jobs on 128 nodes, with the needs of [RR 5.3.2] and a rescheduling penalty of 300 s. The
floor of a trace is FCFS on it: the same jobs as arrays, the same result, and decisions of almost no cost. Decision
times are wall times by the monotonic clock within the loop. The last table is the second of two passes that pack all
jobs at the same time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import fmean, median

import numpy as np
from intervals import ratio_of_medians

from testbed.scheduling.bound.max_stretch import bound
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.loading import use_compiled
from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Event, JobState
from testbed.scheduling.simulation.simulate import simulate
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.synthetic import synthetic_trace

NODES = 128
GOAL_MS: dict[str, float | None] = {
    "Greedy */OPT=MIN": 15.0,
    "GreedyPM */per/OPT=MIN/MINVT=600": 60.0,
    "MCB8 */per/OPT=MIN/MINVT=600": 150.0,
    "/stretch-per/OPT=MAX": 300.0,
    "MCB8 */OPT=MIN": None,
    "GreedyPM */per/OPT=AVG/MINVT=600": None,
}


def cpu_ms(act: Callable[[], object]) -> float:
    began_s = time.process_time()
    act()
    return (time.process_time() - began_s) * 1e3


def one_a_trace(act: Callable[[list[Job]], object], traces: Sequence[list[Job]], repeats: int = 3) -> list[float]:
    act(traces[0])  # loads machine code
    return [min(cpu_ms(lambda jobs=jobs: act(jobs)) for _ in range(repeats)) for jobs in traces]


def simulations(traces: Sequence[list[Job]]) -> list[Sequence[object]]:
    floors = one_a_trace(lambda jobs: simulate(jobs, NODES, parse("FCFS")), traces)
    rows: list[Sequence[object]] = [
        ("FCFS, the floor", "", f"{fmean(floors):.1f}", f"{max(floors):.1f}", "1", "", "", "")
    ]
    for name, goal_ms in GOAL_MS.items():
        policy = parse(name)
        taken = one_a_trace(lambda jobs, policy=policy: simulate(jobs, NODES, policy), traces)
        runs = [simulate(jobs, NODES, policy) for jobs in traces]
        decisions = sum(run.decisions for run in runs)
        ratio, low, high = ratio_of_medians(taken, floors)
        rows.append(
            (
                name,
                "" if goal_ms is None else f"{goal_ms:g}",
                f"{fmean(taken):.1f}",
                f"{max(taken):.1f}",
                f"{ratio:.1f} ({low:.1f} .. {high:.1f})",
                f"{decisions:,}",
                f"{sum(run.decide_total_s for run in runs) / decisions * 1e3:.4f}",
                f"{max(run.decide_max_s for run in runs) * 1e3:.2f}",
            )
        )
    bounds = one_a_trace(lambda jobs: bound(jobs, NODES), traces)
    ratio, low, high = ratio_of_medians(bounds, floors)
    rows.append(
        (
            "bound, Theorem 1",
            "50",
            f"{fmean(bounds):.1f}",
            f"{max(bounds):.1f}",
            f"{ratio:.1f} ({low:.1f} .. {high:.1f})",
            "",
            "",
            "",
        )
    )
    return rows


def crowd(jobs: int, *, equal_needs: bool) -> ClusterView:
    """Return `jobs` one-task jobs on as many nodes, none of them placed yet."""
    random = np.random.default_rng(1)
    needs = (random.choice([0.25, 1.0], jobs), random.integers(1, 11, jobs) / 10)
    cpu, mem = needs if equal_needs else (random.uniform(0.05, 1.0, jobs), random.uniform(0.05, 1.0, jobs))
    return ClusterView(
        time_s=1000.0,
        node_available=np.ones(jobs, dtype=np.bool_),
        job_id=np.arange(jobs),
        submit_time_s=np.sort(random.uniform(0.0, 900.0, jobs)),
        tasks=np.ones(jobs, dtype=np.int64),
        cpu_need_frac=cpu,
        mem_req_frac=mem,
        virtual_time_s=random.uniform(0.0, 100.0, jobs),
        state=np.full(jobs, JobState.PAUSED, dtype=np.int8),
        task_node=np.full(jobs, NOT_PLACED),
        start_time_s=np.zeros(jobs),
        estimate_s=np.full(jobs, np.nan),
        urgent=np.zeros(jobs, dtype=np.bool_),
    )


def growth(largest: int) -> list[Sequence[object]]:
    rows = []
    policy = parse("MCB8 */OPT=MIN")
    sizes = [size for size in (100, 1_000, 10_000, 100_000) if size <= largest]
    for equal_needs in (True, False):
        before_ms: float | None = None
        for size in sizes:
            view = crowd(size, equal_needs=equal_needs)
            event = Event(completed=(size + 1,))
            policy.decide(view, event)
            took_ms = median(cpu_ms(lambda view=view, event=event: policy.decide(view, event)) for _ in range(3))
            kind = "of [RR 5.3.2], many alike" if equal_needs else "continuous, none alike"
            growing = "" if before_ms is None else f"{took_ms / before_ms:.1f}"
            rows.append((kind, f"{size:,} x {size:,}", f"{took_ms:.2f}", growing))
            before_ms = took_ms
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=10)
    parser.add_argument("--large", type=int, default=10_000, help="jobs and nodes of the largest single decision")
    options = parser.parse_args()
    from lab import print_machine, print_table  # noqa: PLC0415  # it loads a live lab, whose memory must not count

    print_machine()
    use_compiled(parse("MCB8 */OPT=MIN"))
    traces = [synthetic_trace(NODES, 1000, seed) for seed in range(1, options.traces + 1)]
    print_table(
        f"{options.traces} traces of 1000 jobs on {NODES} nodes; the best of 3 of each trace",
        ("what", "goal ms", "CPU ms, mean", "most", "x floor (95 %)", "decisions", "mean ms", "most ms"),
        simulations(traces),
    )
    print_table(
        "one decision of MCB8 */OPT=MIN, all jobs packed anew, median of 3",
        ("needs", "jobs x nodes", "CPU ms", "x the line before"),
        growth(options.large),
    )


if __name__ == "__main__":
    main()
