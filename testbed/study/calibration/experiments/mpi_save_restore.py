"""The cost of a coordinated save of an MPI job, with all ranks at one consistent point, and of its restore."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import sqrt

from testbed.lab.lab import Lab
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.experiments.felt import (
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
from testbed.study.calibration.experiments.interruption import interrupt
from testbed.study.calibration.quantities import Quantities, by_condition, column
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation
from testbed.study.report.calibration.data import Measured, Series, count_words, groups, having, listed
from testbed.study.report.calibration.panels import strip_panels
from testbed.study.report.page.style import Absent, Chart

_DRAWN = (("penalty_s", "penalty"), ("felt_s", "felt"), ("release_skew_s", "skew of the release"))


class MpiSaveRestore(Experiment):
    """A job with its tasks on the nodes in turn, restored on the same nodes or with those of its first two swapped."""

    name = "mpi-save-restore"
    about = "coordinated save and restore of MPI jobs over the nodes: memory, tasks, topology, moved or not"
    section = "Preempt and restore"
    order = 20

    def why_not(self, lab: LabFacts) -> str:
        """Return the reason why MPI jobs cannot be saved on this lab, or an empty text."""
        return lacks(lab, "save") or lacks(lab, "mpi", guests=_pair(lab))

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return jobs with one task on each of up to four nodes (two tasks on one node), and one with two per node."""
        count, few = len(lab.facts), quick or emulated(lab)
        pair = _pair(lab)
        moves = (0, 1) if count > 1 else (0,)
        levels = levels_mib(lab, pair, 1 if quick else 4)  # as if all were on one node: nodes may share a machine
        found = [
            _condition(mib, pair, "ring", moved) for mib in levels for moved in (moves if mib == levels[-1] else (0,))
        ]
        shared = 2 * pair
        if not few and _most_on_a_node(shared, count) <= MOST_CONCURRENT:
            found += [_condition(mib, shared, "all-to-all", 0) for mib in levels_mib(lab, shared, 2)[:1]]
        return found

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return the approximate duration of a trial in seconds."""
        each_s = 2 * boot_s(lab) + float(condition["memory_mib"]) / 100
        return 1.5 + WINDOW_S + SETTLE_S + each_s * sqrt(float(condition["tasks"]) / 2)

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Do one trial; return one observation of the job, whose phases end with its slowest guest.

        The felt time of the job is from the progress of its first task. `pause_s` includes the transfer of images if
        the job moved.
        """
        tasks, count = int(condition["tasks"]), len(lab.facts)
        nodes = placed(tasks, count)
        job = lab.job(
            memory_mib=int(condition["memory_mib"]),
            cpu_cores=cores_of(lab_of(lab)),
            nodes=nodes,
            program="patterns",
            topology=str(condition["topology"]),
        )
        async with job:
            await job.start()
            swapped = (nodes[1], nodes[0], *nodes[2:])
            return await interrupt([job], nodes=swapped if condition["moved"] else None)

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return the parts of a rescheduling, and the skews between the ranks of a job in hold and release."""
        found = Quantities(trials)
        for condition, some in by_condition(trials, "tasks", "topology", "moved"):
            for name in ("save", "restore", "penalty", "felt"):
                found.times(f"mpi_{name}", some, [f"{name}_s"], condition)
            for name in ("hold_skew_s", "release_skew_s"):
                found.median(f"mpi_{name}", "s", column(some, name), condition)
        return found

    def penalties(self, measured: Measured) -> Sequence[Series]:
        """Return the penalties by memory and number of tasks."""
        return [
            Series(f"{tasks} tasks of {memory_mib} MiB", own, "penalty_s", 3)
            for (memory_mib, tasks), own in groups(measured.rows("penalty_s"), "memory_mib", "tasks").items()
        ]

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return a strip chart of the costs of a rescheduling of MPI jobs."""
        name, title = "calibration_mpi", "Coordinated save and restore of MPI jobs"
        rows = measured.rows("penalty_s")
        if not rows:
            return [measured.absent(name, title)]
        several = len({row.at("memory_mib") for row in rows}) > 1
        named = []
        for (memory_mib, tasks, topology, moved), own in groups(
            rows, "memory_mib", "tasks", "topology", "moved"
        ).items():
            size = f"{memory_mib} MiB, " if several else ""
            where, mark = ("swapped", 1) if moved == 1 else ("stayed", 0)
            named.append(Series(f"{size}{tasks} × {topology}, {where}", own, "penalty_s", mark))
        observed = [(key, label) for key, label in _DRAWN if having(rows, key)]
        words = listed(named, "s")
        size = "" if several else f"{rows[0].values.get('memory_mib')} MiB per task. "
        caption = (
            f"{size}All tasks are held at one barrier, saved, restored and released together; if the first two tasks "
            "swap nodes, their images are transferred before the restore. Wall seconds; one dot per job, with the "
            "median and its 95 % interval over trials. Felt: lost progress by the job's own count. "
            f"Median penalty: {words}. {count_words(rows)}."
        )
        return [strip_panels(name, title, caption, f"Penalty: {words}", named, observed)]


def placed(tasks: int, nodes: int) -> tuple[int, ...]:
    """Return the node of each task, in turn."""
    return tuple(task % nodes for task in range(tasks))


def _pair(lab: LabFacts) -> int:
    return max(2, min(len(lab.facts), MOST_CONCURRENT))


def _most_on_a_node(tasks: int, nodes: int) -> int:
    return max(Counter(placed(tasks, nodes)).values())


def _condition(memory_mib: int, tasks: int, topology: str, moved: int) -> Observation:
    return {"memory_mib": memory_mib, "tasks": tasks, "topology": topology, "moved": moved}
