"""An experiment whose guests are killed in the middle of its trials, for calibrations of any driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from support.live import until
from testbed.lab.job import LabJob
from testbed.lab.lab import Lab
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.quantities import Quantities
from testbed.study.calibration.trials import Outcome, Trials
from testbed.study.calibration.values import Condition, Observation

MOMENTS = ("working", "watched", "held", "restored")


class Killed(Experiment):
    """Every other trial loses its guest, at each of `moments` in turn; `kill(guest)` kills its process."""

    name = "killed"
    about = "guests that are killed"

    def __init__(self, kill: Callable[[str], None], moments: Sequence[str] = MOMENTS) -> None:
        self.trials = 2 * len(moments) + 1
        self._kill = kill
        self._moments = moments
        self._calls = 0

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:  # the same on every lab
        return [{"quick": int(quick)}]

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        return Quantities(trials)

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:  # there is one
        at = self._moments[self._calls // 2] if self._calls % 2 else ""
        self._calls += 1
        memory_mib = max(64, lab.facts[0].guest_floor_mib)
        async with lab.job(memory_mib=memory_mib, cpu_cores=0.5) as guest:
            await guest.start()
            if at == "working":
                self._kill(guest.guests[0])
            await guest.edge()
            await self._watch(lab, guest, killed=at == "watched")
            await guest.hold()
            if at == "held":
                self._kill(guest.guests[0])
            await guest.release()
            saved = await guest.save()
            await guest.restore()
            if at == "restored":  # nothing reads the guest again
                self._kill(guest.guests[0])
                await until(lambda: guest.ends, "the end of a guest that was killed")
        return [{"save_s": saved.save_s}]

    async def _watch(self, lab: Lab, guest: LabJob, *, killed: bool) -> None:
        watching = asyncio.create_task(lab.watch(guest.nodes[0], guest.guests, 0.05, 60.0 if killed else 0.5))
        if killed:
            self._kill(guest.guests[0])
        await watching


def check_killed(trials: Trials, count: int) -> None:
    """Assert that every other trial failed because its guest was killed, and that no other trial failed."""
    assert [outcome.error is None for outcome in trials.outcomes] == [number % 2 == 0 for number in range(count)]
    for outcome in trials.failed():
        assert "dfrs-" in str(outcome.error), f"the reason names no guest: {outcome.error}"
        assert outcome.observations == ()
    assert all(float(outcome.observations[0]["save_s"]) > 0 for outcome in trials.of("killed"))
