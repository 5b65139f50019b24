"""Tasks of a job are interchangeable: a new map is written so that as few tasks as possible move."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from testbed.scheduling.places import match_nodes
from testbed.scheduling.policies.view import NOT_PLACED, Ints


def keep_places(offset: Ints, old_node: Ints, new_node: Ints, nodes: int) -> Ints:
    """Return `new_node` (sum of tasks,) with the tasks of each job exchanged to agree with `old_node`.

    Every job keeps its new multiset of nodes; see `match_nodes`.
    """
    out = new_node.copy()
    counts = np.zeros(nodes, dtype=np.int64)
    for begin, end in pairwise(offset):
        if new_node[begin] != NOT_PLACED and old_node[begin] != NOT_PLACED:
            match_nodes(old_node[begin:end], new_node[begin:end], counts, out[begin:end])
    return out
