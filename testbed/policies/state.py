"""What the kernels of policies work on: jobs and cluster as named arrays, the rules of a policy as numbers.

The simulated world keeps one such state for a whole trace and says which rows are active; the live world
makes one from each view, in which every row is active. A decision changes the state in place: maps, yields, and which
rows run. Rows are jobs in order of submission; the tasks of row j are the elements `offset[j]:offset[j + 1]` of `task_node`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.policies.view import Floats, Ints

Mask = NDArray[np.bool_]


class Jobs(NamedTuple):
    """What does not change: J rows."""

    submit_time_s: Floats  # (J,), not decreasing
    offset: Ints  # (J + 1,)
    cpu_need_frac: Floats  # (J,)
    mem_req_frac: Floats  # (J,)


class Cluster(NamedTuple):
    """What changes: N nodes, J rows. The map and the yield of a row that is not running are not read."""

    node_available: Mask  # (N,)
    virtual_time_s: Floats  # (J,)
    running: Mask  # (J,)
    task_node: Ints  # (sum of tasks,), NOT_PLACED for every task of a job that is not running after a decision
    yield_frac: Floats  # (J,), 0 for a job that is not running after a decision


class Rules(NamedTuple):
    """A configuration in numbers: the members of `testbed.policies.configuration` by their place in the enumeration."""

    on_submission: int
    opportunistic: bool
    periodic: int
    optimise: int
    limit: int  # 0 none, 1 virtual time, 2 flow time
    limit_s: float
    period_s: float
    least_flow_time_s: float  # the flow time of a younger job counts as this in its priority: 0 [RR], 30 [IPDPS]
