"""The mixed integer linear program of the static problem, and its relaxation [PHD V.A].

    maximise Y
    sum_j e_ij = 1            each task i is on one node j: e_ij is 0 or 1, in the relaxation between
    y_ij <= e_ij              a task has a yield only on its node
    sum_j y_ij >= Y
    sum_i c_i y_ij <= 1       CPU needs, times yields, of a node
    sum_i m_i e_ij <= 1       memory

Nodes are identical, so task i may be restricted to the first i nodes: any solution can be renumbered in this way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from testbed.errors import UserError
from testbed.scheduling.policies.capacity import CAPACITY_FRAC
from testbed.scheduling.static.problem import Floats, Ints, StaticProblem

MOST_VARIABLES = 2_000_000
OPTIMAL, NO_SOLUTION = "optimal", "no solution"  # proven, to the accuracy of HiGHS: a relative gap of 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """A solution of the program: e (T, N), the objective, and the best known bound; e is None without a solution."""

    placed: Floats | None
    objective: float
    bound: float
    optimal: bool


def solve(problem: StaticProblem, *, integer: bool, time_limit_s: float) -> Solved:
    """Solve the program by HiGHS, or its relaxation; raise `UserError` for one that is too large, or without SciPy."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415  # an extra, and slow to import
    except ModuleNotFoundError:
        raise UserError("linear programs need SciPy: pip install 'dfrs-testbed[place]'") from None
    tasks, nodes = problem.tasks, problem.nodes
    pairs = tasks * nodes
    if 2 * pairs > MOST_VARIABLES:
        raise UserError(
            f"{tasks} tasks on {nodes} nodes: {2 * pairs} variables of a linear program: expected at most "
            f"{MOST_VARIABLES}, or algorithms without one"
        )
    upper = np.ones(2 * pairs + 1)
    if integer:  # task i on the first i + 1 nodes
        apart = np.arange(nodes)[None, :] > np.arange(tasks)[:, None]
        upper[:pairs][apart.ravel()] = 0.0
    objective = np.zeros(2 * pairs + 1)
    objective[-1] = -1.0
    matrix, low, high = _constraints(problem)
    integrality = np.concatenate((np.full(pairs, int(integer)), np.zeros(pairs + 1)))
    found: Any = milp(
        objective, integrality=integrality, bounds=Bounds(0.0, upper), constraints=LinearConstraint(matrix, low, high),
        options={"time_limit": time_limit_s},
    )  # fmt: skip
    bound = -float(found.mip_dual_bound) if getattr(found, "mip_dual_bound", None) is not None else problem.bound
    if found.x is None:
        return Solved(None, 0.0, 0.0 if found.status == 2 else min(bound, problem.bound), optimal=found.status == 2)
    placed = np.clip(found.x[:pairs].reshape(tasks, nodes), 0.0, 1.0)
    return Solved(placed, -float(found.fun), min(bound, problem.bound), optimal=found.status == 0)


def _constraints(problem: StaticProblem) -> tuple[Any, Floats, Floats]:
    """Return the sparse matrix of all constraints with their lower and upper bounds."""
    from scipy import sparse  # noqa: PLC0415  # an extra, and slow to import

    tasks, nodes = problem.tasks, problem.nodes
    pairs = tasks * nodes
    by_task = sparse.kron(sparse.eye(tasks), np.ones((1, nodes)))  # sums over nodes of each task
    need = sparse.kron(problem.cpu_need_frac[None, :], sparse.eye(nodes))
    memory = sparse.kron(problem.mem_req_frac[None, :], sparse.eye(nodes))
    one = sparse.eye(pairs)
    matrix = sparse.bmat([
        [by_task, None, sparse.csr_array((tasks, 1))],
        [-one, one, None],
        [None, by_task, -np.ones((tasks, 1))],
        [None, need, None],
        [memory, None, None],
    ], format="csr")  # fmt: skip
    low = np.concatenate((np.ones(tasks), np.full(pairs, -np.inf), np.zeros(tasks), np.full(2 * nodes, -np.inf)))
    high = np.concatenate((np.ones(tasks), np.zeros(pairs), np.full(tasks, np.inf), np.ones(2 * nodes)))
    return matrix, low, high


def exact(problem: StaticProblem, time_limit_s: float) -> tuple[Ints | None, float, str]:
    """Return the best placement found, the bound that was proven for any placement, and how the search ended."""
    solved = solve(problem, integer=True, time_limit_s=time_limit_s)
    if solved.placed is None:
        return None, solved.bound, NO_SOLUTION if solved.optimal else "no solution within the time limit"
    node = solved.placed.argmax(axis=1).astype(np.int64)
    if np.bincount(node, problem.mem_req_frac).max() > CAPACITY_FRAC:  # the solver accepts rows exceeded by 1e-6
        return None, solved.bound, "its solution exceeds a memory by less than the solver's accuracy"
    return node, solved.bound, OPTIMAL if solved.optimal else "time limit"
