"""The accuracy of caps: used against requested CPU time, over windows of one to a hundred periods of a cap."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from testbed.errors import RunError
from testbed.lab.lab import Lab
from testbed.measure.robust import Interval
from testbed.study.calibration.assumptions import Deviation, bounds_words, judged
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.experiments.felt import first_progress_s
from testbed.study.calibration.model import Assumption, Quantity, condition_words
from testbed.study.calibration.quantities import Column, Quantities, by_condition, number
from testbed.study.calibration.sizes import guest_mib, usable_cores, vcpu_counts, why_no_caps
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation, Value
from testbed.study.calibration.watched import window_use
from testbed.study.report.calibration.data import (
    Measured,
    Row,
    count_words,
    groups,
    having,
    interval_words,
    middle,
    spread,
    values_of,
)
from testbed.study.report.calibration.panels import MARKS, dots, interval_mark, legend_above, panels, sized
from testbed.study.report.page.style import INK, Absent, Chart, Headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WINDOWS_S = (0.1, 1.0, 10.0)
_EVERY_S = 0.02
_SETTLE_S = 0.3  # three periods of a cap
_ITERATION_S = 0.1  # long, because several threads wait for each other at the end of an iteration
# (cap, longest window in s): only the extreme caps have long windows, because these take most of the time
_FULL = ((0.05, 10.0), (0.25, 1.0), (0.5, 1.0), (0.75, 1.0), (0.95, 10.0))
_FULL_SEVERAL = ((0.25, 1.0), (0.9, 10.0))
_QUICK = ((0.1, 1.0), (0.5, 1.0), (0.9, 1.0))
_QUICK_SEVERAL = ((0.5, 1.0),)
_NO_INTERVAL = float("nan")
_POINTS = "error_points"
_P95, _WORST = "p95_error_frac", "worst_error_frac"


class CapAccuracy(Experiment):
    """One guest with unlimited CPU demand at each cap, watched for slightly longer than the longest window."""

    name = "cap-accuracy"
    about = "CPU time requested by a cap against used, over windows of 0.1, 1 and 10 s"
    section = "CPU caps"
    order = 90

    def why_not(self, lab: LabFacts) -> str:
        """See `Experiment.why_not`."""
        return why_no_caps(lab)

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return caps from 5 to 95 % of the guest's virtual CPUs for which a node has enough cores.

        A trial has all windows of `WINDOWS_S` up to `longest_window_s`.
        """
        one, several = (_QUICK, _QUICK_SEVERAL) if quick else (_FULL, _FULL_SEVERAL)
        room = usable_cores(lab) + 1e-9
        found: list[Observation] = [
            {"cap_frac": cap_frac, "vcpus": vcpus, "longest_window_s": longest_s}
            for vcpus in vcpu_counts(lab)
            for cap_frac, longest_s in (one if vcpus == 1 else several)
            if cap_frac * vcpus <= room
        ]
        return found

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """See `Experiment.expected_s`."""
        return first_progress_s(lab) + _SETTLE_S + _for_s(float(condition["longest_window_s"]))

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Return one observation per window length: `used_cores` is the median over all windows of that length.

        `worst_error_frac` and `p95_error_frac` are absolute errors of single windows, as fractions of the guest's
        virtual CPUs (as `cap_frac` is). The `windows` overlap. `read_back_cores` is the cap that the node read back.
        """
        facts = LabFacts(lab.scenario, lab.facts)
        vcpus, longest_s = int(condition["vcpus"]), float(condition["longest_window_s"])
        requested_cores = float(condition["cap_frac"]) * vcpus
        cpu_cores = min(float(vcpus), usable_cores(facts))
        async with lab.job(
            memory_mib=guest_mib(facts), cpu_cores=cpu_cores, program="eatcpu", iteration_s=_ITERATION_S
        ) as job:
            await job.start()
            capped = await job.cap(requested_cores / cpu_cores)
            watched = await lab.watch(job.nodes[0], job.guests, _EVERY_S, _SETTLE_S + _for_s(longest_s))
        first = next((index for index, t_s in enumerate(watched.t_s) if t_s >= _SETTLE_S), len(watched.t_s))
        t_s, cpu_s = watched.t_s[first:], watched.cpu_s[job.guests[0]][first:]
        found: list[Observation] = []
        for window_s in (window for window in WINDOWS_S if window <= longest_s):
            use = window_use(t_s, cpu_s, window_s, requested_cores)
            if use is None:
                raise RunError(f"no window of {window_s:g} s in {len(t_s)} samples: the agent could not sample in time")
            found.append(
                {
                    "window_s": window_s,
                    "requested_cores": requested_cores,
                    "used_cores": use.used_cores,
                    "worst_error_frac": use.worst_error_cores / vcpus,
                    "p95_error_frac": use.p95_error_cores / vcpus,
                    "windows": use.windows,
                    "read_back_cores": capped.caps_cores[0],
                }
            )
        return found

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return errors of used against requested CPU time, in percentage points of the guest's CPUs.

        An observation is the median over the windows of a trial. The largest error of all single windows is a quantity
        of its own.
        """
        found = Quantities(trials)
        sizes: dict[float, Column] = {}
        worst: dict[float, Column] = {}
        for condition, some in by_condition(trials, "vcpus", "cap_frac"):
            own: dict[float, Column] = {}
            vcpus = number(condition, "vcpus") or 1.0
            for trial, window_s, observation in _windows(some):
                asked, used = number(observation, "requested_cores"), number(observation, "used_cores")
                if asked is None or used is None:
                    continue
                error = 100.0 * (used - asked) / vcpus
                worst_frac = number(observation, "worst_error_frac")
                furthest = error if worst_frac is None else 100.0 * worst_frac
                for columns, value in ((own, error), (sizes, abs(error)), (worst, abs(furthest))):
                    columns.setdefault(window_s, Column()).add(value, trial)
            for window_s in sorted(own):
                under = {**condition, "window_s": window_s}
                found.median("cap_error_points", "points", own[window_s], under, relative=False)
        for window_s in sorted(sizes):
            under = {"window_s": window_s}
            found.median("cap_error_median_points", "points", sizes[window_s], under, listed=False, relative=False)
            furthest_of_all = Interval(max(worst[window_s].values), _NO_INTERVAL, _NO_INTERVAL)
            found.add("cap_error_worst_points", "points", furthest_of_all, worst[window_s], under, model="maximum")
        return found

    def assumptions(self, quantities: Quantities) -> Mapping[str, Assumption]:
        """Judge errors as fractions of the guest's CPUs, over the longest window, as decisions hold for seconds."""
        longest: dict[tuple[Value | None, Value | None], Quantity] = {}
        for quantity in quantities.named("cap_error_points"):  # windows come from the shortest to the longest
            longest[quantity.condition.get("vcpus"), quantity.condition.get("cap_frac")] = quantity
        statement = "A task gets the fraction of a node's CPU that was allocated to it."
        deviations = [
            Deviation(
                Interval(quantity.value / 100.0, quantity.low / 100.0, quantity.high / 100.0),
                f"off by {bounds_words(quantity, ' points')} ({condition_words(quantity.condition)})",
            )
            for quantity in longest.values()
        ]
        return {"cap_accuracy": judged(statement, "[RR 2.1]", deviations)}

    def headlines(self, measured: Measured) -> Sequence[Headline]:
        """Return the median error over the longest window."""
        caps = measured.calibration.find("cap_error_median_points")
        if not caps:
            return ()
        longest = max(caps, key=lambda one: float(one.condition.get("window_s", 0.0)))
        label = f"cap error over {float(longest.condition.get('window_s', 0.0)):g} s, median"
        return (Headline(f"{longest.value:.2g}", "points", label),)

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return a chart of used minus requested CPU time against the request, with one panel per window length."""
        name, title = "calibration_caps", "Cap error: used minus requested CPU time, by window"
        rows = _errors(measured)
        if not rows:
            return [measured.absent(name, title)]
        windows = groups(rows, "nominal_s")

        def draw(figure: Figure) -> None:
            cells = panels(figure, len(windows), across=3, height_in=2.9)
            for axes, ((window_s,), own) in zip(cells, windows.items(), strict=True):
                axes.axhline(0.0, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
                by_size = groups(own, "vcpus")
                _single_windows(axes, own, len(by_size))
                for mark, ((vcpus,), some) in enumerate(by_size.items()):
                    shift = (mark - 0.5 * (len(by_size) - 1)) * 4.0
                    x = values_of(some, "asked_percent") + shift + 2.4 * spread(len(some))
                    dots(axes, x, values_of(some, _POINTS), mark, label=_cpus(vcpus), total=len(own))
                    for (asked,), same in groups(some, "asked_percent").items():
                        named = axes.get_legend_handles_labels()[1]
                        label = "median and its 95 % interval"
                        interval_mark(
                            axes, float(asked) + shift, middle(same, _POINTS).value, middle(same, _POINTS),
                            upright=True,
                            label="" if label in named else label,
                        )  # fmt: skip
                axes.set_xlim(0, 100)
                axes.set_xlabel("requested (% of the guest's CPUs)")
                axes.set_ylabel("used − requested (points)")
                axes.set_title(f"windows of {float(window_s):g} s", loc="left")
                edge = 1.1 * max(float(np.abs(values_of(own, _POINTS)).max()), _single(own, _P95), 0.1)
                axes.set_ylim(-edge, edge)
            legend_above(figure, cells[0], 4)

        said = []
        for (window_s,), own in windows.items():
            size = [Row(row.trial, {"size": abs(row.number(_POINTS) or 0.0)}) for row in own]
            words = f"{float(window_s):g} s windows: median |error| {interval_words(middle(size, 'size'), '')}"
            worst = _single(own, _WORST)
            said.append(f"{words}, worst single window {worst:.3g}" if worst > 0.0 else words)
        caption = (
            "CPU time used over a window minus the cap times the window, in percentage points of the guest's CPUs, by "
            "the finest counter of the driver. One dot per trial: the median of its windows of that length. Pale bars: "
            "range of 95 % of single windows in the median trial. Each panel has its own scale. Errors in points: "
            f"{'; '.join(said)}. {count_words(rows)}."
        )
        alt = f"Cap errors in points: {'; '.join(said)}"
        return [Chart(name, title, caption, alt, sized(draw), wide=True)]


def _for_s(longest_window_s: float) -> float:
    """Return the seconds to watch: at least 2.2, and enough for several positions of the longest sliding window."""
    return max(2.2, longest_window_s * 1.02 + 0.2)


def _windows(outcomes: Sequence[Outcome]) -> Iterator[tuple[int, float, Mapping[str, Value]]]:
    """Yield trial, nominal window in seconds, and observation of each window; real lengths differ slightly."""
    for outcome in outcomes:
        for observation in outcome.observations:
            window_s = number(observation, "window_s")
            if window_s is not None:
                yield outcome.trial, float(f"{window_s:.2g}"), observation


def _errors(measured: Measured) -> list[Row]:
    """Return windows with their error in percentage points of the guest's CPUs, and their length to two digits."""
    found = []
    for row in measured.rows("window_s", "requested_cores", "used_cores"):
        vcpus = row.number("vcpus") or 1.0
        asked, used = row.number("requested_cores") or 0.0, row.number("used_cores") or 0.0
        more = {
            _POINTS: 100.0 * (used - asked) / vcpus,
            "asked_percent": 100.0 * asked / vcpus,
            "nominal_s": float(f"{row.number('window_s'):.2g}"),
        }
        found.append(Row(row.trial, {**row.values, **more}))
    return found


def _single(rows: list[Row], name: str) -> float:
    """Return the largest error of single windows in percentage points; 0 if the trials have none."""
    return 100.0 * max((row.number(name) or 0.0 for row in rows), default=0.0)


def _single_windows(axes: Axes, rows: list[Row], sizes: int) -> None:
    """Draw the range of 95 % of single windows."""
    for mark, own in enumerate(groups(having(rows, _P95), "vcpus").values()):
        for (asked,), same in groups(own, "asked_percent").items():
            within = 100.0 * middle(same, _P95).value
            axes.bar(
                float(asked) + (mark - 0.5 * (sizes - 1)) * 4.0, 2.0 * within, bottom=-within, width=3.4, zorder=1,
                color=MARKS[mark % len(MARKS)][0], alpha=0.22, linewidth=0,
            )  # fmt: skip


def _cpus(vcpus: object) -> str:
    return f"{vcpus} vCPU" + ("" if vcpus == 1 else "s")
