"""How long guests take from one node to another while they work, and what they feel of it."""

from __future__ import annotations

from math import sqrt

from testbed.calibration.experiment import Condition, LabFacts, Observation
from testbed.calibration.experiments.felt import (
    SETTLE_S,
    WINDOW_S,
    Pace,
    boot_s,
    group,
    lacks,
    together,
)
from testbed.calibration.experiments.moved import conditions, guests_of
from testbed.errors import UserError
from testbed.lab.job import LabJob
from testbed.lab.lab import Lab
from testbed.lab.migration_targets import migration_targets


class LiveMigration:
    """Guests from the first node to the second, side by side.

    They compute on little memory, so that what they dirty is next to nothing: a job that writes all of its memory over
    and over takes longer, or never converges.
    """

    name = "live-migration"
    about = "live migration between two nodes: memory, touched memory, guests at once"

    def why_not(self, lab: LabFacts) -> str:
        """Return why guests cannot migrate here."""
        if why := lacks(lab, "live", nodes=2):
            return why
        try:
            names = (node.name for node in lab.scenario.nodes)
            migration_targets(lab.scenario, dict(zip(names, lab.facts, strict=True)))
        except UserError as error:
            return str(error)
        return ""

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return those of all experiments that take guests to another node."""
        return conditions(lab, quick=quick)

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return about how long a trial takes."""
        each_s = boot_s(lab) + float(condition["memory_mib"]) / 100
        return 1.5 + WINDOW_S + SETTLE_S + each_s * sqrt(float(condition["concurrent"]))

    async def run(self, bench: Lab, condition: Condition) -> list[Observation]:
        """Do one trial; one observation a guest.

        `migrate_s` is all of it as a run counts it, until the guest was taken over at its new node; `reported_s` and
        `downtime_reported_s` are the hypervisor's. What the guest felt holds the time for which it stood still and for
        which it was slower, on its way and in its first second there. It is below 0 where the guest got more than its
        cap allows on its way.
        """
        async with group(guests_of(bench, condition)) as specimens:
            await together([specimen.start() for specimen in specimens])
            paces = await together([Pace.of(specimen) for specimen in specimens])
            moved = await together([_move(specimen) for specimen in specimens])
            felt = await together([pace.felt_s(specimen) for specimen, pace in zip(specimens, paces, strict=True)])
        return [{**observation, "felt_s": felt_s} for observation, felt_s in zip(moved, felt, strict=True)]


async def _move(specimen: LabJob) -> Observation:
    moved = await specimen.migrate((1,))
    return {
        "migrate_s": moved.migrate_s,
        "reported_s": moved.reported_s,
        "downtime_reported_s": moved.downtime_reported_s,
        "moved_mib": moved.moved_mib,
        "rounds": moved.rounds,
    }


EXPERIMENT = LiveMigration()
