"""The effect of running guests on the operations of their node: a start, a save and a restore beside neighbours.

Nodes of one machine share its cores, so there the neighbours run on all of them, as in a simulation, which counts the
tasks of the whole machine then.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

from testbed.lab.job import LabJob
from testbed.lab.lab import Lab
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.experiments.felt import (
    cores_of,
    emulated,
    first_progress_s,
    group,
    lab_of,
    lacks,
    least_mib,
    most_mib,
    together,
)
from testbed.study.calibration.quantities import Column, Quantities, by_condition, number
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation
from testbed.study.report.calibration.data import Measured, Row, Series, count_words, groups, listed
from testbed.study.report.calibration.panels import strip_chart
from testbed.study.report.page.style import Absent, Chart

OPERATIONS = ("start", "save", "resume")
_NODE = 0
_MOST = 3
_MOST_EMULATED = 2
_QUICK = 2


class Beside(Experiment):
    """A guest that is started, saved and restored on an otherwise idle node, then another one beside neighbours.

    The neighbours are MPI jobs with a task on each node, as most tasks of a trace are of parallel jobs; where MPI is
    missing they are single guests. The cores of the node are allocated in full, to them and the measured guest, as by
    policies that maximise yields. Both parts of a comparison are in the same trial, so slow changes of the
    machine's speed do not affect it.
    """

    name = "beside"
    about = "times of a start, a save and a restore beside running guests, relative to those on an idle node"
    section = "Move and start"
    order = 55

    def __init__(self) -> None:
        self._warm: WeakSet[Lab] = WeakSet()

    def why_not(self, lab: LabFacts) -> str:
        """Return the reason why no guest can be saved beside another one on this lab, or an empty text."""
        return lacks(lab, "start", guests=2) or lacks(lab, "save")

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return the numbers of neighbours that fit the memory of a node together with the measured guest."""
        most = _MOST_EMULATED if emulated(lab) else _MOST
        counts = [count for count in range(1, most + 1) if most_mib(lab, count + 1) >= least_mib(lab)]
        return [{"neighbours": count} for count in ([min(_QUICK, counts[-1])] if quick else counts)]

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return the approximate duration of a trial in seconds."""
        neighbours = int(condition["neighbours"]) * len(_same_machine(lab))
        alone_s = 2 * first_progress_s(lab) + least_mib(lab) / 100
        return alone_s * (2 + 0.5 * neighbours) + first_progress_s(lab) * neighbours

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Return one observation: the seconds of each operation alone and, with the prefix `beside_`, with neighbours.

        The measured guest is on the first node. `neighbours` is the number on each node of its machine, `running` that
        on the machine. `resume_s` is from the restore command to the first progress.
        """
        neighbours = int(condition["neighbours"])
        facts = lab_of(lab)

        def guest(node: int, cpu_cores: float) -> LabJob:
            return lab.job(memory_mib=least_mib(facts), cpu_cores=cpu_cores, nodes=(node,), program="eatcpu")

        async def operations_s() -> dict[str, float]:
            async with guest(_NODE, cores_of(facts)) as specimen:
                return await _operations_s(specimen)

        nodes = _same_machine(facts)
        if lab not in self._warm:  # the first start on a node reads the program and the boot image from the disk
            async with group([guest(node, cores_of(facts)) for node in nodes]) as throwaways:
                await together([throwaway.start() for throwaway in throwaways])
            self._warm.add(lab)
        alone_s = await operations_s()
        left_cores = (lab.facts[_NODE].cpus - cores_of(facts)) / neighbours
        if len(lab.facts) > 1 and facts.able("mpi"):
            everywhere = tuple(range(len(lab.facts)))
            jobs = [
                lab.job(memory_mib=least_mib(facts), cpu_cores=left_cores, nodes=everywhere) for _ in range(neighbours)
            ]
        else:
            jobs = [guest(node, left_cores) for node in nodes for _ in range(neighbours)]
        async with group(jobs) as others:
            await together([other.start() for other in others])
            beside_s = await operations_s()
        parts = (("", alone_s), ("beside_", beside_s))
        seconds = {f"{prefix}{name}_s": part[name] for prefix, part in parts for name in OPERATIONS}
        return [{"running": neighbours * len(nodes), **seconds}]

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return the ratio of each operation by the number of neighbours, and its increase by each that runs."""
        found = Quantities(trials)
        for name in OPERATIONS:
            increases = Column()
            for condition, some in by_condition(trials, "neighbours"):
                ratios = Column()
                for outcome in some:
                    for observation in outcome.observations:
                        ratio, running = _ratio(observation, name), number(observation, "running")
                        ratios.add(ratio, outcome.trial)
                        if ratio is not None and running:
                            increases.add((ratio - 1.0) / running, outcome.trial)
                found.median(f"beside_{name}_ratio", "1", ratios, condition)
            found.median(f"beside_{name}_frac", "1", increases, {}, listed=False, relative=False)
        return found

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return a strip chart of the time of each operation beside neighbours, relative to the time alone."""
        name, title = "calibration_beside", "Start, save and restore beside running guests"
        rows = measured.rows("neighbours")
        series = [
            Series(
                f"{operation}, {neighbours} neighbour{'' if neighbours == 1 else 's'} a node", own, "ratio", mark, 100.0
            )
            for mark, operation in enumerate(OPERATIONS)
            for (neighbours,), own in groups(_with_ratio(rows, operation), "neighbours").items()
        ]  # fmt: skip
        if not series:
            return [measured.absent(name, title)]
        words = listed(series, "%")
        caption = (
            "Time of an operation on one guest while neighbours on the nodes of its machine use all CPU time, relative "
            "to the same operation without neighbours in the same trial. Start and resume: until the first "
            "progress. One dot per trial, with the median and its 95 % interval over trials. "
            f"{words}. {count_words(rows)}."
        )
        return [strip_chart(name, title, caption, words, series, "time (% of the time alone)", around=100.0)]


async def _operations_s(specimen: LabJob) -> dict[str, float]:
    """Start, save and restore a job; return the seconds of each operation."""
    started = await specimen.start()
    saved = await specimen.save()
    restored = await specimen.restore()
    seconds = (
        started.start_s + started.first_progress_s, saved.save_s, restored.restore_s + restored.first_progress_s
    )  # fmt: skip
    return dict(zip(OPERATIONS, seconds, strict=True))


def _same_machine(lab: LabFacts) -> list[int]:
    """Return the nodes on the machine of the measured guest, which have the address of its node."""
    return [node for node, fact in enumerate(lab.facts) if fact.address == lab.facts[_NODE].address]


def _ratio(observation: Condition, operation: str) -> float | None:
    """Return the time of an operation beside neighbours relative to its time alone, None if either is not known."""
    alone_s, beside_s = (number(observation, f"{prefix}{operation}_s") for prefix in ("", "beside_"))
    return None if not alone_s or beside_s is None else beside_s / alone_s


def _with_ratio(rows: Sequence[Row], operation: str) -> list[Row]:
    """Return the rows in which an operation has a ratio, with that as `ratio`."""
    ratios = [(row, _ratio(row.values, operation)) for row in rows]
    return [Row(row.trial, {**row.values, "ratio": ratio}) for row, ratio in ratios if ratio is not None]
