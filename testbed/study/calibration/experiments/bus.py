"""The round-trip time of an empty command from the controller to a node's agent and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from testbed.lab.lab import Lab
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.quantities import Quantities, column
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation
from testbed.study.report.calibration.data import Measured, Series, count_words, interval_words, median_headline
from testbed.study.report.calibration.panels import MARKS, legend_above, seconds_scale, sized
from testbed.study.report.page.style import BLUE, Absent, Chart, Headline, log_scale, single_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PINGS = 50


class BusLatency(Experiment):
    """Round-trip times through the broker while the lab is idle."""

    name = "bus"
    about = "round trip of an empty command"
    section = "Control path"
    order = 70

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:  # noqa: ARG002  # nothing is varied
        """Return a single empty condition: each trial pings all nodes in turn."""
        return [{}]

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:  # noqa: ARG002  # always the same
        """Return the approximate duration of a trial in seconds."""
        return 0.5

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:  # noqa: ARG002  # nothing is varied
        """Ping the nodes in turn."""
        nodes = len(lab.facts)
        return [{"round_trip_s": await lab.ping(index % nodes)} for index in range(_PINGS)]

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return the median and the 99th percentile; outliers are not listed, as a tail of latencies is no error."""
        found = Quantities(trials)
        round_trips = column(trials, "round_trip_s")
        found.median("bus_round_trip_s", "s", round_trips, {}, listed=False)
        found.median("bus_round_trip_p99_s", "s", round_trips, {}, quantile=0.99)
        return found

    def headlines(self, measured: Measured) -> Sequence[Headline]:
        """Return the median."""
        return median_headline(measured.rows("round_trip_s"), "round_trip_s", "round trip of the bus, median")

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return the empirical distribution of round trips."""
        name, title = "calibration_bus", "Round trip through the bus"
        rows = measured.rows("round_trip_s")
        if not rows:
            return [measured.absent(name, title)]
        factor, unit = seconds_scale(rows, "round_trip_s")
        series = Series("all round trips", rows, "round_trip_s", factor=factor)
        values = series.values
        tail = [(share, float(np.quantile(values, share))) for share in (0.5, 0.95, 0.99)]

        def draw(figure: Figure) -> None:
            axes = single_axes(figure, f"round trip ({unit})", "share of round trips")
            axes.ecdf(values, color=BLUE, linewidth=1.6, label=series.label)
            for place, (share, at) in enumerate(tail):
                axes.plot(
                    [at], [share], MARKS[place + 1][1], color=MARKS[place + 1][0], markersize=7, zorder=4,
                    label=f"{100 * share:g} %: {at:.3g} {unit}",
                )  # fmt: skip
            if values.min() > 0:
                low, high = 0.9 * float(values.min()), 1.1 * float(values.max())
                log_scale(axes, "x", low, high)
                axes.set_xlim(low, high)
            axes.set_ylim(0.0, 1.03)
            legend_above(figure, axes, 2)

        caption = (
            "Empirical distribution of the round-trip times of empty commands (logarithmic axis): median "
            f"{interval_words(series.middle, unit)}, 99 % within {tail[-1][1]:.3g} {unit}, slowest {values.max():.3g} "
            f"{unit}. {count_words(rows)}."
        )
        alt = f"Round trips: median {series.middle.value:.3g} {unit}"
        return [Chart(name, title, caption, alt, sized(draw), height_in=3.4)]
