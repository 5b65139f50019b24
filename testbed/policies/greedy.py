"""Greedy placement, and the choice of jobs to pause for a newcomer [RR 4.2]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.policies.capacity import CAPACITY_FRAC, TOLERANCE_FRAC, occupy
from testbed.policies.view import NOT_PLACED, Floats, Ints


def fits(tasks: int, mem_req_frac: float, node_mem_frac: Floats) -> bool:
    """Tell whether memory (N,) allows `tasks` more tasks of `mem_req_frac`; exactly what `place` can place.

    Memory is added task after task, as `place` does it, so that both round alike.
    """
    used = node_mem_frac.copy()
    room = np.int64(0)
    while room < tasks:
        used += mem_req_frac
        nodes = np.count_nonzero(used <= CAPACITY_FRAC)
        if nodes == 0:
            return False
        room += nodes
    return True


def place(cpu_need_frac: float, mem_req_frac: float, node_cpu_frac: Floats, node_mem_frac: Floats, out: Ints) -> bool:
    """Place the tasks of one job (one an element of `out`), each on the least loaded node with memory for it.

    Load is the total CPU need of the tasks on a node; of equal nodes the first is taken. Return True and
    update both usages (N,), or return False and leave them, with every task NOT_PLACED.
    """
    cpu = node_cpu_frac.copy()
    mem = node_mem_frac.copy()
    for task in range(out.size):
        load = np.where(mem + mem_req_frac <= CAPACITY_FRAC, cpu, np.inf)
        least = load.min()
        if least == np.inf:
            out[:] = NOT_PLACED
            return False
        node = np.argmax(load <= least + TOLERANCE_FRAC)
        cpu[node] += cpu_need_frac
        mem[node] += mem_req_frac
        out[task] = node
    node_cpu_frac[:] = cpu
    node_mem_frac[:] = mem
    return True


def make_room(
    newcomer: int,
    candidates: Ints,
    offset: Ints,
    mem_req_frac: Floats,
    task_node: Ints,
    node_mem_frac: Floats,
) -> tuple[bool, NDArray[np.bool_]]:
    """Choose which running `candidates` (rows, by increasing priority) to pause for the row `newcomer`.

    Candidates are marked until the newcomer would fit; then, by decreasing priority, each is unmarked with
    which the newcomer still fits. Return whether there is a way, and the marks (one a candidate). The memory
    of the marked ones is then released in `node_mem_frac` (N,); without a way nothing changes.
    """
    tasks = offset[newcomer + 1] - offset[newcomer]
    need = mem_req_frac[newcomer]
    before = node_mem_frac.copy()
    marked = np.zeros(candidates.size, dtype=np.bool_)
    count = 0
    enough = fits(tasks, need, node_mem_frac)
    while not enough and count < candidates.size:
        row = candidates[count]
        occupy(task_node[offset[row] : offset[row + 1]], -mem_req_frac[row], node_mem_frac)
        marked[count] = True
        count += 1
        enough = fits(tasks, need, node_mem_frac)
    if not enough:
        node_mem_frac[:] = before
        marked[:] = False
        return False, marked
    for index in range(count - 1, -1, -1):
        row = candidates[index]
        with_row = node_mem_frac.copy()
        occupy(task_node[offset[row] : offset[row + 1]], mem_req_frac[row], with_row)
        if fits(tasks, need, with_row):
            node_mem_frac[:] = with_row
            marked[index] = False
    return True, marked
