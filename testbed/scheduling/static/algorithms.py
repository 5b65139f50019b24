"""The algorithms for the static problem by name, and their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed.errors import UserError, nearest
from testbed.scheduling.static.greedy import ATTEMPTS, greedy
from testbed.scheduling.static.packing import packed
from testbed.scheduling.static.problem import Ints, StaticProblem, minimum_yield
from testbed.scheduling.static.programs import exact, solve
from testbed.scheduling.static.rounding import rounded

DEFAULT_TIME_LIMIT_S = 60.0
NOT_IN_TIME = "no solution of the relaxation within the time limit"


@dataclass(frozen=True, slots=True)
class Settings:
    """Time limit of linear programs, seed of random choices, and most attempts of GB and SGB to place a task.

    With `compiles` kernels without cached machine code are compiled, which takes a minute; the results are the same.
    """

    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    seed: int = 0
    attempts: int = ATTEMPTS
    compiles: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The result of an algorithm; without a placement the minimum yield is 0.

    `bound` is the bound of the relaxation, by which all algorithms are judged; `proven_bound` is lower if the algorithm
    has proven a lower one. `note` describes special cases.
    """

    algorithm: str
    node: Ints | None
    minimum_yield: float
    bound: float
    proven_bound: float
    elapsed_s: float
    note: str = ""

    @property
    def gap_frac(self) -> float:
        """The gap to the bound of the relaxation, relative to it; 0 if it is 0."""
        return _gap_frac(self.minimum_yield, self.bound)

    @property
    def proven_gap_frac(self) -> float:
        """The most by which the best placement can be better than this one, relative to the proven bound."""
        return _gap_frac(self.minimum_yield, self.proven_bound)


def _gap_frac(minimum_yield: float, bound: float) -> float:
    return 0.0 if bound <= 0.0 else max(1.0 - minimum_yield / bound, 0.0)


Placer = Callable[[StaticProblem, Settings], tuple[Ints | None, float, str]]


def _greedy(*, by_memory: bool, goes_back: bool) -> Placer:
    def place(problem: StaticProblem, settings: Settings) -> tuple[Ints | None, float, str]:
        attempts = settings.attempts if goes_back else 0
        return greedy(problem, by_memory=by_memory, attempts=attempts), problem.bound, ""

    return place


def _mcb8(problem: StaticProblem, settings: Settings) -> tuple[Ints | None, float, str]:
    return packed(problem, compiles=settings.compiles), problem.bound, ""


def _rounded(*, non_zero: bool) -> Placer:
    def place(problem: StaticProblem, settings: Settings) -> tuple[Ints | None, float, str]:
        relaxed = solve(problem, integer=False, time_limit_s=settings.time_limit_s)
        if relaxed.placed is None:
            why = "the relaxation has no solution" if relaxed.optimal else NOT_IN_TIME
            return None, problem.bound, why
        return rounded(problem, relaxed.placed, settings.seed, non_zero=non_zero), problem.bound, ""

    return place


def _milp(problem: StaticProblem, settings: Settings) -> tuple[Ints | None, float, str]:
    return exact(problem, settings.time_limit_s)


ALGORITHMS: dict[str, Placer] = {
    "MILP": _milp,
    "MCB8": _mcb8,
    "SGB": _greedy(by_memory=True, goes_back=True),
    "SG": _greedy(by_memory=True, goes_back=False),
    "GB": _greedy(by_memory=False, goes_back=True),
    "GR": _greedy(by_memory=False, goes_back=False),
    "RRNZ": _rounded(non_zero=True),
    "RRND": _rounded(non_zero=False),
}


def place(problem: StaticProblem, algorithm: str, settings: Settings | None = None) -> Result:
    """Place the tasks by an algorithm; raise `UserError` for an unknown name, or where it cannot be used."""
    if algorithm not in ALGORITHMS:
        raise UserError(
            f"algorithm {algorithm!r}: expected one of {', '.join(ALGORITHMS)}{nearest(algorithm, ALGORITHMS)}"
        )
    begin_s = time.perf_counter()
    node, proven, note = ALGORITHMS[algorithm](problem, settings or Settings())
    elapsed_s = time.perf_counter() - begin_s
    least = 0.0 if node is None else minimum_yield(problem, node)
    return Result(algorithm, node, least, problem.bound, min(proven, problem.bound), elapsed_s, note)


def best(results: Sequence[Result]) -> Result | None:
    """Return the result with the highest minimum yield, None if none has a placement."""
    placed = [result for result in results if result.node is not None]
    return max(placed, key=lambda result: result.minimum_yield, default=None)
