"""How long images of saved guests take from one node to another."""

from __future__ import annotations

from math import sqrt

from testbed.calibration.bench import Bench
from testbed.calibration.experiment import Condition, LabFacts, Observation
from testbed.calibration.experiments.felt import boot_s, cores_of, emulated, group, lab_of, lacks, levels_mib, together


class Transfer:
    """Images from the first node to the second, side by side; verified at their arrival, as in a run."""

    name = "transfer"
    about = "images between two nodes: memory, touched memory, images at once"

    def why_not(self, lab: LabFacts) -> str:
        """Return why no image can be sent here."""
        return lacks(lab, "save", nodes=2)

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return memory sizes alone, with two images at once, and with little of the memory touched."""
        alone = levels_mib(lab, 1, 2)
        found = [_condition(mib) for mib in alone]
        if not (quick or emulated(lab)):
            found += [_condition(mib, concurrent=2) for mib in levels_mib(lab, 2, 1)]
            found.append(_condition(alone[-1], touched_frac=0.25))
        return found

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return about how long a trial takes."""
        return (boot_s(lab) + float(condition["memory_mib"]) / 150) * sqrt(float(condition["concurrent"]))

    async def run(self, bench: Bench, condition: Condition) -> list[Observation]:
        """Do one trial; one observation an image, which was just written and is in the page cache of its node."""
        cores = cores_of(lab_of(bench))
        guests = [
            bench.specimen(
                memory_mib=int(condition["memory_mib"]),
                cpu_cores=cores,
                touched_frac=float(condition["touched_frac"]),
            )
            for _ in range(int(condition["concurrent"]))
        ]
        async with group(guests) as specimens:
            await together([specimen.start() for specimen in specimens])
            await together([specimen.save() for specimen in specimens])
            moved = await together([specimen.transfer((1,)) for specimen in specimens])
        return [{"transfer_s": one.transfer_s, "image_mib": one.image_mib} for one in moved]


def _condition(memory_mib: int, *, touched_frac: float = 1.0, concurrent: int = 1) -> Observation:
    return {"memory_mib": memory_mib, "touched_frac": touched_frac, "concurrent": concurrent}


EXPERIMENT = Transfer()
