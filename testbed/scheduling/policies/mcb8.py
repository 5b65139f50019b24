"""MCB8: a map of all jobs for the highest yield, or the lowest stretch, that packing finds [RR 4.3, 4.7].

For a target, every job has a CPU requirement: its CPU need times its yield. The yield is the target itself. For a
stretch S, searched as x = 1 / S, it is the yield that brings the job's estimated stretch to S at the next pass.
The search tries 1, then 0.01, then bisects to a width of 0.01; while even 0.01 is infeasible, the job of lowest
priority is left out. Jobs below MINVT or MINFT are pinned: they are placed before all others, on their present nodes.

A target that requires a yield above 1 is infeasible. At 0.01, the end of the search, such a yield counts as 1:
otherwise one job that has waited for a hundred periods would cause all jobs to be left out, itself last.
"""

from __future__ import annotations

import numpy as np

from testbed.scheduling.compiler import kernel, lean_kernel
from testbed.scheduling.policies.capacity import CAPACITY_FRAC, TOLERANCE_FRAC
from testbed.scheduling.policies.fairness import MOST_GUARANTEED_FRAC, guaranteed, is_plain, level_yield
from testbed.scheduling.policies.packing import Patterns, new_patterns, pack, set_lists
from testbed.scheduling.policies.priority import by_decreasing_priority
from testbed.scheduling.policies.problem import Problem, drop, new_problem, sort_items
from testbed.scheduling.policies.state import Cluster, Jobs, Rules
from testbed.scheduling.policies.stretch import yield_for
from testbed.scheduling.policies.view import NOT_PLACED, Ints

LEAST_TARGET = 0.01  # a yield, or the inverse of a stretch; rather than go below it, a job is dropped
TARGET_ACCURACY = 0.01


@kernel
def mcb8(rows: Ints, jobs: Jobs, cluster: Cluster, rules: Rules, time_s: float, stretch: bool) -> None:
    """Re-compute the map of the ascending `rows`, in place; jobs for which there is no place do not run afterwards."""
    problem = new_problem(rows, jobs, cluster, rules, time_s, stretch or not is_plain(rules))
    total, wide, mem_frac = 0, 0, 0.0
    for row in rows:
        tasks = jobs.offset[row + 1] - jobs.offset[row]
        total += tasks
        mem_frac += tasks * jobs.mem_req_frac[row]
        if jobs.mem_req_frac[row] > CAPACITY_FRAC / 2.0:
            wide += tasks
    best = new_patterns(problem.nodes.size, total)
    trial = new_patterns(problem.nodes.size, total)
    order = rows
    for drops in range(rows.size + 1):
        # No packing exists if the memory of all nodes is exceeded, or if more tasks than nodes need over half a node.
        if mem_frac <= _most_frac(problem) and wide <= problem.nodes.size:
            found = _search(problem, jobs, cluster, rules, time_s, stretch, best, trial)
            if found.number[0] >= 0:
                _write(problem, rows, jobs, cluster, found)
                return
        if drops == 0:
            order = by_decreasing_priority(rows, jobs, cluster, time_s, rules.least_flow_time_s)
            if rules.guarantees:  # jobs that run with a guarantee are the last to be left out, the youngest first
                keeps = cluster.running & (jobs.least_yield_frac > 0.0)
                order = np.concatenate((rows[keeps[rows]], order[~keeps[order]]))
        if drops < rows.size:
            row = order[rows.size - 1 - drops]
            tasks = drop(problem, rows, row, jobs)
            mem_frac -= tasks * jobs.mem_req_frac[row]
            if jobs.mem_req_frac[row] > CAPACITY_FRAC / 2.0:
                wide -= tasks
    best.number[0] = 0
    _write(problem, rows, jobs, cluster, best)


@lean_kernel
def _most_frac(problem: Problem) -> float:
    """Return the capacity of all nodes together, with a margin for the rounding of sums."""
    return problem.nodes.size * (1.0 + 2.0 * TOLERANCE_FRAC)


@kernel
def _search(
    problem: Problem,
    jobs: Jobs,
    cluster: Cluster,
    rules: Rules,
    time_s: float,
    stretch: bool,
    best: Patterns,
    trial: Patterns,
) -> Patterns:
    """Return the patterns of the highest feasible target, with number -1 if there is none."""
    if _try(problem, 1.0, jobs, cluster, rules, time_s, stretch, best):
        return best
    # The job with the largest relative weight has the least target as its yield at the lowest level.
    largest = 1.0
    if not stretch:
        for row in problem.free:
            largest = max(largest, problem.ratio[row])
        for row in problem.pinned:
            if row != NOT_PLACED:
                largest = max(largest, problem.ratio[row])
    if not _try(problem, LEAST_TARGET / largest, jobs, cluster, rules, time_s, stretch, best):
        best.number[0] = -1
        return best
    low, high = LEAST_TARGET / largest, 1.0
    while high - low > TARGET_ACCURACY / largest:
        middle = (low + high) / 2.0
        if _try(problem, middle, jobs, cluster, rules, time_s, stretch, trial):
            low = middle
            best, trial = trial, best
        else:
            high = middle
    return best


@kernel
def _try(
    problem: Problem,
    target: float,
    jobs: Jobs,
    cluster: Cluster,
    rules: Rules,
    time_s: float,
    stretch: bool,
    patterns: Patterns,
) -> bool:
    """Pack for one target; write `patterns` where that succeeds."""
    items = problem.tasks.size
    left, cpu_frac = 0, 0.0
    for item in range(items):
        row = problem.free[problem.begin[item]]
        need = requirement(row, target, problem, jobs, cluster, rules, time_s, stretch)
        problem.cpu_frac[item] = need
        left += problem.tasks[item]
        if problem.tasks[item] > 0:
            cpu_frac += problem.tasks[item] * need
    if problem.pinned.size > 0:
        problem.load_cpu[:] = 0.0
        problem.load_mem[:] = 0.0
        for row in problem.pinned:
            if row != NOT_PLACED:
                need = requirement(row, target, problem, jobs, cluster, rules, time_s, stretch)
                cpu_frac += (jobs.offset[row + 1] - jobs.offset[row]) * need
                for task in range(jobs.offset[row], jobs.offset[row + 1]):
                    problem.load_cpu[cluster.task_node[task]] += need
                    problem.load_mem[cluster.task_node[task]] += jobs.mem_req_frac[row]
    if cpu_frac > _most_frac(problem) or not _set_runs(problem):
        return False
    if stretch or not is_plain(rules):
        sort_items(problem)
    set_lists(problem.lists, problem.cpu_frac, problem.mem_frac, problem.tasks, problem.by_cpu, problem.by_mem)
    return pack(problem.lists, items, left, problem.runs, patterns)


@lean_kernel
def requirement(
    row: int, target: float, problem: Problem, jobs: Jobs, cluster: Cluster, rules: Rules, time_s: float, stretch: bool
) -> float:  # fmt: skip
    """Return the CPU requirement of a task of the job at a target, a fraction of a node; infinite if infeasible."""
    level = target
    if stretch:
        flow_time_s = time_s - jobs.submit_time_s[row]
        level = yield_for(target, flow_time_s, cluster.virtual_time_s[row], rules.period_s)
        if rules.clamps_yields and level <= 0.0:
            level = LEAST_TARGET
        if level > 1.0 + TOLERANCE_FRAC and target > LEAST_TARGET and not rules.clamps_yields:
            return np.inf
        level = min(level, 1.0)
    elif not is_plain(rules):
        # Divided by the most that is guaranteed, so that the guarantees on a full node do not exceed it.
        level = max(level_yield(target, problem.ratio[row], 0.0), guaranteed(row, jobs, rules) / MOST_GUARANTEED_FRAC)
    return float(jobs.cpu_need_frac[row] * level)


@lean_kernel
def _set_runs(problem: Problem) -> bool:
    """Find the runs of nodes on which pinned rows use equal amounts; return whether no node is over-committed."""
    runs, nodes = problem.runs, problem.nodes
    count = 0
    for position in range(nodes.size):
        cpu_frac, mem_frac = 0.0, 0.0
        if problem.pinned.size > 0:
            cpu_frac, mem_frac = problem.load_cpu[nodes[position]], problem.load_mem[nodes[position]]
        if cpu_frac > CAPACITY_FRAC or mem_frac > CAPACITY_FRAC:
            return False
        if count == 0 or cpu_frac != runs.cpu_frac[count - 1] or mem_frac != runs.mem_frac[count - 1]:
            runs.cpu_frac[count] = cpu_frac
            runs.mem_frac[count] = mem_frac
            count += 1
        runs.end[count - 1] = position + 1
        if problem.pinned.size == 0:
            runs.end[0] = nodes.size
            break
    runs.number[0] = count
    return True


@kernel
def _write(problem: Problem, rows: Ints, jobs: Jobs, cluster: Cluster, patterns: Patterns) -> None:
    """Write the map of the patterns: each item gives its tasks in the order of its rows."""
    for index in range(rows.size):
        row = rows[index]
        if problem.dropped[index]:
            cluster.running[row] = False
            cluster.task_node[jobs.offset[row] : jobs.offset[row + 1]] = NOT_PLACED
        else:
            cluster.running[row] = True
    member = problem.begin[:-1].copy()  # of each item, the row that gives its tasks
    given = np.zeros(problem.tasks.size, dtype=np.int64)  # of the tasks of that row
    entry = 0
    for pattern in range(patterns.number[0]):
        begin = entry
        for node in range(patterns.first[pattern], patterns.first[pattern] + patterns.nodes[pattern]):
            for at in range(begin, patterns.end[pattern]):
                item = patterns.item[at]
                for _ in range(patterns.tasks[at]):
                    row = problem.free[member[item]]
                    cluster.task_node[jobs.offset[row] + given[item]] = problem.nodes[node]
                    given[item] += 1
                    if given[item] == jobs.offset[row + 1] - jobs.offset[row]:
                        given[item] = 0
                        member[item] += 1
        entry = patterns.end[pattern]
