"""A pass that weighs the cost of moves: jobs keep their nodes unless they gain more than the move costs.

Over a horizon H a job that moves, and stands still for c, does as much work as at the yield y (1 - c / H): its
*effective yield*. Nodes are identical, so the nodes of the plan are first renamed so that many tasks keep their nodes.
Then the plan is changed job by job, the most costly first. A job returns to its nodes if they have free memory, and if
the least effective yield of all running jobs does not fall, nor their sum if the least one is equal. For /stretch-per
the inverse of the estimated stretch, at effective yields, must not fall.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.places import match_nodes
from testbed.scheduling.policies.capacity import CAPACITY_FRAC, TOLERANCE_FRAC, node_memory
from testbed.scheduling.policies.decision import decide as decide_dfrs
from testbed.scheduling.policies.decision import set_yields
from testbed.scheduling.policies.fairness import MOST_GUARANTEED_FRAC, keep_guarantees, relative_weights
from testbed.scheduling.policies.guaranteed_places import place_each, promise_of, promised
from testbed.scheduling.policies.kernel_policy import RulesAndColumns
from testbed.scheduling.policies.placing import usage, waiting
from testbed.scheduling.policies.priority import by_decreasing_priority
from testbed.scheduling.policies.problem import is_pinned
from testbed.scheduling.policies.state import PACK_FOR_STRETCH, Cluster, Jobs, Mask, Rules
from testbed.scheduling.policies.view import NOT_PLACED, Floats, Ints

_TRANSFER = 1e-9  # weight of a transfer of images, relative to a move that costs nothing


class PricedRules(NamedTuple):
    """The rules of the policy, the most moves of a pass, and the horizon in seconds."""

    base: Rules
    most_moves: int  # jobs that change a node
    horizon_s: float


class Before(NamedTuple):
    """The running jobs and their nodes before a decision, the cost of a move per job, and the jobs that move now."""

    running: Mask  # (J,)
    task_node: Ints  # (sum of tasks,)
    image_node: Ints  # (sum of tasks,) of images of paused jobs, NOT_PLACED without one
    cost_s: Floats  # (J,) seconds per move; 0 if unknown
    moves: Mask  # (J,)
    packed: Mask  # (J,) jobs that ran when the pass began, after submissions of the same instant
    ratio: Floats  # (J,) relative weights


class Loads(NamedTuple):
    """What the tasks on each node use of it."""

    mem_frac: Floats  # (N,)
    promised_frac: Floats  # (N,) guaranteed CPU


@kernel
def decide(
    args: RulesAndColumns, jobs: Jobs, cluster: Cluster, time_s: float, active: Ints, submitted: Ints, freed: bool,
    periodic: bool,
) -> None:  # fmt: skip
    """Decide as `policies.decision.decide`, but in a pass let jobs keep their nodes where this pays.

    If memory does not allow a plan with so few moves, no job moves, and waiting jobs start where they fit.
    """
    rules = args.rules
    if not periodic:
        decide_dfrs(rules.base, jobs, cluster, time_s, active, submitted, freed, False)
        return
    cost_s = args.columns.move_cost_s.copy()
    for row in active:
        if not cost_s[row] >= 0.0:
            cost_s[row] = 0.0
    ran, stood_on, moves = cluster.running.copy(), cluster.task_node.copy(), np.zeros(cost_s.size, dtype=np.bool_)
    decide_dfrs(rules.base, jobs, cluster, time_s, active, submitted, freed, False)
    calm_running, calm_node = cluster.running.copy(), cluster.task_node.copy()
    ratio = relative_weights(active, jobs, cluster, rules.base)
    before = Before(ran, stood_on, args.columns.image_node, cost_s, moves, calm_running, ratio)
    decide_dfrs(rules.base, jobs, cluster, time_s, active, submitted[:0], False, True)
    if keep_places(rules, before, jobs, cluster, time_s, active) > rules.most_moves:
        cluster.running[:] = calm_running
        cluster.task_node[:] = calm_node
        _start_others(rules, jobs, cluster, time_s, active)


@kernel
def keep_places(
    rules: PricedRules, before: Before, jobs: Jobs, cluster: Cluster, time_s: float, active: Ints
) -> int:  # fmt: skip
    """Let jobs stay where it pays, then until at most `most_moves` move; set yields, return the number that move."""
    rename_nodes(rules, before, jobs, cluster, time_s, active)
    rows = _movers(before, jobs, cluster, active)
    left = rows.size
    if left == 0:
        return 0
    loads = Loads(node_memory(active, jobs, cluster), promised(active, jobs, cluster, rules.base))
    order = rows[np.argsort(-before.cost_s[rows], kind="mergesort")]
    least, total = worth(rules, before, jobs, cluster, time_s, active)
    changed = True
    while changed:
        changed = False
        for row in order:
            if not before.moves[row]:
                continue
            planned = cluster.task_node[jobs.offset[row] : jobs.offset[row + 1]].copy()
            if not _put(row, before.task_node[jobs.offset[row] : jobs.offset[row + 1]], rules, jobs, cluster, loads):
                continue
            before.moves[row] = False
            set_yields(rules.base, jobs, cluster, time_s, active)
            new_least, new_total = worth(rules, before, jobs, cluster, time_s, active)
            if is_less(new_least, new_total, least, total):
                before.moves[row] = True
                _put(row, planned, rules, jobs, cluster, loads)
            else:
                least, total, changed = new_least, new_total, True
                left -= 1
    if left > rules.most_moves:
        left = _keep_more(rules, before, left, order, loads, jobs, cluster, time_s, active)
    set_yields(rules.base, jobs, cluster, time_s, active)
    return int(left)


@kernel
def _keep_more(
    rules: PricedRules, before: Before, left: int, order: Ints, loads: Loads, jobs: Jobs, cluster: Cluster,
    time_s: float, active: Ints,
) -> int:  # fmt: skip
    """Let further jobs stay, those with the least loss first; return the number that still move."""
    leasts, totals = np.full(order.size, -np.inf), np.full(order.size, -np.inf)
    for index in range(order.size):
        row = order[index]
        if not before.moves[row]:
            continue
        planned = cluster.task_node[jobs.offset[row] : jobs.offset[row + 1]].copy()
        if _put(row, before.task_node[jobs.offset[row] : jobs.offset[row + 1]], rules, jobs, cluster, loads):
            before.moves[row] = False
            set_yields(rules.base, jobs, cluster, time_s, active)
            leasts[index], totals[index] = worth(rules, before, jobs, cluster, time_s, active)
            before.moves[row] = True
            _put(row, planned, rules, jobs, cluster, loads)
    by_total = np.argsort(-totals, kind="mergesort")
    for index in by_total[np.argsort(-leasts[by_total], kind="mergesort")]:
        row = order[index]
        if left <= rules.most_moves:
            break
        nodes = before.task_node[jobs.offset[row] : jobs.offset[row + 1]]
        if before.moves[row] and _put(row, nodes, rules, jobs, cluster, loads):
            before.moves[row] = False
            left -= 1
    return left


@kernel
def _start_others(rules: PricedRules, jobs: Jobs, cluster: Cluster, time_s: float, active: Ints) -> None:
    """Start or resume jobs by decreasing priority where they fit beside those that run; set the yields."""
    least_s = rules.base.least_flow_time_s
    rows = by_decreasing_priority(waiting(active, cluster), jobs, cluster, time_s, least_s)
    cpu_frac, mem_frac = usage(active, jobs, cluster)
    ran = cluster.running.copy()
    place_each(rows, rules.base, jobs, cluster, cpu_frac, mem_frac, promised(active, jobs, cluster, rules.base))
    if rules.base.guarantees:
        keep_guarantees(active, ran, jobs, cluster)
    set_yields(rules.base, jobs, cluster, time_s, active)


@kernel
def rename_nodes(
    rules: PricedRules, before: Before, jobs: Jobs, cluster: Cluster, time_s: float, active: Ints
) -> None:  # fmt: skip
    """Rename the nodes of a plan so that tasks keep their nodes: the pair of nodes that saves most comes first.

    A task that stays saves its part of the cost of a move of its job. A resumed task on the node of its image saves a
    transfer, which counts only where no move is saved. Nodes of jobs that the plan may not move keep their names.
    """
    nodes = cluster.node_available.size
    target = np.full(nodes, NOT_PLACED, dtype=np.int64)
    taken = ~cluster.node_available
    size = _fix_pinned(rules, before, jobs, cluster, time_s, active, target, taken)
    pairs, savings = np.empty(size, dtype=np.int64), np.empty(size)
    counts = np.zeros((2, nodes), dtype=np.int64)
    size = _list_pairs(before, jobs, cluster, active, counts, pairs, savings)
    by_pair = np.argsort(pairs[:size], kind="mergesort")
    size = _add_up(by_pair, pairs, savings)
    for index in np.argsort(-savings[:size], kind="mergesort"):
        plan, node = pairs[index] // nodes, pairs[index] % nodes
        if target[plan] == NOT_PLACED and not taken[node]:
            target[plan] = node
            taken[node] = True
    _fill_up(target, taken, cluster)
    for row in active:
        if cluster.running[row]:
            for task in range(jobs.offset[row], jobs.offset[row + 1]):
                cluster.task_node[task] = target[cluster.task_node[task]]


@lean_kernel
def _fix_pinned(
    rules: PricedRules, before: Before, jobs: Jobs, cluster: Cluster, time_s: float, active: Ints, target: Ints,
    taken: Mask,
) -> int:  # fmt: skip
    """Let nodes of pinned jobs keep their names; return the number of pairs of nodes of all jobs."""
    size = 0
    for row in active:
        if _had_nodes(row, before, jobs, cluster):
            tasks = jobs.offset[row + 1] - jobs.offset[row]
            size += min(tasks, target.size) ** 2
            if before.running[row] and before.packed[row] and is_pinned(row, jobs, cluster, rules.base, time_s):
                for task in range(jobs.offset[row], jobs.offset[row + 1]):
                    target[cluster.task_node[task]] = cluster.task_node[task]
                    taken[cluster.task_node[task]] = True
    return int(size)


@lean_kernel
def _had_nodes(row: int, before: Before, jobs: Jobs, cluster: Cluster) -> bool:
    """Whether a job of the plan has nodes so far: those on which it runs, or those of its images."""
    has_images = not before.running[row] and before.image_node[jobs.offset[row]] != NOT_PLACED
    return bool(cluster.running[row] and (before.running[row] or has_images))


@lean_kernel
def _fill_up(target: Ints, taken: Mask, cluster: Cluster) -> None:
    """Give the other nodes of a plan the remaining names: their own where free, else the first free one."""
    for plan in range(target.size):
        if target[plan] == NOT_PLACED and not taken[plan]:
            target[plan] = plan
            taken[plan] = True
    free = 0
    for plan in range(target.size):
        if target[plan] == NOT_PLACED and cluster.node_available[plan]:
            while taken[free]:
                free += 1
            target[plan] = free
            taken[free] = True


@lean_kernel
def _list_pairs(
    before: Before, jobs: Jobs, cluster: Cluster, active: Ints, counts: Ints, pairs: Ints, savings: Floats
) -> int:  # fmt: skip
    """Write the saving of each pair of a planned and a present node of a job; return the number of pairs.

    `counts` (2, N) are zeros.
    """
    nodes = cluster.node_available.size
    size = 0
    for row in active:
        if _had_nodes(row, before, jobs, cluster):
            first, end = jobs.offset[row], jobs.offset[row + 1]
            there = before.task_node if before.running[row] else before.image_node
            saving = (1.0 + before.cost_s[row] if before.running[row] else _TRANSFER) / (end - first)
            for task in range(first, end):
                counts[0, cluster.task_node[task]] += 1
                counts[1, there[task]] += 1
            for task in range(first, end):
                plan = cluster.task_node[task]
                if counts[0, plan] > 0:
                    for other in range(first, end):
                        node = there[other]
                        if counts[1, node] > 0:
                            pairs[size] = plan * nodes + node
                            savings[size] = saving * min(counts[0, plan], counts[1, node])
                            size += 1
                            counts[1, node] = -counts[1, node]
                    counts[0, plan] = 0
                    for other in range(first, end):
                        counts[1, there[other]] = abs(counts[1, there[other]])
            for task in range(first, end):
                counts[1, there[task]] = 0
    return size


@kernel
def _add_up(by_pair: Ints, pairs: Ints, savings: Floats) -> int:
    """Add the savings of equal pairs, `by_pair` in order; write each pair once, and return their number."""
    sorted_pairs, sorted_savings = pairs[by_pair], savings[by_pair]
    count = 0
    for index in range(sorted_pairs.size):
        if count > 0 and pairs[count - 1] == sorted_pairs[index]:
            savings[count - 1] += sorted_savings[index]
        else:
            pairs[count] = sorted_pairs[index]
            savings[count] = sorted_savings[index]
            count += 1
    return count


@kernel
def _movers(before: Before, jobs: Jobs, cluster: Cluster, active: Ints) -> Ints:
    """Return the rows that continue to run, with a task on another node, and mark them in `before.moves`."""
    counts = np.zeros(cluster.node_available.size, dtype=np.int64)
    rows = np.empty(active.size, dtype=np.int64)
    count = 0
    for row in active:
        if before.running[row] and cluster.running[row]:
            first, end = jobs.offset[row], jobs.offset[row + 1]
            now = cluster.task_node[first:end]
            if match_nodes(before.task_node[first:end], now, counts, now[:0]) > 0:
                before.moves[row] = True
                rows[count] = row
                count += 1
    return rows[:count].copy()


@lean_kernel
def _put(row: int, nodes: Ints, rules: PricedRules, jobs: Jobs, cluster: Cluster, loads: Loads) -> bool:
    """Move the tasks of a job to `nodes`, and update the loads, if memory and guarantees fit; else change nothing."""
    need = jobs.mem_req_frac[row]
    promise = promise_of(row, jobs, rules.base)
    first = jobs.offset[row]
    for task in range(first, jobs.offset[row + 1]):
        loads.mem_frac[cluster.task_node[task]] -= need
        loads.promised_frac[cluster.task_node[task]] -= promise
    fits = True
    for index in range(nodes.size):
        loads.mem_frac[nodes[index]] += need
        loads.promised_frac[nodes[index]] += promise
    for index in range(nodes.size):
        fits = fits and loads.mem_frac[nodes[index]] <= CAPACITY_FRAC
        if promise > 0.0:
            fits = fits and loads.promised_frac[nodes[index]] <= MOST_GUARANTEED_FRAC + TOLERANCE_FRAC
    if fits:
        for index in range(nodes.size):
            cluster.task_node[first + index] = nodes[index]
        return True
    for index in range(nodes.size):
        loads.mem_frac[nodes[index]] -= need
        loads.promised_frac[nodes[index]] -= promise
    for task in range(first, jobs.offset[row + 1]):
        loads.mem_frac[cluster.task_node[task]] += need
        loads.promised_frac[cluster.task_node[task]] += promise
    return False


@lean_kernel
def worth(
    rules: PricedRules, before: Before, jobs: Jobs, cluster: Cluster, time_s: float, active: Ints
) -> tuple[float, float]:
    """Return the least effective yield of all running jobs and their sum, or of inverses of estimated stretches.

    Yields are divided by relative weights.
    """
    least, total = np.inf, 0.0
    for row in active:
        if not cluster.running[row]:
            continue
        value = cluster.yield_frac[row]
        if before.moves[row]:
            value *= max(0.0, 1.0 - before.cost_s[row] / rules.horizon_s)
        if rules.base.periodic == PACK_FOR_STRETCH:
            flow_time_s = time_s - jobs.submit_time_s[row]
            value = (cluster.virtual_time_s[row] + value * rules.horizon_s) / (flow_time_s + rules.horizon_s)
        value /= before.ratio[row]
        least = min(least, value)
        total += value
    return least, total


@lean_kernel
def is_less(least: float, total: float, than_least: float, than_total: float) -> bool:
    """Whether one plan is worth less than another."""
    if abs(least - than_least) > TOLERANCE_FRAC:
        return bool(least < than_least)
    return bool(total < than_total - TOLERANCE_FRAC)
