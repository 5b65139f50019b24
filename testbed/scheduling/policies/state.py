"""The data of policies' kernels: jobs and cluster as named arrays, the rules of a policy as numbers.

The simulator keeps one such state for a whole trace and passes the active rows; live runs make one from each
view, in which every row is active. A decision changes the state in place: maps, yields, and
which rows run. Rows are jobs in order of submission; the tasks of row j are the elements
`offset[j]:offset[j + 1]` of `task_node`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.scheduling.policies.view import Floats, Ints

Mask = NDArray[np.bool_]

# Rules.on_submission
NOTHING, GREEDY, GREEDY_P, GREEDY_PM, MCB8 = range(5)
# Rules.resume: when paused and waiting jobs are tried
NEVER, ON_COMPLETION, AT_NEXT_EVENT, AT_ONCE = range(4)
# Rules.periodic
NO_PASS, PACK, PACK_FOR_STRETCH = range(3)
# Rules.optimise
OPT_MIN, OPT_AVG, OPT_MAX, CHEAPEST_FIRST = range(4)
# Rules.limit
NO_LIMIT, VIRTUAL_TIME, FLOW_TIME = range(3)


class Jobs(NamedTuple):
    """The constant data of J jobs."""

    submit_time_s: Floats  # (J,), not decreasing
    offset: Ints  # (J + 1,)
    cpu_need_frac: Floats  # (J,)
    mem_req_frac: Floats  # (J,)
    weight: Floats  # (J,) more than 0
    least_yield_frac: Floats  # (J,) from 0 to 1


class Cluster(NamedTuple):
    """The variable data of N nodes and J jobs. The map and the yield of a row that is not running are not read."""

    node_available: Mask  # (N,)
    virtual_time_s: Floats  # (J,)
    running: Mask  # (J,)
    task_node: Ints  # (sum of tasks,), NOT_PLACED for every task of a job that is not running after a decision
    yield_frac: Floats  # (J,), 0 for a job that is not running after a decision


class Rules(NamedTuple):
    """The numeric rules of a policy: constants of this module, and times in seconds.

    `resume` is NEVER, or ON_COMPLETION, the `*` of [RR 4.5]. The other two values are for [IPDPS III.A], where paused
    jobs are tried at every event: including jobs that the same event paused (AT_ONCE), or not (AT_NEXT_EVENT).
    """

    on_submission: int
    resume: int
    periodic: int
    optimise: int
    limit: int
    limit_s: float  # a running job whose limited time is strictly below it keeps its nodes in a packing
    period_s: float  # 0 for a policy without passes, else also the horizon of estimated stretches
    least_flow_time_s: float  # the flow time of a younger job counts as this in its priority: 0 [RR], 30 [IPDPS]
    clamps_yields: bool  # /stretch-per: a required yield below 0 counts as 0.01, one above 1 as 1 [IPDPS III.B]
    backs_off: bool  # jobs that wait are tried again at their retry instants (`testbed.scheduling.policies.ipdps`)
    weighs: bool = False  # yields are in proportion to the weights of jobs (`testbed.scheduling.policies.fairness`)
    guarantees: bool = False  # jobs that run get their guaranteed yields, and are not paused for others
    decay_s: float = 0.0  # virtual time at which a job has half its weight; 0: weights do not decay
