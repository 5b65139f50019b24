"""The comparison of many runs: groups of repeats, quarantine of disturbed runs, and verdicts against the goals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from testbed.measure.frames import load_points
from testbed.scheduling.simulation.overheads import Overheads
from testbed.study.compare.accounting import Parts, mean_parts
from testbed.study.compare.alignment import align
from testbed.study.compare.core_speeds import followed_speeds
from testbed.study.compare.equivalence import DIFFERENT, EQUAL, NOT_SHOWN, Equivalence, equivalence
from testbed.study.compare.live import LiveRun, conditions_of
from testbed.study.compare.pairs import RunPair, pair, table
from testbed.study.compare.quarantine import Health, Limits, examine
from testbed.study.compare.statistics import STATISTICS, Band, Order, Spread, noise_band, order, spread

GOALS: Mapping[str, float] = {"turnaround": 0.05, "max_stretch": 0.10}
COLUMNS = {"turnaround": "turnaround_s", "max_stretch": "stretch"}
TITLES = {"turnaround": "median turnaround error", "max_stretch": "max-stretch error"}
_Key = tuple[str, str, float | None]  # conditions, policy, period in trace seconds


@dataclass(frozen=True, slots=True)
class Judged:
    """One statistic of a group: the simulation's error per run, the test of the mean error, the noise band of repeats.

    `errors` are from simulations that follow the measured speed of cores where it is known, `raw_errors` from
    simulations on nodes of constant speed.
    """

    name: str
    errors: tuple[float, ...]
    raw_errors: tuple[float, ...]
    shown: Equivalence
    band: Band | None

    @property
    def raw_mean(self) -> float:
        """Mean error of simulations on nodes of constant speed."""
        return sum(self.raw_errors) / len(self.raw_errors)

    @property
    def mean(self) -> float:
        """Mean error over runs."""
        return self.shown.mean

    @property
    def goal(self) -> float:
        """Upper limit of the mean error."""
        return self.shown.goal

    @property
    def verdict(self) -> str:
        """The verdict of the equivalence test: equal within the goal, different, or not shown."""
        return self.shown.verdict


@dataclass(frozen=True)
class Group:
    """Repeats: undisturbed runs of a policy under equal conditions; `raw` has simulations at constant core speed."""

    conditions: str
    policy: str
    pairs: tuple[RunPair, ...]
    raw: tuple[RunPair, ...]
    goals: Mapping[str, float]

    @cached_property
    def judged(self) -> tuple[Judged, ...]:
        """The statistics that the verdict uses."""
        found = []
        for name, goal in self.goals.items():
            live, twins = (table(self.pairs, world, COLUMNS[name]) for world in ("live", "simulated"))
            errors = STATISTICS[name](twins, live)
            raw_errors = STATISTICS[name](table(self.raw, "simulated", COLUMNS[name]), live)
            shown = equivalence(errors.tolist(), goal)
            band = noise_band(name, live)
            found.append(Judged(name, tuple(errors.tolist()), tuple(raw_errors.tolist()), shown, band))
        return tuple(found)

    @property
    def corrected(self) -> int:
        """Number of runs whose simulation follows the speed of their cores."""
        return sum(each.speeds is not None for each in self.pairs)

    @property
    def of_cpu_time(self) -> bool:
        """Whether the work of jobs is CPU time, which is the same for all repeats."""
        return self.pairs[0].run.facts.work_is_cpu_time

    @cached_property
    def repeats_same_frac(self) -> float | None:
        """Share of decisions with the same placement in two repeats, mean over all pairs; None for one run."""
        runs = [each.run for each in self.pairs]
        both = [align(one.decisions, other.decisions, other.schedule, 0.0) for one, other in combinations(runs, 2)]
        return sum(each.same_frac for each in both) / len(both) if both else None

    @cached_property
    def spread(self) -> Spread | None:
        """The spread of turnarounds between repeats."""
        return spread(table(self.pairs, "live", "turnaround_s"))

    @property
    def verdict(self) -> str:
        """Different if one statistic is different, equal if all statistics are equal, else not shown."""
        return worst(judged.verdict for judged in self.judged)

    @cached_property
    def sources(self) -> dict[int, tuple[Parts, Parts]]:
        """Parts of each job's turnaround, live and simulated, mean over runs; jobs of the largest difference first."""
        found = {}
        for row, job in enumerate(self.pairs[0].jobs):
            both = [each.jobs[row] for each in self.pairs]
            found[job.job] = (
                mean_parts([each.live.parts for each in both]),
                mean_parts([each.simulated.parts for each in both]),
            )
        return dict(sorted(found.items(), key=lambda item: -abs((item[1][0] - item[1][1]).turnaround_s)))


@dataclass(frozen=True)
class Study:
    """The results of `testbed compare`; `left_out` are the disturbed runs, `again` are copies of earlier runs.

    `absent` names the cases of a campaign of which no run counts; `warnings` are sentences on the overhead model.
    """

    overheads: str
    groups: tuple[Group, ...]
    health: dict[str, Health]
    runs: tuple[LiveRun, ...]
    left_out: tuple[LiveRun, ...]
    again: tuple[LiveRun, ...]
    orders: dict[str, tuple[Order, ...]]
    absent: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Different if a group or the order of policies is different; equal if all groups are equal; else not shown."""
        wrong = any(each.same is False for orders in self.orders.values() for each in orders)
        verdicts = [*(group.verdict for group in self.groups), *(NOT_SHOWN for _ in self.absent)]
        return DIFFERENT if wrong else worst(verdicts)

    @property
    def names(self) -> set[str]:
        """The names of the runs that count."""
        return {each.run.facts.name for group in self.groups for each in group.pairs}


def worst(verdicts: Iterable[str]) -> str:
    """Return the joint verdict: different if any is different, equal if all (at least one) are, else not shown."""
    found = set(verdicts)
    if found == {EQUAL}:
        return EQUAL
    return DIFFERENT if DIFFERENT in found else NOT_SHOWN


def study(
    runs: Sequence[LiveRun],
    overheads: Overheads | None,
    *,
    limits: Limits | None = None,
    keep_disturbed: bool = False,
    goals: Mapping[str, float] = GOALS,
) -> Study:
    """Quarantine disturbed runs, simulate the other runs, and judge their errors against `goals`, by statistic.

    Without `overheads`, each run is simulated with its own measured mean penalty. With `keep_disturbed` only runs with
    jobs that are not done are left out. Raises `UserError` and `RunError` as `pair` and `examine` do.
    """
    seen: set[str] = set()
    once: list[LiveRun] = []
    again: list[LiveRun] = []
    for run in runs:
        (again if run.facts.tag and run.facts.tag in seen else once).append(run)
        seen.add(run.facts.tag)
    health = {str(run.facts.path): examine(run, limits) for run in once}
    kept: list[LiveRun] = []
    left_out: list[LiveRun] = []
    for run in once:
        found = health[str(run.facts.path)]
        well = found.usable and (keep_disturbed or not found.reasons)
        (kept if well else left_out).append(run)
    together: dict[_Key, list[LiveRun]] = {}
    for run in kept:
        together.setdefault((conditions_of(run.facts), run.facts.policy, run.period_s), []).append(run)
    groups = tuple(
        Group(key[0], _label(key, together), *_paired(members, overheads), goals) for key, members in together.items()
    )
    name = "the mean penalty that each run measured itself" if overheads is None else overheads.name
    return Study(name, groups, health, tuple(once), tuple(left_out), tuple(again), _orders(groups))


def _paired(
    runs: Sequence[LiveRun], overheads: Overheads | None
) -> tuple[tuple[RunPair, ...], tuple[RunPair, ...]]:  # fmt: skip
    """Return pairs of runs and simulations: at measured core speeds where these are known, and at constant speeds."""
    raw = tuple(pair(run, overheads) for run in runs)
    return tuple(_followed(each, overheads) for each in raw), raw


def _followed(raw: RunPair, overheads: Overheads | None) -> RunPair:
    speeds = followed_speeds(raw.run, load_points(raw.run.facts.path, ("node",))["node"])
    return raw if speeds is None else pair(raw.run, overheads, speeds)


def _label(key: _Key, known: Iterable[_Key]) -> str:
    """Return the policy of a group, with its period if there are several of them under its conditions."""
    conditions, policy, period_s = key
    alone = sum(other[:2] == (conditions, policy) for other in known) == 1
    return policy if alone else f"{policy}, {'no period' if period_s is None else f'period {period_s:g} s'}"


def _orders(groups: Sequence[Group]) -> dict[str, tuple[Order, ...]]:
    """Return the orders of policies, for all conditions under which there are at least two policies."""
    found: dict[str, tuple[Order, ...]] = {}
    for conditions in dict.fromkeys(group.conditions for group in groups):
        own = {group.policy: group for group in groups if group.conditions == conditions}
        if len(own) < 2:
            continue
        tables = {
            name: (table(group.pairs, "live", "stretch"), table(group.pairs, "simulated", "stretch"))
            for name, group in own.items()
        }
        found[conditions] = (
            order(
                "max stretch",
                {name: live.max(axis=1).tolist() for name, (live, _) in tables.items()},
                {name: twins.max(axis=1).tolist() for name, (_, twins) in tables.items()},
            ),
            order(
                "mean stretch",
                {name: live.mean(axis=1).tolist() for name, (live, _) in tables.items()},
                {name: twins.mean(axis=1).tolist() for name, (_, twins) in tables.items()},
            ),
        )
    return found
