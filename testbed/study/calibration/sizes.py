"""The size limits of trials: the caps of all working guests fit the cores of their nodes, less a reserve."""

from __future__ import annotations

from math import floor

from testbed.lab.guest_specs import whole_cores
from testbed.study.calibration.experiment import LabFacts

LEAST_MIB = 64
LEAST_CORES = 0.2
_LAB_FRAC = 0.1  # reserve on a machine that hosts all nodes, for the agents, the broker and the controller
_STEP = 0.05


def why_no_caps(lab: LabFacts) -> str:
    """Return the reason why this lab cannot measure CPU caps, or an empty text."""
    if not lab.able("cap"):
        return "a node cannot cap CPU time"
    if usable_cores(lab) < LEAST_CORES:
        return f"a node has {usable_cores(lab):g} cores for guests: expected {LEAST_CORES:g} at least"
    if most_guests(lab) < 1:
        return f"a node has {lab.memory_mib} MiB: expected room for a guest of {guest_mib(lab)} MiB"
    return ""


def guest_mib(lab: LabFacts) -> int:
    """Return the memory of a small guest in MiB, for experiments on CPU time."""
    return max(LEAST_MIB, lab.floor_mib)


def most_guests(lab: LabFacts) -> int:
    """Return the number of small guests that a node has memory for."""
    return lab.memory_mib // guest_mib(lab)


def usable_cores(lab: LabFacts, nodes: int = 1) -> float:
    """Return the cores that guests on each of `nodes` nodes can use at once.

    These are all cores of a node. If one machine hosts all nodes, a tenth of it is reserved for the lab itself, so that
    guests lose no CPU time to agents and broker during a measurement.
    """
    if lab.scenario.box is None and not all(node.spawn for node in lab.scenario.nodes):
        return lab.cpus
    machine_cores = min(fact.machine_cores for fact in lab.facts)
    return min(lab.cpus, machine_cores * (1.0 - _LAB_FRAC) / nodes)


def need_cores(lab: LabFacts, nodes: int = 1, tasks: int = 1) -> float:
    """Return the CPU need in cores of each of `tasks` tasks per node: one core, or an equal part of usable cores."""
    return min(1.0, down(usable_cores(lab, nodes) / tasks))


def vcpu_counts(lab: LabFacts) -> list[int]:
    """Return the numbers of virtual CPUs that a guest can keep busy: one, and several if the cores suffice."""
    return [1] if usable_cores(lab) <= 1.0 else [1, min(4, whole_cores(usable_cores(lab)))]


def down(cores: float) -> float:
    """Return cores rounded down to steps of 0.05, as conditions name them; values below one step are unchanged."""
    steps = floor(cores / _STEP + 1e-6)
    return round(steps * _STEP, 2) if steps else cores
