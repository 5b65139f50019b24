"""CPU shares for a given map: the largest minimum yield, raised again and again (OPT=MIN) [RR 4.6]."""

from __future__ import annotations

import numpy as np

from testbed.policies.capacity import TOLERANCE_FRAC, occupy
from testbed.policies.view import NOT_PLACED, Floats, Ints


def max_min_yields(offset: Ints, cpu_need_frac: Floats, task_node: Ints, nodes: int) -> Floats:
    """Return the (J,) max-min fair yields in (0, 1], 0 for rows that are not placed.

    The first step gives every job 1 / max(1, largest CPU load of a node). Jobs with a task on a node that
    this saturates are then fixed, and the others are raised together, until all are fixed or at 1.
    """
    jobs = cpu_need_frac.size
    placed = task_node != NOT_PLACED
    row_of_task = np.repeat(np.arange(jobs), offset[1:] - offset[:-1])[placed]
    node_of_task = task_node[placed]
    rows_by_node = row_of_task[np.argsort(node_of_task, kind="mergesort")]
    count = np.bincount(node_of_task, minlength=nodes)  # of growing tasks: `load` may keep rounding
    load = np.bincount(node_of_task, weights=cpu_need_frac[row_of_task], minlength=nodes)
    room = np.ones(nodes)  # CPU that the fixed tasks leave
    end = np.cumsum(count)
    begin = end - count
    yields = np.zeros(jobs)
    growing = np.zeros(jobs, dtype=np.bool_)
    growing[row_of_task] = True

    level = 0.0
    while np.any(count > 0):
        busy = np.flatnonzero(count > 0)
        limit = room[busy] / load[busy]
        # Rounding must not lower what was reached before.
        level = max(level, min(1.0, limit.min()))
        if level >= 1.0:
            break
        for node in busy[limit <= level + TOLERANCE_FRAC]:
            for row in rows_by_node[begin[node] : end[node]]:
                if growing[row]:
                    growing[row] = False
                    yields[row] = level
                    own = task_node[offset[row] : offset[row + 1]]
                    occupy(own, -cpu_need_frac[row], load)
                    occupy(own, -cpu_need_frac[row] * level, room)
                    occupy(own, -1, count)
    yields[growing] = 1.0
    return yields
