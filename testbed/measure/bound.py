"""The lower bound on the maximum bounded stretch that no schedule can beat [RR Theorem 1].

For a maximum stretch S job j has the deadline d_j = r_j + S max(p_j, tau). With unlimited memory and free
moves a schedule that meets all deadlines exists if and only if, between the sorted release dates and
deadlines, the work p_j c_j |T_j| of every job can be divided over the intervals in [r_j, d_j) so that a job
gets at most c_j |T_j| times the length of an interval (1d), and all jobs together |P| times it (1e): a
transportation problem, solved as a maximum flow (`testbed.measure.transport`).

Where it has no solution, the minimum cut names jobs A whose work exceeds what they can get at all,

    capacity_A(S) = integral over t of min(|P|, sum of c_j |T_j| over j in A with r_j <= t < d_j(S)),

and the S at which capacity_A reaches their work bounds the optimum from below. So the search jumps from cut
to cut, and ends when the flow at S (1 + accuracy) serves all jobs. Every value on the way is a true lower
bound; the last is within the relative accuracy of the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from testbed.measure.transport import unserved
from testbed.workload.jobs import Job

Floats = NDArray[np.float64]
Kind = Literal["theorem1", "fluid"]

ACCURACY = 1e-4  # relative


def bound(
    jobs: Sequence[Job], nodes: int, tau_s: float = 10.0, kind: Kind = "theorem1", accuracy: float = ACCURACY
) -> float:
    """Return a lower bound, at least 1, on the maximum bounded stretch of `jobs` on `nodes` nodes.

    It is at most the optimum of Theorem 1, and at least that divided by (1 + `accuracy`). `tau_s` bounds the
    stretch from below, in seconds. `kind` "fluid" leaves constraint (1d) out, as if every job could use the
    whole cluster at once: never larger, and the one that the published degradations fit. Raises ValueError
    for no jobs or no nodes.
    """
    if not jobs or nodes < 1:
        raise ValueError(f"a bound needs jobs and nodes, not {len(jobs)} jobs on {nodes} nodes")
    release_s = np.array([job.submit_time_s for job in jobs], dtype=np.float64)
    release_s -= release_s.min()
    run_s = np.array([job.run_time_s for job in jobs], dtype=np.float64)
    least_s = np.maximum(run_s, tau_s)
    rate = np.array([job.cpu_need_frac * job.tasks for job in jobs], dtype=np.float64)
    work = run_s * rate
    if kind == "fluid":
        rate = np.full(len(jobs), float(nodes))

    stretch = 1.0
    while True:
        trial = stretch * (1.0 + accuracy)
        deadline_s = release_s + trial * least_s
        cut = _cut(release_s, deadline_s, work, rate, nodes)
        if not cut.any():
            return stretch
        demand = float(work[cut].sum())
        if _capacity(release_s[cut], deadline_s[cut], rate[cut], nodes) >= demand:
            return stretch  # the flow lacks no more than its own tolerance
        stretch = _stretch_of_cut(release_s[cut], least_s[cut], demand, rate[cut], nodes=nodes, at_least=trial)


def _cut(release_s: Floats, deadline_s: Floats, work: Floats, rate: Floats, nodes: int) -> NDArray[np.bool_]:
    """Return (J,) the jobs on the source side of a minimum cut: none if all work can be done in time."""
    times_s = np.unique(np.concatenate((release_s, deadline_s)))
    length_s = np.diff(times_s)
    active = (release_s[:, None] <= times_s[None, :-1]) & (deadline_s[:, None] >= times_s[None, 1:])
    arcs = np.where(active, rate[:, None] * length_s[None, :], 0.0)
    return unserved(work, arcs, nodes * length_s)


def _capacity(release_s: Floats, deadline_s: Floats, rate: Floats, nodes: int) -> float:
    """Return the CPU seconds that these jobs together can get at most before their deadlines."""
    times_s = np.concatenate((release_s, deadline_s))
    order = np.argsort(times_s, kind="stable")
    demand = np.cumsum(np.concatenate((rate, -rate))[order])[:-1]
    return float(np.sum(np.clip(demand, 0.0, nodes) * np.diff(times_s[order])))


def _stretch_of_cut(
    release_s: Floats, least_s: Floats, work: float, rate: Floats, *, nodes: int, at_least: float
) -> float:
    """Return the stretch at which the capacity of these jobs reaches their work, rounded down.

    `at_least` is a stretch at which it does not. Capacity grows with stretch, so bisection finds it.
    """

    def enough(stretch: float) -> bool:
        return _capacity(release_s, release_s + stretch * least_s, rate, nodes) >= work

    low, high = at_least, 2.0 * at_least
    while not enough(high):
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low
