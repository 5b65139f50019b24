"""Placement for other policies: kernels on the arrays that a kernel of a policy gets.

They update the CPU need and the memory in use on each node, `cpu_frac` and `mem_frac` (N,), which `usage` computes.
On a node that is not available `mem_frac` is infinite, so nothing is placed there. CPU never prevents a placement:
yields share it afterwards (`testbed.scheduling.policies.yields`). `testbed.scheduling.policies.draft` has all of this
for views.
"""

from __future__ import annotations

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.capacity import CAPACITY_FRAC, node_memory, node_usage
from testbed.scheduling.policies.greedy import fits, place, room_for
from testbed.scheduling.policies.state import Cluster, Jobs
from testbed.scheduling.policies.view import NOT_PLACED, Floats, Ints


@kernel
def usage(active: Ints, jobs: Jobs, cluster: Cluster) -> tuple[Floats, Floats]:
    """Return the CPU need and the memory of the jobs that run, (N,) each, as fractions of a node."""
    return node_usage(active, jobs, cluster, jobs.cpu_need_frac), node_memory(active, jobs, cluster)


@kernel
def memory_left(mem_frac: Floats) -> Floats:
    """Return the memory that nodes have left (N,), 0 on a node that is not available."""
    return np.maximum(1.0 - mem_frac, 0.0)


@kernel
def nodes_by_load(cpu_frac: Floats, mem_frac: Floats) -> Ints:
    """Return the available nodes, the one with the least CPU need first; of equal nodes the first."""
    order = np.argsort(cpu_frac, kind="mergesort")
    return order[mem_frac[order] < np.inf]


@kernel
def waiting(active: Ints, cluster: Cluster) -> Ints:
    """Return the active rows that do not run, in order of submission."""
    return active[~cluster.running[active]]


@lean_kernel
def drop_lost(jobs: Jobs, cluster: Cluster, active: Ints) -> None:
    """Pause jobs with tasks on nodes that are not available, as a decision must not leave tasks there."""
    for node in range(cluster.node_available.size):
        if not cluster.node_available[node]:
            break
    else:
        return
    for row in active:
        if cluster.running[row]:
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                if not cluster.node_available[cluster.task_node[task]]:
                    pause(row, jobs, cluster)
                    break


@lean_kernel
def pause(row: int, jobs: Jobs, cluster: Cluster) -> None:
    """Pause a job, which leaves its nodes; the caller's usages are not changed."""
    cluster.running[row] = False
    for task in range(jobs.offset[row], jobs.offset[row + 1]):
        cluster.task_node[task] = NOT_PLACED


@lean_kernel
def release(row: int, jobs: Jobs, cluster: Cluster, cpu_frac: Floats, mem_frac: Floats) -> None:
    """Pause a job, and subtract its CPU need and memory from both usages."""
    for task in range(jobs.offset[row], jobs.offset[row + 1]):
        cpu_frac[cluster.task_node[task]] -= jobs.cpu_need_frac[row]
        mem_frac[cluster.task_node[task]] -= jobs.mem_req_frac[row]
    pause(row, jobs, cluster)


@lean_kernel
def least_loaded(row: int, jobs: Jobs, cluster: Cluster, cpu_frac: Floats, mem_frac: Floats) -> bool:
    """Place a job that does not run, each task on the node with the least CPU need that has memory for it [RR 4.2].

    Return True and update both usages, or return False and leave everything as it was.
    """
    nodes = cluster.task_node[jobs.offset[row] : jobs.offset[row + 1]]
    cluster.running[row] = place(jobs.cpu_need_frac[row], jobs.mem_req_frac[row], cpu_frac, mem_frac, nodes)
    return bool(cluster.running[row])


@lean_kernel
def first_fit(row: int, jobs: Jobs, cluster: Cluster, cpu_frac: Floats, mem_frac: Floats) -> bool:
    """Place a job that does not run, each task on the first node that has memory for it.

    Return True and update both usages, or return False and leave everything as it was.
    """
    begin, end = jobs.offset[row], jobs.offset[row + 1]
    if not fits(end - begin, jobs.mem_req_frac[row], mem_frac):
        return False
    node = 0
    for task in range(begin, end):
        while mem_frac[node] + jobs.mem_req_frac[row] > CAPACITY_FRAC:
            node += 1
        cluster.task_node[task] = node
        cpu_frac[node] += jobs.cpu_need_frac[row]
        mem_frac[node] += jobs.mem_req_frac[row]
    cluster.running[row] = True
    return True


@lean_kernel
def place_on(row: int, nodes: Ints, jobs: Jobs, cluster: Cluster, cpu_frac: Floats, mem_frac: Floats) -> bool:
    """Place a job that does not run on `nodes`, one for each of its tasks; a node may occur more than once.

    Return True and update both usages, or return False and leave everything as it was: when there are too few or too
    many nodes, or when a node lacks memory for its tasks.
    """
    begin = jobs.offset[row]
    if nodes.size != jobs.offset[row + 1] - begin:
        return False
    for index in range(nodes.size):
        there = 1
        for earlier in range(index):
            if nodes[earlier] == nodes[index]:
                there += 1
        if room_for(jobs.mem_req_frac[row], mem_frac[nodes[index]], there) < there:
            return False
    for index in range(nodes.size):
        cpu_frac[nodes[index]] += jobs.cpu_need_frac[row]
        mem_frac[nodes[index]] += jobs.mem_req_frac[row]
        cluster.task_node[begin + index] = nodes[index]
    cluster.running[row] = True
    return True
