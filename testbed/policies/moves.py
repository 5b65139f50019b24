"""Tasks of a job are interchangeable: a new map is written so that as few tasks as possible move."""

from __future__ import annotations

import numpy as np

from testbed.policies.view import NOT_PLACED, Ints


def keep_places(offset: Ints, old_node: Ints, new_node: Ints, nodes: int) -> Ints:
    """Return `new_node` (sum of tasks,) with the tasks of each job exchanged to agree with `old_node`.

    Every job keeps its new multiset of nodes; a job whose multiset is the old one comes out exactly as it
    was. Otherwise tasks stay where they can, the first of several, and the others take what is left, by node
    index.
    """
    out = new_node.copy()
    left = np.zeros(nodes, dtype=np.int64)
    for row in range(offset.size - 1):
        begin, end = offset[row], offset[row + 1]
        if new_node[begin] == NOT_PLACED or old_node[begin] == NOT_PLACED:
            continue
        for task in range(begin, end):
            left[new_node[task]] += 1
        for task in range(begin, end):
            node = old_node[task]
            if left[node] > 0:
                left[node] -= 1
                out[task] = node
            else:
                out[task] = NOT_PLACED
        lowest = 0
        for task in range(begin, end):
            if out[task] == NOT_PLACED:
                while left[lowest] == 0:
                    lowest += 1
                left[lowest] -= 1
                out[task] = lowest
    return out
