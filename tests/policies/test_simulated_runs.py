"""Whole runs in virtual time: all jobs finish, nothing is over-committed, DFRS beats batch by far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from support.policies.policy_views import node_usage
from support.policies.virtual_cluster import VirtualCluster

from testbed.scheduling.bound.max_stretch import bound
from testbed.scheduling.metrics import bounded_stretch, degradation_from_bound
from testbed.scheduling.policies.catalogue import available, parse
from testbed.scheduling.policies.view import can_ever_run
from testbed.scheduling.workload.jobs import Job


def workload(seed: int, count: int, nodes: int, load: float) -> Sequence[Job]:
    """Jobs in the manner of Lublin and Feitelson: two classes of run times, many serial jobs and powers of two.

    Needs and memory as in [RR 5.3.2]: quad-core nodes. `load` is work over nodes times the span of arrivals.
    """
    random = np.random.default_rng(seed)
    serial = random.random(count) < 0.24
    exponent = random.uniform(0.8, np.log2(nodes), count)
    tasks = np.where(serial, 1, np.minimum(nodes, np.round(2 ** np.round(exponent)))).astype(int)
    long = random.random(count) < 0.35
    run_s = np.clip(np.exp(np.where(long, random.normal(8.5, 1.2, count), random.normal(3.5, 1.5, count))), 1, 86400)
    cpu = np.where(tasks == 1, 0.25, 1.0)
    mem = np.where(random.random(count) < 0.55, 1, random.integers(2, 11, count)) / 10
    gaps = random.gamma(0.5, 2.0, count)
    submit_s = np.cumsum(gaps) / gaps.sum() * float((tasks * cpu * run_s).sum()) / nodes / load
    return [
        Job(j, float(np.floor(submit_s[j])), int(tasks[j]), float(cpu[j]), float(mem[j]), float(np.floor(run_s[j])))
        for j in range(count)
    ]


def stretches(jobs, outcome):
    submit_s = np.array([job.submit_time_s for job in jobs])
    return bounded_stretch(outcome.end_s - submit_s, [job.run_time_s for job in jobs])


def checked(view, event, decision):
    """Assert that every decision of a run respects memory, CPU and the range of yields."""
    nodes = view.node_available.size
    assert (node_usage(decision.task_node, view.tasks, view.mem_req_frac, nodes) <= 1 + 1e-9).all()
    cpu = node_usage(decision.task_node, view.tasks, view.cpu_need_frac * decision.yield_frac, nodes)
    assert (cpu <= 1 + 1e-9).all()


RUNS = [
    name
    for name in available()
    if not name.endswith(("=300", "FT=600"))
    and ("OPT=AVG" not in name or name.startswith(("GreedyPM */per", "/stretch-per")))
]


@pytest.mark.parametrize("name", RUNS)
def test_all_jobs_finish_and_none_faster_than_alone(name):
    policy = parse(name)
    jobs = [job for job in workload(seed=3, count=20, nodes=4, load=0.9) if can_ever_run(policy, job, 4)]
    assert len(jobs) > 10
    outcome = VirtualCluster(jobs, 4, policy, look=checked).run()
    turnaround_s = outcome.end_s - [job.submit_time_s for job in jobs]
    assert (turnaround_s >= np.array([job.run_time_s for job in jobs]) - 1e-6).all()
    reached = stretches(jobs, outcome).max()
    assert reached >= bound(jobs, 4)
    assert (outcome.resumes + outcome.moves > 0) or not parse(name).period_s


def test_a_penalty_is_paid_by_who_resumes_and_not_by_who_starts():
    # One node. B pauses A at 100 (memory), runs 50 s; then A resumes, loses 300 s and does its last 100 s.
    jobs = [Job(0, 0.0, 1, 1.0, 0.6, 200.0), Job(1, 100.0, 1, 1.0, 0.6, 50.0)]
    outcome = VirtualCluster(jobs, 1, parse("GreedyP */OPT=MIN")).run()
    assert outcome.end_s.tolist() == [550.0, 150.0]
    assert (outcome.resumes, outcome.moves) == (1, 0)


def test_degradations_come_in_the_published_order():
    """[RR Table 2]: the best greedy algorithm, far behind it /per, then EASY, then FCFS."""
    names = ["GreedyPM */per/OPT=MIN/MINVT=600", "/per/OPT=MIN/MINVT=600", "EASY", "FCFS"]
    means = []
    jobs_of = [workload(seed, count=70, nodes=16, load=0.7) for seed in (1, 2)]
    bounds = [bound(jobs, 16) for jobs in jobs_of]
    for name in names:
        degradation = [
            degradation_from_bound(stretches(jobs, VirtualCluster(jobs, 16, parse(name)).run()), least)
            for jobs, least in zip(jobs_of, bounds, strict=True)
        ]
        assert min(degradation) >= 1
        means.append(float(np.mean(degradation)))
    assert means[0] * 2 < means[1] < means[2] < means[3]
