"""One decision of dynamic fractional resource scheduling on arrays: the kernel of live and simulated runs [RR 4].

At one instant completions are handled first, then submissions one by one, then the periodic pass; yields are
computed once, at the end. A job that runs on a node that is no longer available has lost its place: it is
paused for the decision, and can be placed again like any other job. A change of the nodes frees resources or takes
them, so it is handled like a completion.
"""

from __future__ import annotations

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.capacity import node_memory, node_usage
from testbed.scheduling.policies.configuration import Configuration, Limit, OnSubmission, Optimise, Periodic
from testbed.scheduling.policies.fairness import guaranteed, is_plain, keep_guarantees, weighted_yields
from testbed.scheduling.policies.greedy import fits, make_room
from testbed.scheduling.policies.guaranteed_places import pause_for, place_each, promised, set_down
from testbed.scheduling.policies.ipdps import is_retried
from testbed.scheduling.policies.mcb8 import mcb8
from testbed.scheduling.policies.placing import drop_lost, least_loaded, pause
from testbed.scheduling.policies.priority import by_decreasing_priority
from testbed.scheduling.policies.problem import position_of
from testbed.scheduling.policies.state import (
    AT_NEXT_EVENT,
    AT_ONCE,
    FLOW_TIME,
    GREEDY,
    GREEDY_P,
    GREEDY_PM,
    MCB8,
    NEVER,
    NO_LIMIT,
    NO_PASS,
    NOTHING,
    ON_COMPLETION,
    OPT_AVG,
    OPT_MAX,
    OPT_MIN,
    PACK,
    PACK_FOR_STRETCH,
    VIRTUAL_TIME,
    Cluster,
    Jobs,
    Mask,
    Rules,
)
from testbed.scheduling.policies.stretch import stretch_yields
from testbed.scheduling.policies.view import Floats, Ints
from testbed.scheduling.policies.yields import average_yields, max_min_yields, raise_cheapest_first

_ON_SUBMISSION = {
    OnSubmission.NOTHING: NOTHING,
    OnSubmission.GREEDY: GREEDY,
    OnSubmission.GREEDY_P: GREEDY_P,
    OnSubmission.GREEDY_PM: GREEDY_PM,
    OnSubmission.MCB8: MCB8,
}
_PERIODIC = {Periodic.NOTHING: NO_PASS, Periodic.MCB8: PACK, Periodic.MCB8_STRETCH: PACK_FOR_STRETCH}
_OPTIMISE = {Optimise.MIN: OPT_MIN, Optimise.AVG: OPT_AVG, Optimise.MAX: OPT_MAX}
_LIMIT = {None: NO_LIMIT, Limit.VIRTUAL_TIME: VIRTUAL_TIME, Limit.FLOW_TIME: FLOW_TIME}


def rules_of(configuration: Configuration) -> Rules:
    """Return the numeric rules of a configuration of [RR]."""
    periodic = _PERIODIC[configuration.periodic]
    return Rules(
        on_submission=_ON_SUBMISSION[configuration.on_submission],
        resume=ON_COMPLETION if configuration.opportunistic else NEVER,
        periodic=periodic,
        optimise=_OPTIMISE[configuration.optimise],
        limit=_LIMIT[configuration.limit],
        limit_s=float(configuration.limit_s),
        period_s=0.0 if periodic == NO_PASS else float(configuration.period_s),
        least_flow_time_s=0.0,
        clamps_yields=False,
        backs_off=False,
    )


@kernel
def decide(
    rules: Rules,
    jobs: Jobs,
    cluster: Cluster,
    time_s: float,
    active: Ints,
    submitted: Ints,
    freed: bool,
    periodic: bool,
) -> None:
    """Decide on the events at `time_s`: change which active rows run, `task_node` and `yield_frac`, in place.

    `active` are the ascending rows of jobs that were submitted and have not ended. `submitted` are those that were
    submitted now, or that the caller wants to be tried again, in the order in which they are handled; the decision
    for one does not depend on later ones. `freed` says that jobs completed or that nodes changed, `periodic` that this
    is the instant of a pass.
    """
    ran = cluster.running.copy()
    drop_lost(jobs, cluster, active)
    known = np.ones(active.size, dtype=np.bool_)
    for row in submitted:
        known[position_of(active, row)] = False
    greedy = rules.on_submission in (GREEDY, GREEDY_P, GREEDY_PM)
    acts = greedy and (submitted.size > 0 or rules.backs_off or (freed and rules.resume != NEVER))
    if acts:
        _act_greedily(rules, jobs, cluster, time_s, active, submitted, freed, known)
    for_stretch = rules.periodic == PACK_FOR_STRETCH
    if rules.on_submission == MCB8:
        if freed and rules.resume != NEVER:
            mcb8(active[known], jobs, cluster, rules, time_s, for_stretch)
        for row in submitted:
            known[position_of(active, row)] = True
            mcb8(active[known], jobs, cluster, rules, time_s, for_stretch)
    if rules.guarantees:  # before the pass, which treats all running jobs as old ones
        keep_guarantees(active, ran, jobs, cluster)
    if periodic and rules.periodic != NO_PASS:
        mcb8(active, jobs, cluster, rules, time_s, for_stretch)
    if rules.guarantees:
        keep_guarantees(active, ran, jobs, cluster)
    set_yields(rules, jobs, cluster, time_s, active)


@kernel
def _act_greedily(
    rules: Rules,
    jobs: Jobs,
    cluster: Cluster,
    time_s: float,
    active: Ints,
    submitted: Ints,
    freed: bool,
    known: Mask,
) -> None:
    """Handle completions, then submissions, with Greedy, GreedyP or GreedyPM; `known` is overwritten."""
    cpu_frac = node_usage(active, jobs, cluster, jobs.cpu_need_frac)
    mem_frac = node_memory(active, jobs, cluster)
    promised_frac = promised(active, jobs, cluster, rules)
    if freed and rules.resume != NEVER:
        _resume(rules, jobs, cluster, time_s, active, known, cpu_frac, mem_frac, promised_frac)
    if rules.backs_off:
        for index in range(active.size):
            row = active[index]
            if known[index] and not cluster.running[row] and is_retried(jobs.submit_time_s[row], time_s):
                least_loaded(row, jobs, cluster, cpu_frac, mem_frac)
    for row in submitted:
        known[position_of(active, row)] = True
        force = rules.on_submission != GREEDY
        if not force or fits(jobs.offset[row + 1] - jobs.offset[row], jobs.mem_req_frac[row], mem_frac):
            placed = set_down(row, rules, jobs, cluster, cpu_frac, mem_frac, promised_frac)
            force = force and not placed and rules.guarantees  # there is memory, but not where its guarantee fits
        if force:
            _place_by_force(row, rules, jobs, cluster, time_s, active, known, cpu_frac, mem_frac, promised_frac)
    if submitted.size > 0 and rules.resume in (AT_NEXT_EVENT, AT_ONCE):
        _resume(rules, jobs, cluster, time_s, active, known, cpu_frac, mem_frac, promised_frac)


@kernel
def _resume(
    rules: Rules,
    jobs: Jobs,
    cluster: Cluster,
    time_s: float,
    active: Ints,
    known: Mask,
    cpu_frac: Floats,
    mem_frac: Floats,
    promised_frac: Floats,
) -> None:
    """Try to place the known jobs that do not run, by decreasing priority."""
    stopped = np.empty(active.size, dtype=np.int64)
    count = _find_stopped(active, known, cluster, stopped)
    if count == 0:
        return
    rows = by_decreasing_priority(stopped[:count], jobs, cluster, time_s, rules.least_flow_time_s)
    place_each(rows, rules, jobs, cluster, cpu_frac, mem_frac, promised_frac)


@lean_kernel
def _find_stopped(active: Ints, known: Mask, cluster: Cluster, stopped: Ints) -> int:
    """Write the known rows that do not run to `stopped`; return their number."""
    count = 0
    for index in range(active.size):
        if known[index] and not cluster.running[active[index]]:
            stopped[count] = active[index]
            count += 1
    return count


@kernel
def _place_by_force(
    newcomer: int,
    rules: Rules,
    jobs: Jobs,
    cluster: Cluster,
    time_s: float,
    active: Ints,
    known: Mask,
    cpu_frac: Floats,
    mem_frac: Floats,
    promised_frac: Floats,
) -> None:
    """Pause jobs so that the newcomer fits, and place it; with GreedyPM, place the paused jobs again where they fit."""
    runs = np.empty(active.size, dtype=np.int64)
    count = 0
    for row in active:
        if cluster.running[row] and guaranteed(row, jobs, rules) == 0.0:
            runs[count] = row
            count += 1
    candidates = by_decreasing_priority(runs[:count], jobs, cluster, time_s, rules.least_flow_time_s)[::-1].copy()
    if guaranteed(newcomer, jobs, rules) > 0.0:
        paused = pause_for(
            newcomer, candidates, rules, jobs, cluster, active, cpu_frac, mem_frac, promised_frac
        )  # fmt: skip
    else:
        marked = np.empty(count, dtype=np.bool_)
        if not make_room(newcomer, candidates, jobs, cluster, mem_frac, marked):
            return
        paused = candidates[marked][::-1].copy()
        for row in paused:
            pause(row, jobs, cluster)
        cpu_frac[:] = node_usage(active, jobs, cluster, jobs.cpu_need_frac)
        least_loaded(newcomer, jobs, cluster, cpu_frac, mem_frac)
    if rules.on_submission == GREEDY_PM:
        place_each(paused, rules, jobs, cluster, cpu_frac, mem_frac, promised_frac)
    if rules.resume == AT_NEXT_EVENT:
        for row in paused:
            known[position_of(active, row)] = False


@kernel
def set_yields(rules: Rules, jobs: Jobs, cluster: Cluster, time_s: float, active: Ints) -> None:
    """Set the yields of a map according to the rules."""
    if not is_plain(rules):
        weighted_yields(active, jobs, cluster, rules)
    elif rules.periodic == PACK_FOR_STRETCH:
        stretch_yields(active, jobs, cluster, time_s, rules.period_s, rules.optimise == OPT_AVG)
    elif rules.optimise == OPT_MIN:
        max_min_yields(active, jobs, cluster)
    elif rules.optimise == OPT_AVG:
        average_yields(active, jobs, cluster)
    else:
        raise_cheapest_first(active, jobs, cluster)
