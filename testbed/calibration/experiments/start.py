"""How long a job takes from the order to start it until all its tasks progress; the papers take that to be nothing."""

from __future__ import annotations

from math import sqrt
from weakref import WeakSet

from testbed.calibration.experiment import Condition, LabFacts, Observation
from testbed.calibration.experiments.felt import (
    MOST_CONCURRENT,
    boot_s,
    cores_of,
    emulated,
    group,
    lab_of,
    lacks,
    least_mib,
    levels_mib,
    most_mib,
    together,
)
from testbed.calibration.experiments.mpi_save_restore import placed
from testbed.lab.job import LabJob
from testbed.lab.lab import Lab


class Start:
    """Jobs on one node or, with several tasks, over the nodes, started side by side.

    The first guest that a node ever starts has its program and its boot image read from the disk: before the first
    trial of a session one is started on each node and thrown away.
    """

    name = "start"
    about = "from the order to start until progress, serial and MPI: memory, tasks, jobs at once"

    def __init__(self) -> None:
        self._warm: WeakSet[Lab] = WeakSet()

    def why_not(self, lab: LabFacts) -> str:
        """Return why no guest can be started here."""
        return lacks(lab, "start")

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return memory sizes alone, several jobs at once, and MPI jobs over the nodes."""
        found = [_condition(mib) for mib in levels_mib(lab, 1, 2)]
        if most_mib(lab, MOST_CONCURRENT) >= least_mib(lab):
            found.append(_condition(least_mib(lab), concurrent=MOST_CONCURRENT))
        ranks = max(2, min(len(lab.facts), MOST_CONCURRENT))
        if lab.able("mpi"):
            levels = levels_mib(lab, -(-ranks // len(lab.facts)), 2)
            found += [_condition(mib, tasks=ranks) for mib in (levels[:1] if quick or emulated(lab) else levels)]
        return found

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return about how long a trial takes."""
        guests = int(condition["concurrent"]) * int(condition["tasks"])
        return (boot_s(lab) + float(condition["memory_mib"]) / 300) * sqrt(guests)

    async def run(self, bench: Lab, condition: Condition) -> list[Observation]:
        """Do one trial; one observation a job."""
        lab = lab_of(bench)
        cores, count = cores_of(lab), len(bench.facts)
        if bench not in self._warm:
            async with group(
                [bench.job(memory_mib=least_mib(lab), cpu_cores=cores, nodes=(node,)) for node in range(count)]
            ) as throwaways:
                await together([specimen.start() for specimen in throwaways])
            self._warm.add(bench)
        jobs = [
            bench.job(
                memory_mib=int(condition["memory_mib"]),
                cpu_cores=cores,
                nodes=placed(int(condition["tasks"]), count),
            )
            for _ in range(int(condition["concurrent"]))
        ]
        async with group(jobs) as specimens:
            return await together([_start(specimen) for specimen in specimens])


async def _start(specimen: LabJob) -> Observation:
    started = await specimen.start()
    return {
        "start_s": started.start_s,
        "first_progress_s": started.first_progress_s,
        "ready_s": started.start_s + started.first_progress_s,
    }


def _condition(memory_mib: int, *, tasks: int = 1, concurrent: int = 1) -> Observation:
    return {"memory_mib": memory_mib, "tasks": tasks, "concurrent": concurrent}


EXPERIMENT = Start()
