"""The decision time of policies on this controller, with the same code (compiled or not) as in a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from testbed.lab.lab import Lab
from testbed.scheduling.policies.catalogue import parse
from testbed.scheduling.policies.loading import can_load, use_compiled
from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Event, JobState
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.quantities import Quantities, by_condition, column
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation
from testbed.study.report.calibration.data import Measured, count_words, groups, middle, scaled, spread, values_of
from testbed.study.report.calibration.panels import (
    MARKS,
    dots,
    interval_mark,
    legend_above,
    log_axis,
    seconds_scale,
    sized,
)
from testbed.study.report.page.style import INK, Absent, Chart, short, single_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POLICIES = (
    "Greedy */OPT=MIN", "GreedyPM */per/OPT=MIN/MINVT=600", "MCB8 */per/OPT=MIN/MINVT=600", "EASY",
)  # fmt: skip
_JOBS_A_NODE = 2  # running and waiting jobs per node: more than fit, so that a policy has to choose
_NODES = (2, 16, 128)
_REPEATS = 5
_NOW_S = 7200.0
_SEED = 1


class Decision(Experiment):
    """The decision on a job that was just submitted, at the instant of a periodic pass if the policy has such passes.

    The cluster is full with jobs of 1 to 8 tasks, which the same policy has placed in one earlier decision.
    """

    name = "decision"
    about = "time of a policy's decision on this controller: policy, jobs, nodes"
    section = "Control path"
    order = 80

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return a few policies, including the scenario's, on clusters of this lab's size and of other sizes."""
        own = [parse(name, lab.scenario.period_s).name for name in lab.scenario.policy]
        policies = dict.fromkeys(own if quick else (*own, *_POLICIES))
        sizes = sorted({len(lab.facts), *((_NODES[-1],) if quick else _NODES)})
        return [
            {"policy": policy, "jobs": _JOBS_A_NODE * nodes, "nodes": nodes} for policy in policies for nodes in sizes
        ]

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:  # noqa: ARG002  # no node takes part
        """Return the approximate duration of a trial in seconds."""
        return 0.02 + int(condition["nodes"]) / 500

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Do one trial with the same view as all others of its condition; the first decision is discarded."""
        name, period_s = str(condition["policy"]), lab.scenario.period_s
        view, event = moment(name, period_s, int(condition["jobs"]), int(condition["nodes"]))
        policy = parse(name, period_s)
        if can_load(policy):
            use_compiled(policy)  # as in a run with cached machine code; returns at once if it is already loaded
        took_s = []
        for _ in range(1 + _REPEATS):
            begin_s = time.perf_counter()
            policy.decide(view, event)
            took_s.append(time.perf_counter() - begin_s)
        return [{"decide_s": one_s} for one_s in took_s[1:]]

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return the median and the 99th percentile of each condition."""
        found = Quantities(trials)
        for condition, some in by_condition(trials, "policy", "jobs", "nodes"):
            decide = column(some, "decide_s")
            found.median("decision_s", "s", decide, condition, listed=False)
            found.median("decision_p99_s", "s", decide, condition, quantile=0.99)
        return found

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return a chart of the decision time against the number of jobs."""
        name, title = "calibration_decision", "Decision time of policies"
        rows = measured.rows("decide_s", "jobs")
        if not rows:
            return [measured.absent(name, title)]
        factor, unit = seconds_scale(rows, "decide_s")
        policies = groups(rows, "policy")
        sizes = groups(rows, "nodes", "jobs")

        def draw(figure: Figure) -> None:
            axes = single_axes(figure, "jobs in the system", f"decision time ({unit})")
            for mark, ((policy,), own) in enumerate(policies.items()):
                shift = 1.0 + 0.07 * (mark - 0.5 * (len(policies) - 1))
                x = values_of(own, "jobs") * shift * (1.0 + 0.05 * spread(len(own)))
                dots(axes, x, factor * values_of(own, "decide_s"), mark, label=short(str(policy), 40), total=len(rows))
                points = [
                    (float(jobs) * shift, scaled(middle(same, "decide_s"), factor))
                    for (jobs,), same in groups(own, "jobs").items()
                ]
                axes.plot(
                    [at for at, _ in points], [found.value for _, found in points], linewidth=1.1, zorder=2,
                    color=MARKS[mark % len(MARKS)][0],
                )  # fmt: skip
                for at, found in points:
                    interval_mark(axes, at, found.value, found, upright=True)
            log_axis(axes, [factor * values_of(rows, "decide_s")], upright=True)
            log_axis(axes, [values_of(rows, "jobs")], upright=False)
            axes.tick_params(colors=INK)
            legend_above(figure, axes, 2)

        slowest = max(rows, key=lambda row: row.number("decide_s") or 0.0)
        caption = (
            "Wall time of one decision of a policy (logarithmic axes); one dot per decision, lines through the "
            f"medians, bars: their 95 % intervals over trials. Slowest: {slowest.values.get('policy')} with "
            f"{slowest.values.get('jobs')} jobs, {factor * (slowest.number('decide_s') or 0.0):.3g} {unit}. "
            f"Jobs on nodes: {', '.join(f'{jobs} on {nodes}' for nodes, jobs in sizes)}. {count_words(rows)}."
        )
        alt = f"Decision time: median {factor * float(np.median(values_of(rows, 'decide_s'))):.3g} {unit}"
        return [Chart(name, title, caption, alt, sized(draw), height_in=3.4)]


@cache
def moment(name: str, period_s: float, jobs: int, nodes: int) -> tuple[ClusterView, Event]:
    """Return a view of `jobs` jobs, of which the last was just submitted, and that event; deterministic.

    Needs are distributed as in [RR 5.3.2]: 55 % of the jobs need 0.1 of a node's memory per task, the others more;
    tasks of serial jobs need a quarter of a node's CPU, those of parallel jobs all of it.
    """
    policy = parse(name, period_s)
    periodic = policy.period_s is not None
    draw = np.random.default_rng(_SEED)
    tasks = np.minimum(draw.choice(np.array([1, 1, 2, 4, 8]), jobs), nodes)
    submit_time_s = np.sort(draw.uniform(0.0, _NOW_S, jobs))
    submit_time_s[-1] = _NOW_S
    nothing = np.full(jobs, np.nan)
    come = ClusterView(
        time_s=_NOW_S,
        node_available=np.ones(nodes, dtype=np.bool_),
        job_id=np.arange(1, jobs + 1),
        submit_time_s=submit_time_s,
        tasks=tasks,
        cpu_need_frac=np.where(tasks == 1, 0.25, 1.0),
        mem_req_frac=np.where(draw.uniform(size=jobs) < 0.55, 0.1, draw.integers(2, 11, jobs) / 10.0),
        virtual_time_s=np.zeros(jobs),
        state=np.full(jobs, JobState.WAITING, dtype=np.int8),
        task_node=np.full(int(tasks.sum()), NOT_PLACED),
        start_time_s=nothing,
        estimate_s=draw.uniform(600.0, 36000.0, jobs) if policy.needs_estimates else nothing,
        urgent=np.zeros(jobs, dtype=np.bool_),
    )
    before = replace(
        come,
        **{name: getattr(come, name)[:-1] for name in _ROWS},
        task_node=come.task_node[: -int(tasks[-1])],
    )
    ids = () if periodic else tuple(before.job_id.tolist())  # a periodic pass maps all jobs, not only submitted ones
    decided = policy.decide(before, Event(submitted=ids, periodic=periodic))
    runs = np.append(decided.yield_frac > 0.0, False)
    task_node = come.task_node.copy()
    task_node[: decided.task_node.size] = decided.task_node
    view = replace(
        come,
        virtual_time_s=np.where(runs, draw.uniform(0.0, _NOW_S, jobs), 0.0),
        state=np.where(runs, JobState.RUNNING, JobState.WAITING).astype(np.int8),
        task_node=task_node,
        start_time_s=np.where(runs, submit_time_s, np.nan),
    )
    return view, Event(submitted=(jobs,), periodic=periodic)


_ROWS = (
    "job_id", "submit_time_s", "tasks", "cpu_need_frac", "mem_req_frac", "virtual_time_s", "state", "start_time_s",
    "estimate_s", "urgent",
)  # fmt: skip
