"""The effect of neighbours on a capped guest: caches and memory bandwidth are shared, although CPU time is not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from testbed.lab.job import LabJob
from testbed.lab.lab import Lab
from testbed.lab.rates import SETTLE_S, WINDOW_S
from testbed.study.calibration.assumptions import Deviation, bounds_words, judged, relative
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.experiments.felt import first_progress_s
from testbed.study.calibration.model import Assumption, condition_words
from testbed.study.calibration.quantities import Quantities, by_condition, column
from testbed.study.calibration.sizes import down, guest_mib, most_guests, usable_cores, why_no_caps
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation
from testbed.study.report.calibration.data import Measured, Series, count_words, groups, listed, percent
from testbed.study.report.calibration.panels import strip_chart
from testbed.study.report.page.style import Absent, Chart

_MOST = 3
_WINDOW_S = 1.5 * WINDOW_S
_ITERATION_S = 0.005


class Isolation(Experiment):
    """One guest at a cap: alone, with neighbours that compute at the same cap, and alone again."""

    name = "isolation"
    about = "rate of progress of a capped guest with neighbours, relative to its rate alone"
    section = "Progress"
    order = 120

    def why_not(self, lab: LabFacts) -> str:
        """See `Experiment.why_not`."""
        if most_guests(lab) == 1:
            return f"a node has {lab.memory_mib} MiB: expected room for two guests of {guest_mib(lab)} MiB"
        return why_no_caps(lab)

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return as many neighbours as fit, one neighbour with higher caps, and none, which shows the resolution.

        The sum of all caps fits the cores of a node, and all guests fit its memory.
        """
        most = min(_MOST, most_guests(lab) - 1)
        crowded = _cap(lab, most + 1)
        found: list[Observation] = [{"cap_frac": crowded, "neighbours": most}]
        if not quick:
            found.append({"cap_frac": crowded, "neighbours": 0})
            if most > 1:
                found.append({"cap_frac": _cap(lab, 2), "neighbours": 1})
        return found

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """See `Experiment.expected_s`."""
        return first_progress_s(lab) * (1 + int(condition["neighbours"])) + 3 * (_WINDOW_S + SETTLE_S + 0.5)

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Return one observation: `alone_units_per_s` is the mean of the rates before and after the neighbours' time.

        `drift_frac` is the relative increase from the first to the second. `relative_used` is the CPU time used with
        neighbours relative to alone: it distinguishes a smaller share from slower work.
        """
        facts = LabFacts(lab.scenario, lab.facts)
        cap_cores, neighbours = float(condition["cap_frac"]), int(condition["neighbours"])

        def guest() -> LabJob:
            return lab.job(
                memory_mib=guest_mib(facts), cpu_cores=cap_cores, program="eatcpu", iteration_s=_ITERATION_S / cap_cores
            )

        async with guest() as job:
            await job.start()
            before = await job.rate_and_use(_WINDOW_S)
            async with contextlib.AsyncExitStack() as stack:
                others = [await stack.enter_async_context(guest()) for _ in range(neighbours)]
                await asyncio.gather(*(other.start() for other in others))
                among = await job.rate_and_use(_WINDOW_S)
            after = await job.rate_and_use(_WINDOW_S)
        alone = (before.units_per_s + after.units_per_s) / 2
        return [
            {
                "units_per_s": among.units_per_s,
                "alone_units_per_s": alone,
                "relative_rate": among.units_per_s / alone,
                "relative_used": among.used_cores / ((before.used_cores + after.used_cores) / 2),
                "drift_frac": after.units_per_s / before.units_per_s - 1.0,
            }
        ]

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return the relative rate by the number of neighbours."""
        found = Quantities(trials)
        for condition, some in by_condition(trials, "cap_frac", "neighbours"):
            found.median("isolated_rate", "1", column(some, "relative_rate"), condition)
        return found

    def assumptions(self, quantities: Quantities) -> Mapping[str, Assumption]:
        """Judge the rates with neighbours; the rate without neighbours shows the resolution and is not judged."""
        statement = "The share of one task does not depend on what its neighbours on the node do."
        deviations = [
            Deviation(
                relative(quantity, 1.0),
                f"{bounds_words(quantity, '')} of the rate alone ({condition_words(quantity.condition)})",
            )
            for quantity in quantities.named("isolated_rate")
            if quantity.condition.get("neighbours")
        ]
        return {"isolation": judged(statement, "[RR 2.1]", deviations)}

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return a strip chart of the rate of a capped guest with busy neighbours, relative to its rate alone."""
        name, title = "calibration_isolation", "Isolation: rate with busy neighbours"
        rows = measured.rows("relative_rate")
        if not rows:
            return [measured.absent(name, title)]
        caps = sorted({row.at("cap_frac") for row in rows}, key=str)
        series = [
            Series(
                (f"cap {percent(cap)}, " if len(caps) > 1 else "") + f"{others} neighbour{'' if others == 1 else 's'}",
                own, "relative_rate", caps.index((cap,)), 100.0,
            )
            for (cap, others), own in groups(rows, "cap_frac", "neighbours").items()
        ]  # fmt: skip
        words = listed(series, "%")
        caption = (
            "Rate of progress of a capped guest while neighbours on its node use all CPU time of their caps, relative "
            "to the same guest with the same cap alone; one dot per trial, with the median and its 95 % interval over "
            f"trials. {words}. {count_words(rows)}."
        )
        return [strip_chart(name, title, caption, words, series, "rate (% of the rate alone)", around=100.0)]


def _cap(lab: LabFacts, guests: int) -> float:
    """Return the cap of each of so many guests, in cores."""
    return min(1.0, down(usable_cores(lab) / guests))
