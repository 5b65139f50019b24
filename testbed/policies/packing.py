"""MCB8: vector packing of CPU and memory with a binary search on the yield [RR 4.3].

For a given yield the CPU requirement of a task is its CPU need times the yield. Readings where the paper is
silent: a job is CPU-heavy when its requirement is strictly greater than its memory; lists are sorted by
decreasing maximum of the two, then decreasing minimum, then submission; the CPU list comes first on a
balanced node; pinned jobs are placed before all others; the search tries 1, then bisects.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.policies.capacity import CAPACITY_FRAC, TOLERANCE_FRAC
from testbed.policies.view import NOT_PLACED, Floats, Ints

LEAST_YIELD_FRAC = 0.01  # below it a job is rather dropped
YIELD_ACCURACY_FRAC = 0.01

Mask = NDArray[np.bool_]


def packing_order(rows: Ints, cpu_frac: Floats, mem_frac: Floats) -> Ints:
    """Sort `rows` (in order of submission) by decreasing larger requirement, then decreasing smaller one."""
    # Two stable sorts in place of lexsort, which compilers of numpy code do not know.
    rows = rows[np.argsort(-np.minimum(cpu_frac[rows], mem_frac[rows]), kind="mergesort")]
    return rows[np.argsort(-np.maximum(cpu_frac[rows], mem_frac[rows]), kind="mergesort")]


def first_fit(
    rows: Ints, start: int, left: Ints, cpu_frac: Floats, mem_frac: Floats, cpu_room: float, mem_room: float
) -> int:
    """Return the first index from `start` in `rows` with a task left that fits the room, or `rows.size`."""
    for index in range(start, rows.size):
        row = rows[index]
        if left[row] > 0 and cpu_frac[row] <= cpu_room and mem_frac[row] <= mem_room:
            return index
    return rows.size


def pack(
    selected: Mask,
    pinned: Mask,
    offset: Ints,
    cpu_frac: Floats,
    mem_frac: Floats,
    task_node: Ints,
    node_available: Mask,
    out: Ints,
) -> bool:
    """Try to place every task of the `selected` rows at the requirements `cpu_frac`, `mem_frac` (J,).

    Rows that are also `pinned` keep their nodes in `task_node`. Return whether all found a place; `out` then
    holds the nodes, NOT_PLACED for rows that are not selected, and is unspecified otherwise.
    """
    cpu = np.zeros(node_available.size)
    mem = np.zeros(node_available.size)
    out[:] = NOT_PLACED
    for row in np.flatnonzero(selected & pinned):
        for task in range(offset[row], offset[row + 1]):
            node = task_node[task]
            out[task] = node
            cpu[node] += cpu_frac[row]
            mem[node] += mem_frac[row]
    if np.any(cpu > CAPACITY_FRAC) or np.any(mem > CAPACITY_FRAC):
        return False

    free = selected & ~pinned
    heavy = cpu_frac > mem_frac
    cpu_rows = packing_order(np.flatnonzero(free & heavy), cpu_frac, mem_frac)
    mem_rows = packing_order(np.flatnonzero(free & ~heavy), cpu_frac, mem_frac)
    left = np.where(free, offset[1:] - offset[:-1], 0)
    total = left.sum()
    for node in np.flatnonzero(node_available):
        # Room only shrinks while a node is filled, so a job that did not fit is never looked at again there.
        at_cpu = 0
        at_mem = 0
        while total > 0:
            cpu_room = CAPACITY_FRAC - cpu[node]
            mem_room = CAPACITY_FRAC - mem[node]
            at_cpu = first_fit(cpu_rows, at_cpu, left, cpu_frac, mem_frac, cpu_room, mem_room)
            at_mem = first_fit(mem_rows, at_mem, left, cpu_frac, mem_frac, cpu_room, mem_room)
            if at_cpu == cpu_rows.size and at_mem == mem_rows.size:
                break
            cpu_first = cpu[node] <= mem[node] + TOLERANCE_FRAC
            take_cpu = at_mem == mem_rows.size or (cpu_first and at_cpu < cpu_rows.size)
            row = cpu_rows[at_cpu] if take_cpu else mem_rows[at_mem]
            out[offset[row + 1] - left[row]] = node
            cpu[node] += cpu_frac[row]
            mem[node] += mem_frac[row]
            left[row] -= 1
            total -= 1
    return bool(total == 0)


def mcb8(
    selected: Mask,
    pinned: Mask,
    by_decreasing_priority: Ints,
    offset: Ints,
    cpu_need_frac: Floats,
    mem_req_frac: Floats,
    task_node: Ints,
    node_available: Mask,
) -> Ints:
    """Map the `selected` rows for the highest yield that packing finds; return the (sum of tasks,) map.

    While even a yield of 0.01 is infeasible, the selected row of lowest priority is left out (NOT_PLACED).
    """
    selected = selected.copy()
    tasks = offset[1:] - offset[:-1]
    total_frac = np.count_nonzero(node_available) * (1.0 + 2.0 * TOLERANCE_FRAC)
    best = np.full(task_node.size, NOT_PLACED, dtype=np.int64)
    trial = best.copy()
    for row in by_decreasing_priority[::-1]:
        if not selected[row]:
            continue
        # What exceeds the whole cluster cannot be packed: no need to try.
        if np.sum((tasks * mem_req_frac)[selected]) <= total_frac:
            need_frac = np.sum((tasks * cpu_need_frac)[selected])
            args = (selected, pinned, offset)
            rest = (mem_req_frac, task_node, node_available)
            if need_frac <= total_frac and pack(*args, cpu_need_frac, *rest, best):
                return best
            if pack(*args, cpu_need_frac * LEAST_YIELD_FRAC, *rest, best):
                low, high = LEAST_YIELD_FRAC, 1.0
                while high - low > YIELD_ACCURACY_FRAC:
                    middle = (low + high) / 2.0
                    feasible = need_frac * middle <= total_frac
                    if feasible and pack(*args, cpu_need_frac * middle, *rest, trial):
                        low = middle
                        best[:] = trial
                    else:
                        high = middle
                return best
        selected[row] = False
    best[:] = NOT_PLACED
    return best
