"""The time that the copy of a saved guest's image from one node to another takes."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from testbed.lab.lab import Lab
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.experiments.felt import boot_s, group, lacks, together
from testbed.study.calibration.experiments.moved import conditions, guests_of
from testbed.study.calibration.quantities import Quantities
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation
from testbed.study.report.calibration.data import Measured, count_words, wholly_touched
from testbed.study.report.calibration.memory import Phase, phase_chart
from testbed.study.report.page.style import Absent, Chart


class Transfer(Experiment):
    """Concurrent transfers of images from the first node to the second, which verifies them as in a run."""

    name = "transfer"
    about = "images between two nodes: memory, touched memory, images at once"
    section = "Move and start"
    order = 30

    def why_not(self, lab: LabFacts) -> str:
        """Return the reason why images cannot be transferred on this lab, or an empty text."""
        return lacks(lab, "save", nodes=2)

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return the common conditions of experiments that move guests to another node."""
        return conditions(lab, quick=quick)

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return the approximate duration of a trial in seconds."""
        return (boot_s(lab) + float(condition["memory_mib"]) / 150) * sqrt(float(condition["concurrent"]))

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Do one trial; return one observation per image, which is in its node's page cache after the save."""
        async with group(guests_of(lab, condition)) as specimens:
            await together([specimen.start() for specimen in specimens])
            await together([specimen.save() for specimen in specimens])
            moved = await together([specimen.transfer((1,)) for specimen in specimens])
        return [{"transfer_s": one.transfer_s, "image_mib": one.image_mib} for one in moved]

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return the fit over memory and images at once."""
        found = Quantities(trials)
        found.times("transfer", trials, ["transfer_s"], {})
        return found

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return a chart of the transfer time of an image against memory."""
        name, title = "calibration_transfer", "Transfer of an image to another node"
        rows = wholly_touched(measured.rows("memory_mib", "transfer_s"))
        if not rows:
            return [measured.absent(name, title)]
        phase = Phase.of(measured.calibration, "transfer", "transfer_s", "Transfers", rows, {})
        caption = (
            "Wall seconds from the command to its answer; one dot per image. Line: the fit; band: 95 % bootstrap "
            f"over trials; diamonds: outliers, kept in the fit. {count_words(rows)}, all memory touched."
            + (f" Transfer = {phase.law}, m in MiB." if phase.law else "")
        )
        return [phase_chart(name, title, caption, phase, measured.calibration)]
