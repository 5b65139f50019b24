"""Random jobs on nodes, for the tests of yields."""

from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import strategies as st

from testbed.scheduling.policies.capacity import offsets
from testbed.scheduling.policies.state import Cluster, Jobs
from testbed.scheduling.policies.view import NOT_PLACED

NEEDS = [0.05, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1.0]
NOW_S = 10_000.0


def placed(nodes, jobs):
    """Make a state of (places, CPU need, runs, virtual time) in order; every job was submitted in the last NOW_S."""
    tasks = np.array([len(places) for places, *_ in jobs], dtype=np.int64)
    offset = offsets(tasks)
    flat = [*chain(*(p if runs else [NOT_PLACED] * len(p) for p, _, runs, _ in jobs))]
    rows = len(jobs)
    return (
        np.arange(rows),
        Jobs(
            submit_time_s=np.linspace(0.0, NOW_S, rows),
            offset=offset,
            cpu_need_frac=np.array([cpu for _, cpu, _, _ in jobs], dtype=np.float64),
            mem_req_frac=np.full(rows, 0.01),
            weight=np.ones(rows),
            least_yield_frac=np.zeros(rows),
        ),
        Cluster(
            node_available=np.ones(nodes, dtype=np.bool_),
            virtual_time_s=np.array([vt for *_, vt in jobs], dtype=np.float64)
            * (NOW_S - np.linspace(0.0, NOW_S, rows)),
            running=np.array([runs for _, _, runs, _ in jobs], dtype=np.bool_),
            task_node=np.array(flat, dtype=np.int64),
            yield_frac=np.full(rows, 0.123),
        ),
    )


def weights(jobs, cluster):
    """Return the (N, J) CPU need of each job on each node."""
    weight = np.zeros((cluster.node_available.size, cluster.running.size))
    for row in np.flatnonzero(cluster.running):
        np.add.at(weight[:, row], cluster.task_node[jobs.offset[row] : jobs.offset[row + 1]], jobs.cpu_need_frac[row])
    return weight


def copied(cluster):
    return Cluster(*(array.copy() for array in cluster))


@st.composite
def placements(draw, most_nodes=6, most_jobs=12, most_tasks=8):
    nodes = draw(st.integers(1, most_nodes))
    jobs = draw(
        st.lists(
            st.tuples(
                st.lists(st.integers(0, nodes - 1), min_size=1, max_size=most_tasks),
                st.sampled_from(NEEDS),
                st.sampled_from([True, True, True, False]),
                st.sampled_from([0.0, 0.01, 0.2, 0.5, 1.0]),
            ),
            max_size=most_jobs,
        )
    )
    return placed(nodes, jobs)
