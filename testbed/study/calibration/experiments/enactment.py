"""Round-trip times of small commands: cap, hold and release."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from testbed.lab.job import LabJob
from testbed.lab.lab import Lab
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.experiments.felt import (
    MOST_CONCURRENT,
    boot_s,
    cores_of,
    emulated,
    lab_of,
    lacks,
    least_mib,
    most_mib,
)
from testbed.study.calibration.quantities import Quantities, by_condition, column
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation
from testbed.study.report.calibration.data import Measured, Series, count_words, groups, listed
from testbed.study.report.calibration.panels import seconds_scale, strip_chart
from testbed.study.report.page.style import Absent, Chart

_COMMANDS = ("cap", "hold", "release")
_REPEATS = 8
_YIELDS = (0.5, 1.0)  # alternating, so that every command changes the cap


class Enactment(Experiment):
    """Commands to a job of one or several independent tasks on one node: time from the command to the last answer.

    The answer to a cap contains the value that was read back from the kernel. A process stops at the end of its
    iteration, so that its `hold` takes a part of an iteration; a virtual machine stops at once.
    """

    name = "enactment"
    about = "round trip of cap, hold and release: guests on the node"
    section = "Control path"
    order = 60

    def why_not(self, lab: LabFacts) -> str:
        """Return the reason why guests cannot be started or capped on this lab, or an empty text."""
        return lacks(lab, "start") or lacks(lab, "cap")

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:  # noqa: ARG002  # few and short
        """Return each command for one guest, and for the largest number of guests that fits."""
        most = max(n for n in range(1, MOST_CONCURRENT + 1) if n == 1 or most_mib(lab, n) >= least_mib(lab))
        several = ("cap",) if emulated(lab) else _COMMANDS
        found: list[Observation] = [{"command": command, "guests": 1} for command in _COMMANDS]
        if most > 1:
            found += [{"command": command, "guests": most} for command in several]
        return found

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return the approximate duration of a trial in seconds."""
        return 1.5 + boot_s(lab) * sqrt(float(condition["guests"]))

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Do one trial: the command several times, of which the first is discarded."""
        facts = lab_of(lab)
        job = lab.job(
            memory_mib=least_mib(facts),
            cpu_cores=cores_of(facts),
            nodes=(0,) * int(condition["guests"]),
            program="eatcpu",
        )
        async with job:
            await job.start()
            took_s = [await _order(job, str(condition["command"]), repeat) for repeat in range(1 + _REPEATS)]
        return [{"round_trip_s": one_s} for one_s in took_s[1:]]

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return the median of each condition; outliers are not listed, because a tail of latencies is no error."""
        found = Quantities(trials)
        for condition, some in by_condition(trials, "command", "guests"):
            found.median("enactment_s", "s", column(some, "round_trip_s"), condition, listed=False)
        return found

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return a strip chart of round-trip times by command and number of guests."""
        name, title = "calibration_enactment", "Round-trip times of cap, hold and release"
        rows = measured.rows("round_trip_s")
        if not rows:
            return [measured.absent(name, title)]
        factor, unit = seconds_scale(rows, "round_trip_s")
        kinds = groups(rows, "command", "guests")
        commands = sorted({str(command) for command, _ in kinds})
        series = [
            Series(
                f"{command}, {guests} guest{'' if guests == 1 else 's'}", own, "round_trip_s",
                commands.index(str(command)), factor,
            )
            for (command, guests), own in kinds.items()
        ]  # fmt: skip
        words = listed(series, unit)
        caption = (
            "Time from the command to the last answer through the bus (logarithmic axis); one dot per command, with "
            f"the median and its 95 % interval over trials. {words}. {count_words(rows)}."
        )
        return [strip_chart(name, title, caption, words, series, f"round trip ({unit})", log=True)]


async def _order(job: LabJob, command: str, repeat: int) -> float:
    if command == "cap":
        return (await job.cap(_YIELDS[repeat % len(_YIELDS)])).round_trip_s
    hold_s = (await job.hold()).hold_s
    release_s = await job.release()
    return hold_s if command == "hold" else release_s
