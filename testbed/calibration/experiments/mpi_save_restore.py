"""What it costs an MPI job to be saved, all ranks at one consistent point, and restored, moved or not."""

from __future__ import annotations

from collections import Counter
from math import sqrt

from testbed.calibration.experiment import Condition, LabFacts, Observation
from testbed.calibration.experiments.felt import (
    MOST_CONCURRENT,
    SETTLE_S,
    WINDOW_S,
    boot_s,
    cores_of,
    emulated,
    lab_of,
    lacks,
    levels_mib,
)
from testbed.calibration.experiments.interruption import interrupt
from testbed.lab.lab import Lab


class MpiSaveRestore:
    """A job whose tasks lie on the nodes in turn, restored where it was or with the nodes of its first two swapped."""

    name = "mpi-save-restore"
    about = "coordinated save and restore of MPI jobs over the nodes: memory, tasks, topology, moved or not"

    def why_not(self, lab: LabFacts) -> str:
        """Return why MPI jobs cannot be saved here."""
        return lacks(lab, "save") or lacks(lab, "mpi", guests=_pair(lab))

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return jobs of a task on each of up to four nodes (two on a lab of one), and one whose tasks share nodes."""
        count, few = len(lab.facts), quick or emulated(lab)
        pair = _pair(lab)
        moves = (0, 1) if count > 1 else (0,)
        levels = levels_mib(lab, pair, 2)  # as if all were on one node: nodes may share the memory of a machine
        found = [_condition(mib, pair, "ring", moved) for mib in (levels[-1:] if few else levels) for moved in moves]
        shared = 2 * pair
        if not few and _most_on_a_node(shared, count) <= MOST_CONCURRENT:
            found += [_condition(mib, shared, "all-to-all", 0) for mib in levels_mib(lab, shared, 2)[:1]]
        return found

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return about how long a trial takes."""
        each_s = 2 * boot_s(lab) + float(condition["memory_mib"]) / 100
        return 1.5 + WINDOW_S + SETTLE_S + each_s * sqrt(float(condition["tasks"]) / 2)

    async def run(self, bench: Lab, condition: Condition) -> list[Observation]:
        """Do one trial; one observation of the job, whose phases end with its slowest guest.

        What the job felt is told by the progress of its first task; `pause_s` holds the transfer of images if it moved.
        """
        tasks, count = int(condition["tasks"]), len(bench.facts)
        nodes = placed(tasks, count)
        job = bench.job(
            memory_mib=int(condition["memory_mib"]),
            cpu_cores=cores_of(lab_of(bench)),
            nodes=nodes,
            program="patterns",
            topology=str(condition["topology"]),
        )
        async with job:
            await job.start()
            swapped = (nodes[1], nodes[0], *nodes[2:])
            return await interrupt([job], nodes=swapped if condition["moved"] else None)


def placed(tasks: int, nodes: int) -> tuple[int, ...]:
    """Return the node of each task, in turn."""
    return tuple(task % nodes for task in range(tasks))


def _pair(lab: LabFacts) -> int:
    return max(2, min(len(lab.facts), MOST_CONCURRENT))


def _most_on_a_node(tasks: int, nodes: int) -> int:
    return max(Counter(placed(tasks, nodes)).values())


def _condition(memory_mib: int, tasks: int, topology: str, moved: int) -> Observation:
    return {"memory_mib": memory_mib, "tasks": tasks, "topology": topology, "moved": moved}


EXPERIMENT = MpiSaveRestore()
