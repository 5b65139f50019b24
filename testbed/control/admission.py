"""Checks before a run starts: jobs, numbers of events, disks, nodes and programs that do not fit are refused."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from testbed.bus.drivers import traits_in, traits_of
from testbed.bus.limits import MOST_EVENTS
from testbed.bus.messages import NodeFacts
from testbed.control.move_costs import known_costs, way_costs
from testbed.errors import UserError, nearest
from testbed.lab.guests import check_floor, check_images, check_memory, check_pace, program_of
from testbed.lab.node_facts import check_alike
from testbed.lab.sharing import check_sharing
from testbed.scenario.schema import Scenario
from testbed.scheduling.policies.discovering import watches_needs
from testbed.scheduling.policies.view import Policy, can_ever_run
from testbed.scheduling.workload.jobs import Job


def check_jobs(jobs: Sequence[Job], policy: Policy, scenario: Scenario) -> None:
    """Raise `UserError` for a job that can never run, before anything is started."""
    shapes = {(node.cpus, node.memory_mib) for node in scenario.nodes}
    if len(shapes) > 1:
        raise UserError(f"nodes: expected the same cpus and memory_mib on every node, found {sorted(shapes)}")
    count = len(scenario.nodes)
    for job in jobs:
        check_pace(job, scenario)
        if not can_ever_run(policy, job, count):
            raise UserError(
                f"job {job.job_id}: tasks = {job.tasks} with mem_req_frac = {job.mem_req_frac:g} and cpu_need_frac = "
                f"{job.cpu_need_frac:g} do not fit on {count} nodes under {policy.name}: expected a smaller job or "
                "more nodes"
            )
    if watches_needs(policy) and scenario.programs.profile is None:
        raise UserError(
            f"policy {policy.name}: programs without a profile use all of their cap, so that their needs cannot be "
            'estimated: expected [programs] profile, such as profile = "1"'
        )
    way_costs(scenario)
    known_costs(policy, scenario)


def check_events(jobs: Sequence[Job], policy: Policy, scenario: Scenario) -> None:
    """Raise `UserError` for a dry run with more events than is practical, with the key that causes them.

    Each node reports once per wall second, and a policy with a period acts at each multiple of it while there are jobs.
    """
    nodes, most = len(scenario.nodes), f"expected at most {MOST_EVENTS:.3g}"
    wall_s = max((job.submit_time_s + job.run_time_s for job in jobs), default=0.0) / scenario.time_scale
    if wall_s * nodes > MOST_EVENTS:
        raise UserError(
            f"time_scale = {scenario.time_scale:g}: a dry run of {wall_s:.3g} wall seconds on {nodes} nodes has "
            f"{wall_s * nodes:.3g} events: {most}, by a larger time_scale or a shorter trace"
        )
    longest_s = max((job.run_time_s for job in jobs), default=0.0)
    if policy.period_s and longest_s / policy.period_s > MOST_EVENTS:
        raise UserError(
            f"period_s = {policy.period_s:g}: a job of {longest_s:g} s has {longest_s / policy.period_s:.3g} periods: "
            f"{most}, by a longer period or shorter jobs"
        )


def check_disk(path: Path, scenario: Scenario) -> None:
    """Raise `UserError` if this machine has less memory than one of its nodes, or too little disk space for images.

    Images need twice the nodes' memory: the source of a transfer is kept until its copy has made progress.
    """
    machine_mib = psutil.virtual_memory().total >> 20
    for index, node in enumerate(scenario.nodes):
        if node.spawn and not traits_of(node.driver).simulated and node.memory_mib > machine_mib:
            raise UserError(
                f"nodes.{index}.memory_mib = {node.memory_mib}: node {node.name} is on this machine, which has "
                f"{machine_mib} MiB: expected at most that"
            )
    need_mib = 2 * sum(node.memory_mib for node in scenario.nodes if node.spawn)
    free_mib = shutil.disk_usage(path).free >> 20
    if free_mib < need_mib:
        raise UserError(
            f"{path}: {free_mib} MiB free on its disk: expected at least {need_mib} MiB for images of saved guests, "
            "twice the memory_mib of all nodes on this machine; choose another place with --out, or smaller nodes"
        )


def check_nodes(
    facts: Mapping[str, NodeFacts], jobs: Sequence[Job], kinds: Sequence[Job], policy: Policy, scenario: Scenario
) -> None:
    """Raise `UserError` unless the nodes, by name, are alike and can run these jobs under this policy.

    `kinds` has one job of each kind: a served lab has no jobs yet, and its checks use these jobs instead.
    """
    check_alike(facts)
    for name, fact in facts.items():
        if jobs:
            check_floor(jobs, name, fact.memory_mib, fact.guest_floor_mib)
        else:
            least_frac = scenario.serve.least_mem_frac
            check_memory("serve.least_mem_frac", least_frac, name, fact.memory_mib, fact.guest_floor_mib)
    check_images(facts)
    check_clock(facts, scenario)
    check_sharing(policy, facts, scenario.shares.waits)
    check_programs(kinds, scenario, {name: fact.programs for name, fact in facts.items()})


def check_clock(facts: Mapping[str, NodeFacts], scenario: Scenario) -> None:
    """Raise `UserError` if work is counted as CPU time, and programs on a node cannot read their CPU time."""
    if scenario.programs.work != "cpu-time":
        return
    for name, fact in facts.items():
        if traits_in(fact).hypervisor:
            raise UserError(
                "programs.work = 'cpu-time': programs in the virtual machines of node "
                f"{name} cannot read the CPU time that the node accounts to them: expected 'units'"
            )


def check_programs(jobs: Sequence[Job], scenario: Scenario, programs: Mapping[str, Sequence[str]]) -> None:
    """Raise `UserError` if a node lacks a program that the jobs run.

    `programs` has the programs of each node, by its name; an empty list means that the node does not report them.
    """
    table = scenario.programs
    for job in jobs:
        name = program_of(job, table)
        key = "program" if job.program is not None else "programs.parallel" if job.tasks > 1 else "programs.serial"
        for node, known in programs.items():
            if known and name not in known:
                raise UserError(
                    f"{key} = {name!r}: node {node} has {', '.join(known)}"
                    + (nearest(name, known) or "; others are plug-ins, to be installed on the nodes")
                )
