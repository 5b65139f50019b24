"""Greedy placement, and the choice of jobs to pause for a newcomer [RR 4.2]."""

from __future__ import annotations

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.capacity import CAPACITY_FRAC, TOLERANCE_FRAC
from testbed.scheduling.policies.state import Cluster, Jobs, Mask
from testbed.scheduling.policies.view import NOT_PLACED, Floats, Ints


@lean_kernel
def room_for(mem_req_frac: float, used_frac: float, most: int) -> int:
    """Return how many tasks a node with `used_frac` memory in use can take, at most `most`.

    Memory is added task after task, as `place` does it, so that both round alike.
    """
    count = 0
    used_frac += mem_req_frac
    while count < most and used_frac <= CAPACITY_FRAC:
        count += 1
        used_frac += mem_req_frac
    return count


@lean_kernel
def fits(tasks: int, mem_req_frac: float, mem_frac: Floats) -> bool:
    """Return whether the memory in use (N,) allows `tasks` more tasks; exactly what `place` can place."""
    room = 0
    for node in range(mem_frac.size):
        room += room_for(mem_req_frac, mem_frac[node], tasks - room)
        if room >= tasks:
            return True
    return room >= tasks


@lean_kernel
def place(cpu_need_frac: float, mem_req_frac: float, cpu_frac: Floats, mem_frac: Floats, out: Ints) -> bool:
    """Place the tasks of one job (one per element of `out`), each on the least loaded node with memory for it.

    Load is the total CPU need of the tasks on a node; of equal nodes the first is taken. Return True and
    update both usages (N,), or return False and leave them, with every task NOT_PLACED.
    """
    if not fits(out.size, mem_req_frac, mem_frac):
        out[:] = NOT_PLACED
        return False
    placed = 0
    while placed < out.size:
        least = np.inf
        for node in range(cpu_frac.size):
            if cpu_frac[node] < least and mem_frac[node] + mem_req_frac <= CAPACITY_FRAC:
                least = cpu_frac[node]
        # One pass serves all nodes that tie for the least load, as long as no other node joins them: a node that got a
        # task must leave the tie for good, and no node of almost equal load may join it when the least load rises.
        alone = cpu_need_frac <= 3.0 * TOLERANCE_FRAC
        before = placed
        for node in range(cpu_frac.size):
            if cpu_frac[node] > least + 3.0 * TOLERANCE_FRAC or mem_frac[node] + mem_req_frac > CAPACITY_FRAC:
                continue
            if cpu_frac[node] <= least + TOLERANCE_FRAC:
                cpu_frac[node] += cpu_need_frac
                mem_frac[node] += mem_req_frac
                out[placed] = node
                placed += 1
            else:
                alone = True
            if placed == out.size or (alone and placed > before):
                break
    return True


@kernel
def make_room(newcomer: int, candidates: Ints, jobs: Jobs, cluster: Cluster, mem_frac: Floats, marked: Mask) -> bool:
    """Choose which running `candidates` (rows, by increasing priority) to pause for the row `newcomer`.

    Candidates are marked until the newcomer would fit; then, by decreasing priority, each is unmarked
    if the newcomer still fits. Return whether there is such a choice, and write `marked`, one per candidate. The
    memory of the marked ones is then released in `mem_frac` (N,); without such a choice nothing changes.
    """
    tasks = jobs.offset[newcomer + 1] - jobs.offset[newcomer]
    need = jobs.mem_req_frac[newcomer]
    before = mem_frac.copy()
    marked[:] = False
    room = np.empty(mem_frac.size, dtype=np.int64)  # tasks of the newcomer that each node can take
    total = 0
    for node in range(mem_frac.size):
        room[node] = room_for(need, mem_frac[node], tasks)
        total += room[node]
    count = 0
    while total < tasks and count < candidates.size:
        total += _occupy(candidates[count], -1.0, need, tasks, jobs, cluster, mem_frac, room)
        marked[count] = True
        count += 1
    if total < tasks:
        mem_frac[:] = before
        marked[:] = False
        return False
    for index in range(count - 1, -1, -1):
        row = candidates[index]
        nodes = cluster.task_node[jobs.offset[row] : jobs.offset[row + 1]]
        before = mem_frac[nodes]
        gone = -_occupy(row, 1.0, need, tasks, jobs, cluster, mem_frac, room)
        if total - gone >= tasks:
            marked[index] = False
            total -= gone
        else:
            # Restored, not subtracted again, so that rounding does not change the sum.
            for task in range(nodes.size):
                mem_frac[nodes[task]] = before[task]
            for node in nodes:
                room[node] = room_for(need, mem_frac[node], tasks)
    return True


@lean_kernel
def _occupy(
    row: int,
    sign: float,
    need: float,
    tasks: int,
    jobs: Jobs,
    cluster: Cluster,
    mem_frac: Floats,
    room: Ints,
) -> int:
    """Add (sign 1) or release (-1) the memory of a row, update `room` on its nodes, return the change of its sum."""
    change = 0
    for task in range(jobs.offset[row], jobs.offset[row + 1]):
        node = cluster.task_node[task]
        mem_frac[node] += sign * jobs.mem_req_frac[row]
        now = room_for(need, mem_frac[node], tasks)
        change += now - room[node]
        room[node] = now
    return change


@kernel
def place_all(rows: Ints, jobs: Jobs, cluster: Cluster, cpu_frac: Floats, mem_frac: Floats) -> None:
    """Try to place `rows`, none of which runs, in their order, each once; update map, `running` and usages (N,)."""
    _place_each(rows, jobs, cluster, cpu_frac, mem_frac, np.empty(rows.size, dtype=np.int64), np.empty(rows.size))


@lean_kernel
def _place_each(
    rows: Ints,
    jobs: Jobs,
    cluster: Cluster,
    cpu_frac: Floats,
    mem_frac: Floats,
    failed_tasks: Ints,
    failed_mem: Floats,
) -> None:
    # Free memory only shrinks: a job that needs no less than a job that failed fails, too.
    fails = 0
    for row in rows:
        begin, end = jobs.offset[row], jobs.offset[row + 1]
        need = jobs.mem_req_frac[row]
        hopeless = False
        for index in range(fails):
            if end - begin >= failed_tasks[index] and need >= failed_mem[index]:
                hopeless = True
                break
        if hopeless:
            continue
        if place(jobs.cpu_need_frac[row], need, cpu_frac, mem_frac, cluster.task_node[begin:end]):
            cluster.running[row] = True
            continue
        kept = 0
        for index in range(fails):
            if failed_tasks[index] < end - begin or failed_mem[index] < need:
                failed_tasks[kept] = failed_tasks[index]
                failed_mem[kept] = failed_mem[index]
                kept += 1
        failed_tasks[kept] = end - begin
        failed_mem[kept] = need
        fails = kept + 1
