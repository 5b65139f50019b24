"""Conditions and guests of experiments that move guests from the first node to the second."""

from __future__ import annotations

from testbed.lab.job import LabJob
from testbed.lab.lab import Lab
from testbed.study.calibration.experiment import LabFacts
from testbed.study.calibration.experiments.felt import cores_of, emulated, lab_of, levels_mib
from testbed.study.calibration.values import Condition, Observation


def conditions(lab: LabFacts, *, quick: bool) -> list[Observation]:
    """Return memory sizes of single guests, of two at once, and one with a quarter of the memory touched."""
    alone = levels_mib(lab, 1, 2)
    found = [_condition(mib) for mib in alone]
    if not (quick or emulated(lab)):
        found += [_condition(mib, concurrent=2) for mib in levels_mib(lab, 2, 1)]
        found.append(_condition(alone[-1], touched_frac=0.25))
    return found


def guests_of(lab: Lab, condition: Condition) -> list[LabJob]:
    """Return the guests of a condition on the first node, not started yet."""
    cores = cores_of(lab_of(lab))
    return [
        lab.job(
            memory_mib=int(condition["memory_mib"]),
            cpu_cores=cores,
            touched_frac=float(condition["touched_frac"]),
        )
        for _ in range(int(condition["concurrent"]))
    ]


def _condition(memory_mib: int, *, touched_frac: float = 1.0, concurrent: int = 1) -> Observation:
    return {"memory_mib": memory_mib, "touched_frac": touched_frac, "concurrent": concurrent}
