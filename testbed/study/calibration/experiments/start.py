"""The time from the start command of a job until all its tasks progress, which the papers assume to be 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from weakref import WeakSet

from testbed.lab.job import LabJob
from testbed.lab.lab import Lab
from testbed.measure.robust import Interval
from testbed.study.calibration.assumptions import Deviation, bounds_words, judged
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.experiments.felt import (
    MOST_CONCURRENT,
    boot_s,
    cores_of,
    group,
    lab_of,
    lacks,
    least_mib,
    levels_mib,
    together,
)
from testbed.study.calibration.experiments.mpi_save_restore import placed
from testbed.study.calibration.fits import median_interval
from testbed.study.calibration.model import Assumption, condition_words
from testbed.study.calibration.quantities import Quantities, by_condition, column
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation
from testbed.study.report.calibration.data import (
    Measured,
    count_words,
    groups,
    interval_words,
    median_headline,
    middle,
    usual,
)
from testbed.study.report.calibration.memory import Phase, phase_chart
from testbed.study.report.page.style import Absent, Chart, Headline

_SIZES = 4  # enough to see whether times grow linearly with memory
STRETCH_THRESHOLD_S = 10.0  # [RR 2.2]: shorter turnaround times count as this value, so starts are relative to it


class Start(Experiment):
    """Jobs on one node or, with several tasks, over the nodes, started concurrently.

    The first start on a node reads the program and the boot image from the disk. Therefore one guest per node is
    started and discarded before the first trial of a session.
    """

    name = "start"
    about = "time from the start command to progress, serial and MPI: memory, tasks, jobs at once"
    section = "Move and start"
    order = 50

    def __init__(self) -> None:
        self._warm: WeakSet[Lab] = WeakSet()

    def why_not(self, lab: LabFacts) -> str:
        """Return the reason why guests cannot be started on this lab, or an empty text."""
        return lacks(lab, "start")

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return memory sizes of single jobs, several jobs at once, and MPI jobs over the nodes."""
        found = [_condition(mib) for mib in levels_mib(lab, 1, 2 if quick else _SIZES)]
        several = (MOST_CONCURRENT,) if quick else range(2, MOST_CONCURRENT + 1)
        found += [
            _condition(mib, concurrent=concurrent)
            for concurrent in several
            for mib in levels_mib(lab, concurrent, 2)[: 1 if quick else 2]
        ]
        ranks = max(2, min(len(lab.facts), MOST_CONCURRENT))
        if lab.able("mpi"):
            levels = levels_mib(lab, -(-ranks // len(lab.facts)), 2)
            found += [_condition(mib, tasks=ranks) for mib in (levels[:1] if quick else levels)]
        return found

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return the approximate duration of a trial in seconds."""
        guests = int(condition["concurrent"]) * int(condition["tasks"])
        return (boot_s(lab) + float(condition["memory_mib"]) / 300) * sqrt(guests)

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Do one trial; return one observation per job."""
        facts = lab_of(lab)
        cores, count = cores_of(facts), len(lab.facts)
        if lab not in self._warm:
            async with group(
                [lab.job(memory_mib=least_mib(facts), cpu_cores=cores, nodes=(node,)) for node in range(count)]
            ) as throwaways:
                await together([specimen.start() for specimen in throwaways])
            self._warm.add(lab)
        jobs = [
            lab.job(
                memory_mib=int(condition["memory_mib"]),
                cpu_cores=cores,
                nodes=placed(int(condition["tasks"]), count),
            )
            for _ in range(int(condition["concurrent"]))
        ]
        async with group(jobs) as specimens:
            return await together([_start(specimen) for specimen in specimens])

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return the fits over memory and jobs at once, for each number of tasks."""
        found = Quantities(trials)
        for condition, some in by_condition(trials, "tasks"):
            found.times("start", some, ["ready_s"], condition)
        return found

    def assumptions(self, quantities: Quantities) -> Mapping[str, Assumption]:
        """Judge start times relative to the threshold of the bounded stretch."""
        deviations = []
        for condition, some in by_condition(quantities.trials, "memory_mib", "tasks", "concurrent"):
            ready = column(some, "ready_s")
            if ready.values:
                took = median_interval(ready.values, ready.trials)
                off = Interval(*(value / STRETCH_THRESHOLD_S for value in (took.value, took.low, took.high)))
                words = f"{bounds_words(took, ' s')} to first progress ({condition_words(condition)})"
                deviations.append(Deviation(off, words))
        return {"free_start": judged("Starting a job costs nothing.", "[RR 5.1]", deviations)}

    def headlines(self, measured: Measured) -> Sequence[Headline]:
        """Return the median over all conditions."""
        return median_headline(measured.rows("ready_s"), "ready_s", "start to first progress, median")

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return a chart of the time from the start command to the first progress, against memory."""
        name, title = "calibration_start", "Start: from the command to the first progress"
        rows = measured.rows("memory_mib", "ready_s")
        if not rows:
            return [measured.absent(name, title)]
        single = usual(rows, "tasks")
        own = [row for row in rows if row.at("tasks") == single]
        condition = {"tasks": single[0]} if single[0] != "" else {}
        phase = Phase.of(measured.calibration, "start", "ready_s", "Starts", own, condition)
        others = [
            f"{tasks} tasks of a job: {interval_words(middle(some, 'ready_s'), 's')} ({count_words(some)})"
            for (tasks,), some in groups([row for row in rows if row.at("tasks") != single], "tasks").items()
        ]
        caption = (
            "Wall seconds from the start command to the first progress, jobs of one task; one dot per guest. Line: the "
            f"fit; band: 95 % bootstrap over trials; diamonds: outliers, kept in the fit. {count_words(own)}."
            + (f" Start = {phase.law}, m in MiB." if phase.law else "")
            + (f" Jobs of several tasks: {'; '.join(others)}." if others else "")
        )
        return [phase_chart(name, title, caption, phase, measured.calibration)]


async def _start(specimen: LabJob) -> Observation:
    started = await specimen.start()
    return {
        "start_s": started.start_s,
        "first_progress_s": started.first_progress_s,
        "ready_s": started.start_s + started.first_progress_s,
    }


def _condition(memory_mib: int, *, tasks: int = 1, concurrent: int = 1) -> Observation:
    return {"memory_mib": memory_mib, "tasks": tasks, "concurrent": concurrent}
