"""The lower bound on the maximum bounded stretch that no schedule can beat [RR Theorem 1].

For a maximum stretch S job j has the deadline d_j = r_j + S max(p_j, tau). With unlimited memory and free
moves a schedule that meets all deadlines exists if and only if, between the sorted release dates and
deadlines, the work p_j c_j |T_j| of every job can be divided over the intervals in [r_j, d_j) so that a job
gets at most c_j |T_j| times the length of an interval (1d), and all jobs together |P| times it (1e): a
transportation problem, solved as a maximum flow (`testbed.scheduling.bound.transport`).

Where it has no solution, the minimum cut names jobs A whose work exceeds the CPU time that they can get,

    capacity_A(S) = integral over t of min(|P|, sum of c_j |T_j| over j in A with r_j <= t < d_j(S)),

and the S at which capacity_A reaches their work bounds the optimum from below. So the search jumps from cut
to cut, and ends when the flow at S (1 + accuracy) serves all jobs. It begins at the bound of one fluid
machine, without (1d) (`testbed.scheduling.bound.flow_fluid`). Every value on the way is a true lower bound; the
last is within the relative accuracy of the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from testbed.scheduling.bound.flow_cut import stretch_of_cut
from testbed.scheduling.bound.flow_fluid import fluid_stretch
from testbed.scheduling.bound.transport import unserved
from testbed.scheduling.compiler import can_compile, fastest, is_cached
from testbed.scheduling.workload.jobs import Job

Kind = Literal["theorem1", "fluid"]

ACCURACY = 1e-4  # relative

# For fewer jobs, plain Python kernels finish before machine code is loaded; the value is the same.
COMPILED_FROM_JOBS = 200
# The threshold if machine code must be compiled first, which takes as long as plain kernels for such a trace.
_COMPILING_PAYS_FROM_JOBS = 10_000


def will_compile(jobs: int) -> bool:
    """Whether the first bound of so many jobs compiles its kernels: numba is installed, and no code is cached."""
    return jobs >= COMPILED_FROM_JOBS and can_compile() and not is_cached(unserved)


def bound(
    jobs: Sequence[Job],
    nodes: int,
    tau_s: float = 10.0,
    kind: Kind = "theorem1",
    accuracy: float = ACCURACY,
    *,
    compiling: bool | None = True,
) -> float:
    """Return a lower bound, at least 1, on the maximum bounded stretch of `jobs` on `nodes` nodes [RR Theorem 1].

    The result is at most the optimum of Theorem 1, and at least the optimum divided by (1 + `accuracy`). `tau_s` is the
    lower limit of run times and turnaround times in the bounded stretch, in seconds. `kind` "fluid" leaves constraint
    (1d) out, as if every job could use the whole cluster at once. The fluid bound is never larger, and the published
    degradations fit it. `compiling` says whether machine code is compiled where none is cached; with None it is
    compiled if this is faster. The value is the same. Raises ValueError for no jobs, no nodes or an accuracy that is
    not above 0.
    """
    if not jobs or nodes < 1 or not accuracy > 0:
        raise ValueError(f"a bound needs jobs, nodes and an accuracy: not {len(jobs)} jobs, {nodes} nodes, {accuracy}")
    figures = np.array([(job.submit_time_s, job.run_time_s, job.cpu_need_frac * job.tasks) for job in jobs])
    release_s, run_s, rate = np.ascontiguousarray(figures[np.argsort(figures[:, 0], kind="stable")].T)
    release_s -= release_s[0]
    least_s, work = np.maximum(run_s, tau_s), run_s * rate

    few = len(jobs) < COMPILED_FROM_JOBS
    if not compiling and will_compile(len(jobs)):
        few = compiling is False or len(jobs) < _COMPILING_PAYS_FROM_JOBS
    stretch = (fluid_stretch if few else fastest(fluid_stretch))(release_s, least_s, work / nodes, 1.0, accuracy)
    while kind == "theorem1":
        trial = stretch * (1.0 + accuracy)
        find_cut = unserved if few else fastest(unserved)
        cut = find_cut(release_s, release_s + trial * least_s, work, rate, float(nodes))
        if not cut.any():
            break
        jump = stretch_of_cut if few else fastest(stretch_of_cut)
        forced = jump(release_s[cut], least_s[cut], work[cut], rate[cut], float(nodes), trial)
        if forced <= trial:
            break  # the flow lacks no more than its own tolerance
        stretch = forced
    return stretch
