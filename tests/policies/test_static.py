"""The static problem: every algorithm's placement is valid, and none beats the exact solution or the bound."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.live import HANG_S

from testbed.errors import UserError
from testbed.scheduling.static.algorithms import ALGORITHMS, Settings, best, place
from testbed.scheduling.static.greedy import _choices, greedy
from testbed.scheduling.static.packing import packed_at
from testbed.scheduling.static.problem import StaticProblem, minimum_yield, problem_of
from testbed.scheduling.static.programs import solve
from testbed.scheduling.static.rounding import rounded
from testbed.scheduling.workload.jobs import Job

FRAC = st.sampled_from((0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0))
PROBLEMS = st.builds(
    lambda tasks, nodes: StaticProblem(np.array([c for c, _ in tasks]), np.array([m for _, m in tasks]), nodes),
    st.lists(st.tuples(FRAC, FRAC), min_size=1, max_size=6),
    st.integers(1, 3),
)
PATIENT = Settings(HANG_S)
HEURISTICS = [name for name in ALGORITHMS if name != "MILP"]


def by_enumeration(problem: StaticProblem) -> float:
    """Return the highest minimum yield of all placements, 0 if there is none."""
    found = 0.0
    for node in product(range(problem.nodes), repeat=problem.tasks):
        try:
            found = max(found, minimum_yield(problem, np.array(node)))
        except ValueError:
            continue
    return found


@settings(max_examples=60)
@given(PROBLEMS)
def test_the_program_finds_what_enumeration_finds(problem: StaticProblem) -> None:
    best_of_all = by_enumeration(problem)
    found = place(problem, "MILP", PATIENT)
    assert found.minimum_yield == pytest.approx(best_of_all, rel=1e-6)
    assert found.proven_bound == pytest.approx(best_of_all, rel=1e-4) or found.node is None
    assert found.bound == problem.bound
    assert found.note == ("no solution" if best_of_all == 0.0 else "optimal")
    assert found.proven_gap_frac <= found.gap_frac + 1e-9
    assert (found.node is None) == (best_of_all == 0.0)


@settings(max_examples=60)
@given(PROBLEMS)
def test_no_heuristic_beats_the_best_and_none_the_bound(problem: StaticProblem) -> None:
    best_of_all = by_enumeration(problem)
    assert best_of_all <= problem.bound + 1e-9
    for name in HEURISTICS:
        found = place(problem, name, PATIENT)
        assert found.minimum_yield <= best_of_all + 1e-9, name
        assert 0.0 <= found.gap_frac <= 1.0
        if found.node is not None:
            assert minimum_yield(problem, found.node) == found.minimum_yield


@settings(max_examples=60)
@given(PROBLEMS)
def test_going_back_finds_a_place_wherever_there_is_one(problem: StaticProblem) -> None:
    for by_memory in (False, True):
        found = greedy(problem, by_memory=by_memory, attempts=100_000)
        assert (found is not None) == (by_enumeration(problem) > 0.0)


@settings(max_examples=40)
@given(PROBLEMS)
def test_the_relaxation_is_the_bound(problem: StaticProblem) -> None:
    relaxed = solve(problem, integer=False, time_limit_s=HANG_S)
    if relaxed.placed is None:
        assert problem.bound == 0.0 or problem.mem_req_frac.sum() > problem.nodes
    else:
        assert relaxed.objective == pytest.approx(problem.bound, rel=1e-6)
        assert relaxed.placed.sum(axis=1) == pytest.approx(np.ones(problem.tasks))


def test_what_the_greedy_algorithms_do_by_hand() -> None:
    problem = StaticProblem(np.array([0.2, 0.9, 0.8, 0.3]), np.array([0.5, 0.5, 0.5, 0.5]), 2)
    assert greedy(problem, by_memory=False).tolist() == [0, 1, 0, 1]
    assert place(problem, "GR").minimum_yield == pytest.approx(1 / 1.2)
    assert greedy(problem, by_memory=True).tolist() == [0, 0, 1, 1], "0.9 and 0.8 apart, then 0.3 to the lesser load"
    assert place(problem, "SG").minimum_yield == pytest.approx(1 / 1.1)
    stuck = StaticProblem(np.full(5, 0.1), np.array([0.5, 0.5, 0.33, 0.33, 0.33]), 2)
    assert greedy(stuck, by_memory=True) is None
    assert greedy(stuck, by_memory=True, attempts=10).tolist() == [0, 0, 1, 1, 1]
    late = StaticProblem(np.array([0.5, 0.4, 0.1]), np.array([0.4, 0.4, 0.8]), 2)
    assert greedy(late, by_memory=False) is None
    assert greedy(late, by_memory=True).tolist() == [1, 1, 0], "the largest memory first"
    assert greedy(stuck, by_memory=True, attempts=3) is None


def test_probabilities_of_zero_are_the_difference_between_the_two_roundings() -> None:
    """Both tasks want the first node, which has memory for one."""
    problem, relaxed = StaticProblem(np.full(2, 0.5), np.full(2, 0.6), 2), np.array([[1.0, 0.0], [1.0, 0.0]])
    for seed in range(20):
        assert rounded(problem, relaxed, seed, non_zero=False) is None
        found = rounded(problem, relaxed, seed, non_zero=True)
        assert found is not None
        assert sorted(found.tolist()) == [0, 1]
    again = [place(StaticProblem(np.full(8, 0.5), np.full(8, 0.5), 4), "RRNZ", Settings(HANG_S, 3)) for _ in range(2)]
    assert again[0].node is not None
    assert again[0].node.tolist() == again[1].node.tolist()


def test_a_placement_that_exceeds_a_memory_by_less_than_the_solver_sees_is_none() -> None:
    found = place(StaticProblem(np.full(2, 0.5), np.full(2, 0.5000002), 1), "MILP", PATIENT)
    assert found.node is None
    assert place(StaticProblem(np.full(2, 0.5), np.full(2, 0.5), 1), "MILP", PATIENT).node is not None


def test_a_packing_at_a_yield_is_a_step_of_the_search() -> None:
    draw = np.random.default_rng(1)
    problem = StaticProblem(draw.uniform(0.1, 1.0, 200), draw.uniform(0.05, 0.3, 200), 60)
    found = place(problem, "MCB8").minimum_yield
    step = packed_at(problem, found * 0.98)
    assert step is not None
    assert minimum_yield(problem, step) >= found * 0.98
    assert packed_at(problem, min(found * 1.1, 1.0)) is None
    assert found >= place(problem, "GR").minimum_yield


def test_the_yield_of_mcb8_is_not_cut_to_the_steps_of_the_search() -> None:
    """Small services fill nodes to any yield: what is lost is the width at which the search ends, once up to 3 %."""
    draw = np.random.default_rng(3)
    for tasks in (1_550, 1_600, 1_650):
        problem = StaticProblem(draw.uniform(0.05, 0.15, tasks), np.full(tasks, 0.001), 40)
        assert place(problem, "MCB8").gap_frac < 0.006, tasks


def test_nodes_that_were_emptied_again_are_equal_to_those_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.1 + 0.2 - 0.2 is more than 0.1: going back once left such a rest, and tried more nodes than are different."""
    needs, memory = [0.15, 0.1, 0.3, 0.1, 0.7, 0.1], [0.01, 0.02, 0.03, 0.04, 0.05, 1.1]
    problem = StaticProblem(np.array(needs), np.array(memory), 5)
    seen: list[list[int]] = []

    def choices(*arguments: Any) -> list[int]:
        seen.append(_choices(*arguments))
        return seen[-1]

    monkeypatch.setattr("testbed.scheduling.static.greedy._choices", choices)
    assert greedy(problem, by_memory=False, attempts=10_000) is None
    assert len(seen) == 1 + 1 + 2 + 5 + 15 + 52, "one for each way to group the first tasks, as nodes are identical"


def test_the_best_is_the_highest_and_mistakes_are_told() -> None:
    problem = problem_of([Job(1, 0.0, 3, 0.9, 0.4, 10.0), Job(2, 5.0, 1, 0.2, 0.6, 1.0)], 2)
    assert problem.tasks == 4
    results = [place(problem, name) for name in ("GR", "MCB8", "SG")]
    assert best(results).minimum_yield == max(result.minimum_yield for result in results)
    assert best([]) is None
    with pytest.raises(UserError, match=r"algorithm 'MCB9': expected one of MILP, .*nearest: MCB8"):
        place(problem, "MCB9")
    with pytest.raises(UserError, match="no jobs to place"):
        problem_of([], 2)
    with pytest.raises(UserError, match="nodes = 0: expected from 1"):
        problem_of([Job(1, 0.0, 1, 0.5, 0.5, 1.0)], 0)
    with pytest.raises(ValueError, match=r"node 0 has tasks of 1\.2 times its memory"):
        minimum_yield(StaticProblem(np.array([0.1, 0.1]), np.array([0.6, 0.6]), 2), np.zeros(2, dtype=np.int64))
    with pytest.raises(UserError, match="variables of a linear program: expected at most"):
        place(StaticProblem(np.full(20_000, 0.1), np.full(20_000, 0.01), 1000), "RRND")
