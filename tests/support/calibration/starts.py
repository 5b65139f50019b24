"""An experiment for tests of sessions."""

from __future__ import annotations

from testbed.errors import RunError
from testbed.study.calibration.experiment import Experiment
from testbed.study.calibration.quantities import Quantities


class Starts(Experiment):
    """An experiment with a guest that is started, saved and restored; `fails` has the calls that fail."""

    name = "starts"
    about = "starts"

    def __init__(self, fails=lambda _call: False):
        self.calls = 0
        self.guests = []
        self._fails = fails

    def conditions(self, lab, *, quick):
        return [{"memory_mib": size} for size in ((100,) if quick else (100, 200))]

    def expected_s(self, condition, lab):
        return 3.0

    async def trial(self, lab, condition):
        self.calls += 1
        async with lab.job(memory_mib=condition["memory_mib"], cpu_cores=0.5) as guest:
            self.guests += guest.guests
            if self._fails(self.calls):
                raise RunError("broken")
            started = await guest.start()
            await guest.save()
            restored = await guest.restore()
            return [{"start_s": started.start_s, "restore_s": restored.restore_s}]

    def quantities(self, trials):
        return Quantities(trials)
