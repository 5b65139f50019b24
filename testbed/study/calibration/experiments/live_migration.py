"""The duration of live migrations from one node to another, and the felt time of guests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from testbed.errors import UserError
from testbed.lab.lab import Lab
from testbed.lab.migration_targets import migration_targets
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.experiments.felt import (
    SETTLE_S,
    WINDOW_S,
    Pace,
    boot_s,
    group,
    lacks,
    together,
)
from testbed.study.calibration.experiments.moved import conditions, guests_of
from testbed.study.calibration.quantities import Quantities
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation
from testbed.study.report.calibration.data import (
    Clocks,
    Measured,
    Series,
    count_words,
    groups,
    having,
    median_headline,
    values_of,
    wholly_touched,
)
from testbed.study.report.calibration.memory import Phase, phase_panels
from testbed.study.report.calibration.panels import legend_above, sized
from testbed.study.report.page.style import Absent, Chart, Headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PHASES = (
    ("live_migration", "migrate_s", "whole migration"),
    ("live_downtime", "downtime_reported_s", "downtime, as reported"),
    ("live_felt", "felt_s", "felt: lost progress"),
)


class LiveMigration(Experiment):
    """Concurrent live migrations of guests from the first node to the second.

    The guests compute on little memory, so that they dirty few pages. A job that keeps writing all of its memory takes
    longer, or never converges.
    """

    name = "live-migration"
    about = "live migration between two nodes: memory, touched memory, guests at once"
    section = "Move and start"
    order = 40

    def why_not(self, lab: LabFacts) -> str:
        """Return the reason why guests cannot migrate live on this lab, or an empty text."""
        if why := lacks(lab, "live", nodes=2):
            return why
        try:
            names = (node.name for node in lab.scenario.nodes)
            migration_targets(lab.scenario, dict(zip(names, lab.facts, strict=True)))
        except UserError as error:
            return str(error)
        return ""

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return the common conditions of experiments that move guests to another node."""
        return conditions(lab, quick=quick)

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return the approximate duration of a trial in seconds."""
        each_s = boot_s(lab) + float(condition["memory_mib"]) / 100
        return 1.5 + WINDOW_S + SETTLE_S + each_s * sqrt(float(condition["concurrent"]))

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Do one trial; return one observation per guest.

        `migrate_s` is the whole migration as a run counts it, until the agent of the new node has adopted the guest.
        `reported_s` and `downtime_reported_s` are from the hypervisor. `felt_s` includes the downtime, and the lost
        progress of a slower guest, during the migration and in the first second after it. It is negative if the guest
        got more CPU time than its cap during the migration.
        """
        async with group(guests_of(lab, condition)) as specimens:
            await together([specimen.start() for specimen in specimens])
            paces = await together([Pace.of(specimen) for specimen in specimens])
            moved = await together([specimen.migrate((1,)) for specimen in specimens])
            felt = await together([pace.felt_s(specimen) for specimen, pace in zip(specimens, paces, strict=True)])
        return [{**asdict(each), "felt_s": felt_s} for each, felt_s in zip(moved, felt, strict=True)]

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return fits over memory and guests at once: the whole migration, the reported downtime, and the felt time."""
        found = Quantities(trials)
        for name, observed, _label in _PHASES:
            found.times(name, trials, [observed], {})
        return found

    def headlines(self, measured: Measured) -> Sequence[Headline]:
        """Return the median felt time."""
        return median_headline(measured.rows("felt_s"), "felt_s", "felt time of a live migration, median")

    def penalties(self, measured: Measured) -> Sequence[Series]:
        """Return the positive felt times of single guests, by memory."""
        felt = [row for row in measured.rows("felt_s") if (row.number("felt_s") or 0.0) > 0.0]
        alone = [row for row in felt if row.number("concurrent") in {None, 1.0}]
        return [
            Series(f"live, {memory_mib} MiB", own, "felt_s", 4)
            for (memory_mib,), own in groups(alone, "memory_mib").items()
        ]

    def clocks(self, measured: Measured) -> Sequence[Clocks]:
        """Return the hypervisor's downtime against the felt time."""
        rows = measured.rows("downtime_reported_s", "felt_s")
        down_s, felt_s = values_of(rows, "downtime_reported_s"), values_of(rows, "felt_s")
        return [Clocks("Live migration", "hypervisor: downtime (s)", "job: felt (s)", down_s, felt_s, rows)]

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return a chart of elapsed time, reported downtime and felt time of live migrations against memory."""
        name, title = "calibration_live", "Live migration against memory"
        rows = wholly_touched(measured.rows("memory_mib", "migrate_s"))
        if not rows:
            return [measured.absent(name, title)]
        calibration = measured.calibration
        phases = [
            Phase.of(calibration, quantity, observed, label, known, {})
            for quantity, observed, label in _PHASES
            if (known := having(rows, observed))
        ]

        def draw(figure: Figure) -> None:
            legend_above(figure, phase_panels(figure, phases, calibration, across=3)[0], 5)

        laws = [f"{phase.label}: {phase.law}" for phase in phases if phase.law]
        caption = (
            "Wall seconds; one dot per guest. The whole migration is by the controller's clock, the downtime is the "
            "hypervisor's report, and the felt time is lost progress by the job's own count. Lines: the fit; bands: "
            f"95 % bootstrap over trials; diamonds: outliers, kept in the fit. {count_words(rows)}, all memory touched."
            + (f" m in MiB: {'; '.join(laws)}." if laws else "")
        )
        alt = f"Live migrations: median {np.median(values_of(rows, 'migrate_s')):.3g} s"
        return [Chart(name, title, caption, alt, sized(draw), wide=True)]
