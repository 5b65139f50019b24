"""What it costs a guest to be saved and restored on its node: the rescheduling penalty, measured [RR 5.1]."""

from __future__ import annotations

from math import sqrt

from testbed.calibration.experiment import Condition, LabFacts, Observation
from testbed.calibration.experiments.felt import (
    MOST_CONCURRENT,
    SETTLE_S,
    WINDOW_S,
    boot_s,
    cores_of,
    emulated,
    group,
    lab_of,
    lacks,
    levels_mib,
    together,
)
from testbed.calibration.experiments.interruption import SKEWS, interrupt
from testbed.lab.lab import Lab

_PROGRAM = "eatcpu"


class SaveRestore:
    """Guests on one node work, are saved side by side, and as soon as all images are written restored side by side.

    The main grid is memory by number of guests at once, all memory filled, images on disk and in the page cache; from
    a point of it each other factor is varied alone: how much of the memory was touched, images in the memory store,
    images that are read from the disk. The first start of a guest's life is not measured here, and so warms up.
    """

    name = "save-restore"
    about = "save and restore of guests on one node: memory, guests at once, touched memory, storage, page cache"

    def why_not(self, lab: LabFacts) -> str:
        """Return why guests cannot be saved here."""
        return lacks(lab, "save")

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return the grid and the points around it that fit the memory of every node."""
        few = quick or emulated(lab)
        grid = [
            (mib, concurrent)
            for concurrent, levels in (((1, 2), (MOST_CONCURRENT, 2)) if few else ((1, 3), (2, 2), (4, 2)))
            for mib in levels_mib(lab, concurrent, levels)
        ]
        found = [_condition(mib, concurrent) for mib, concurrent in grid]
        star_mib = max((mib for mib, concurrent in grid if concurrent == MOST_CONCURRENT), default=grid[0][0])
        if quick:
            return [*found, _condition(star_mib, cache="cold")]
        most_mib = max(mib for mib, _ in grid)
        found.append(_condition(most_mib, touched_frac=0.25))
        found += [_condition(mib, cache="cold") for mib in dict.fromkeys((most_mib,) if few else (star_mib, most_mib))]
        if self._has_memory_store(lab, most_mib):
            found.append(_condition(most_mib, storage="memory"))
        return found

    @staticmethod
    def _has_memory_store(lab: LabFacts, memory_mib: int) -> bool:
        """Whether a guest fits in the memory of every machine twice: once by itself, once as an image."""
        return all("memory" in fact.image_stores and fact.machine_memory_mib >= 4 * memory_mib for fact in lab.facts)

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return about how long a trial takes."""
        each_s = boot_s(lab) + float(condition["memory_mib"]) / 200
        return 1.5 + WINDOW_S + SETTLE_S + each_s * sqrt(float(condition["concurrent"]))

    async def run(self, bench: Lab, condition: Condition) -> list[Observation]:
        """Do one trial; one observation a guest.

        `pause_s`, until the last of the others was saved, is no part of `penalty_s` and `felt_s`. What a guest still
        did until it stood still is part of the first and not of the second; a slow start after `first_progress_s` is
        part of the second only. `cached_frac` is left out where the node cannot tell.
        """
        cores = cores_of(lab_of(bench))
        guests = [
            bench.job(
                memory_mib=int(condition["memory_mib"]),
                cpu_cores=cores,
                program=str(condition["program"]),
                touched_frac=float(condition["touched_frac"]),
            )
            for _ in range(int(condition["concurrent"]))
        ]
        async with group(guests) as specimens:
            await together([specimen.start() for specimen in specimens])
            found = await interrupt(specimens, store=str(condition["storage"]), cold=condition["cache"] == "cold")
        return [{name: value for name, value in seen.items() if name not in SKEWS} for seen in found]


def _condition(
    memory_mib: int, concurrent: int = 1, *, touched_frac: float = 1.0, storage: str = "disk", cache: str = "warm"
) -> Observation:
    return {
        "memory_mib": memory_mib,
        "touched_frac": touched_frac,
        "storage": storage,
        "concurrent": concurrent,
        "cache": cache,
        "program": _PROGRAM,
    }


EXPERIMENT = SaveRestore()
