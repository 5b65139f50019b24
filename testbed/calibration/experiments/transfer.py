"""How long images of saved guests take from one node to another."""

from __future__ import annotations

from math import sqrt

from testbed.calibration.experiment import Condition, LabFacts, Observation
from testbed.calibration.experiments.felt import boot_s, group, lacks, together
from testbed.calibration.experiments.moved import conditions, guests_of
from testbed.lab.lab import Lab


class Transfer:
    """Images from the first node to the second, side by side; verified at their arrival, as in a run."""

    name = "transfer"
    about = "images between two nodes: memory, touched memory, images at once"

    def why_not(self, lab: LabFacts) -> str:
        """Return why no image can be sent here."""
        return lacks(lab, "save", nodes=2)

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return those of all experiments that take guests to another node."""
        return conditions(lab, quick=quick)

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return about how long a trial takes."""
        return (boot_s(lab) + float(condition["memory_mib"]) / 150) * sqrt(float(condition["concurrent"]))

    async def run(self, bench: Lab, condition: Condition) -> list[Observation]:
        """Do one trial; one observation an image, which was just written and is in the page cache of its node."""
        async with group(guests_of(bench, condition)) as specimens:
            await together([specimen.start() for specimen in specimens])
            await together([specimen.save() for specimen in specimens])
            moved = await together([specimen.transfer((1,)) for specimen in specimens])
        return [{"transfer_s": one.transfer_s, "image_mib": one.image_mib} for one in moved]


EXPERIMENT = Transfer()
