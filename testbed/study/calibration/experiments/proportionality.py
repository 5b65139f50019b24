"""The rate of progress of jobs at each yield; the papers assume that it is proportional to the yield [RR 2.2]."""

# ruff: noqa: RUF001 - signs of mathematics and dashes, for people to read

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from testbed.lab.lab import Lab
from testbed.lab.rates import SETTLE_S, WINDOW_S
from testbed.measure.robust import Interval
from testbed.study.calibration.assumptions import Deviation, bounds_words, judged, relative
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.experiments.felt import first_progress_s
from testbed.study.calibration.fits import slope_interval
from testbed.study.calibration.model import Assumption, Quantity, condition_words
from testbed.study.calibration.quantities import Column, Quantities, by_condition, number
from testbed.study.calibration.sizes import guest_mib, need_cores, why_no_caps
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation, Value
from testbed.study.report.calibration.data import (
    Measured,
    Row,
    count_words,
    groups,
    interval_words,
    middle,
    spread,
    values_of,
)
from testbed.study.report.calibration.panels import MARKS, dots, interval_mark, legend_above, panels, sized
from testbed.study.report.page.style import INK, Absent, Chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

YIELDS = (0.1, 0.25, 0.5, 0.75, 1.0)
_SERIAL_ITERATION_S = 0.005
_PARALLEL_ITERATION_S = 0.02
_TALKING_ITERATION_S = 0.005
_TALKING_BYTES = 65536
_MOST_TASKS = 4
# least numbers of iterations in a window: guests with a kernel of their own report progress at any time, but in whole
# iterations, so they need more than guests that report at the end of an iteration
_WHOLE_ITERATIONS = 20
_ITERATIONS = 10
_SHAPE = ("kind", "tasks", "topology", "message_bytes", "iteration_s")


class Proportionality(Experiment):
    """A fresh job per trial that runs at all yields in random order, between two measurements of its dedicated rate."""

    name = "proportionality"
    about = "rate of progress against yield, of serial and of MPI jobs"
    section = "Progress"
    order = 110

    def why_not(self, lab: LabFacts) -> str:
        """See `Experiment.why_not`."""
        return why_no_caps(lab)

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return a serial job, and MPI jobs with one task per node that mostly compute or exchange many messages.

        With two nodes there is one topology only, because two ranks are neighbours in each of them.
        """
        tasks = min(_MOST_TASKS, len(lab.facts))
        found = [_condition("serial", 1, "none", 0, _SERIAL_ITERATION_S)]
        if tasks < 2 or not lab.able("mpi"):
            return found
        calm = (lab.scenario.programs.message_bytes, _PARALLEL_ITERATION_S)
        found.append(_condition("parallel", tasks, "ring", *calm))
        if not quick:
            found.append(_condition("parallel", tasks, "ring", _TALKING_BYTES, _TALKING_ITERATION_S))
            if tasks > 2:
                found.append(_condition("parallel", tasks, "all-to-all", *calm))
                found.append(_condition("parallel", tasks, "all-to-all", _TALKING_BYTES, _TALKING_ITERATION_S))
        return found

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """See `Experiment.expected_s`."""
        start_s = first_progress_s(lab) * (1.0 if condition["kind"] == "serial" else 1.5)
        looks_s = [_window_s(lab, float(condition["iteration_s"]), at) for at in (1.0, *YIELDS, 1.0)]
        return start_s + sum(looks_s) + len(looks_s) * (SETTLE_S + 0.3)

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Return one observation per yield. All tasks have the same cap; the rate is that of the slowest task.

        `dedicated_units_per_s` is the mean of the rates at yield 1 before and after all others, in the same job.
        `drift_frac` is the relative increase from the first to the second. Yield 1 is also measured among the other
        yields: its `relative_rate` shows the resolution of this experiment. `used_cores` is of the slowest task.
        """
        facts = LabFacts(lab.scenario, lab.facts)
        serial = condition["kind"] == "serial"
        tasks, iteration_s = int(condition["tasks"]), float(condition["iteration_s"])
        cores = need_cores(facts, nodes=tasks)
        job = (
            lab.job(memory_mib=guest_mib(facts), cpu_cores=cores, program="eatcpu", iteration_s=iteration_s)
            if serial
            else lab.job(
                memory_mib=guest_mib(facts), cpu_cores=cores, nodes=tuple(range(tasks)), program="patterns",
                topology=str(condition["topology"]), message_bytes=int(condition["message_bytes"]),
                iteration_s=iteration_s,
            )
        )  # fmt: skip
        order = list(YIELDS)
        random.Random(f"{sorted(condition.items())}/{job.specs[0].job}").shuffle(order)  # noqa: S311  # no secret
        async with job:
            await job.start()
            looks = []
            for yield_frac in (1.0, *order, 1.0):
                await job.cap(yield_frac)
                looks.append((yield_frac, await job.rate_and_use(_window_s(facts, iteration_s, yield_frac))))
        before, after = looks[0][1].units_per_s, looks[-1][1].units_per_s
        dedicated = (before + after) / 2
        return [
            {
                "yield_frac": yield_frac,
                "units_per_s": rate.units_per_s,
                "dedicated_units_per_s": dedicated,
                "relative_rate": rate.units_per_s / dedicated,
                "used_cores": rate.used_cores,
                "need_cores": cores,
                "drift_frac": after / before - 1.0,
                "place": place,
            }
            for place, (yield_frac, rate) in enumerate(looks[1:-1])
        ]

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return the progress of each kind of job at each yield."""
        found = Quantities(trials)
        for condition, some in by_condition(trials, *_SHAPE):
            _progress(found, condition, some)
        return found

    def assumptions(self, quantities: Quantities) -> Mapping[str, Assumption]:
        """Judge progress relative to the yield: progress 0.55 at yield 0.5 is a deviation of 10 %."""
        deviations = []
        for quantity in quantities.named("relative_progress"):
            if (at := float(quantity.condition["yield_frac"])) < 1.0:
                where = {key: value for key, value in quantity.condition.items() if key != "yield_frac"}
                words = f"progress {bounds_words(quantity, '')} at yield {at:g} ({condition_words(where)})"
                deviations.append(Deviation(relative(quantity, at), words))
        return {"linearity": judged("A job progresses in proportion to its yield.", "[RR 2.2]", deviations)}

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return a chart of the relative rate of progress against the yield, and of its difference from the yield."""
        name, title = "calibration_progress", "Progress against yield"
        known = measured.rows("yield_frac", "relative_rate")
        if not known:
            return [measured.absent(name, title)]
        rows = [
            Row(row.trial, {**row.values, "off": 100.0 * (row.number("relative_rate") or 0.0) - 100.0 * _yield(row)})
            for row in known
        ]
        kinds = {
            label: own
            for shape, own in sorted(
                groups(rows, *_SHAPE).items(), key=lambda item: (item[0][0] != "serial", str(item[0]))
            )
            if (label := _shape_words(shape, rows))
        }

        def draw(figure: Figure) -> None:
            cells = panels(figure, 2, across=2, height_in=3.6)
            cells[0].plot([0, 1], [0, 1], color=INK, linewidth=0.9, linestyle=(0, (4, 2)), label="progress = yield")
            cells[1].axhline(0.0, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
            for mark, (label, own) in enumerate(kinds.items()):
                shift = (mark - 0.5 * (len(kinds) - 1)) * 0.012
                x = values_of(own, "yield_frac") + shift + 0.008 * spread(len(own))
                for axes, value in zip(cells, ("relative_rate", "off"), strict=True):
                    dots(axes, x, values_of(own, value), mark, label=label, total=len(rows), size=16)
                    levels = [
                        (float(level), middle(same, value)) for (level,), same in groups(own, "yield_frac").items()
                    ]
                    axes.plot(
                        [level + shift for level, _ in levels], [found.value for _, found in levels], linewidth=1.1,
                        color=MARKS[mark % len(MARKS)][0], zorder=2, alpha=0.8,
                    )  # fmt: skip
                    for level, found in levels if value == "off" else ():
                        interval_mark(axes, level + shift, found.value, found, upright=True)
            for axes in cells:
                axes.set_xlim(0, 1.06)
                axes.set_xlabel("yield")
            cells[0].set_ylim(bottom=0.0)
            cells[0].set_ylabel("rate of progress / dedicated rate")
            cells[1].set_ylabel("rate − yield (points of the dedicated rate)")
            legend_above(figure, cells[0], 6)

        said = []
        for label, own in kinds.items():
            worst = max(
                (middle(same, "off") for same in groups(own, "yield_frac").values()), key=lambda one: abs(one.value)
            )
            said.append(f"{label}: {interval_words(worst, 'points')}")
        caption = (
            "Work units per second of a job at each yield, relative to the same guests at yield 1; one dot per "
            "measurement. Second panel: minus the yield, in percentage points; strokes are medians with their 95 % "
            "intervals over trials. The papers assume that progress equals the yield [RR 2.2]. Median with the largest "
            f"deviation: {'; '.join(said)}. {count_words(rows)}."
        )
        alt = f"Largest deviation from progress = yield: {'; '.join(said)}"
        return [Chart(name, title, caption, alt, sized(draw), wide=True)]


def _progress(found: Quantities, condition: Condition, outcomes: Sequence[Outcome]) -> None:
    """Add the relative progress at each yield, its slope, and the largest deviation from the yield."""
    by_yield: dict[float, Column] = {}
    yields, rates = [], Column()
    for outcome in outcomes:
        for observation in outcome.observations:
            yield_frac, rate = number(observation, "yield_frac"), number(observation, "relative_rate")
            if yield_frac is None or rate is None:
                continue
            by_yield.setdefault(round(yield_frac, 4), Column()).add(rate, outcome.trial)
            yields.append(yield_frac)
            rates.add(rate, outcome.trial)
    worst: Quantity | None = None
    for yield_frac in sorted(by_yield):
        under = {**condition, "yield_frac": yield_frac}
        quantity = found.median("relative_progress", "1", by_yield[yield_frac], under)
        if quantity and (worst is None or _off(quantity) > _off(worst)):
            worst = quantity
    if worst is None:
        return
    slope = slope_interval(yields, rates.values, rates.trials)
    if slope:
        found.add("progress_slope", "1", slope, rates, condition, model="linear")
    at = float(worst.condition["yield_frac"])
    off = Interval(worst.value - at, worst.low - at, worst.high - at)
    found.add("progress_worst_deviation", "1", off, by_yield[at], {**condition, "yield_frac": at})


def _off(quantity: Quantity) -> float:
    return abs(quantity.value - float(quantity.condition["yield_frac"]))


def _condition(kind: str, tasks: int, topology: str, message_bytes: int, iteration_s: float) -> Observation:
    return {
        "kind": kind, "tasks": tasks, "topology": topology, "message_bytes": message_bytes, "iteration_s": iteration_s,
    }  # fmt: skip


def _window_s(lab: LabFacts, iteration_s: float, yield_frac: float) -> float:
    iterations = _WHOLE_ITERATIONS if lab.able("whole") else _ITERATIONS
    return max(WINDOW_S, iterations * iteration_s / yield_frac)


def _yield(row: Row) -> float:
    return row.number("yield_frac") or 0.0


def _shape_words(shape: tuple[Value, ...], rows: list[Row]) -> str:
    """Return a label for a kind of job, with only the properties that distinguish it from the others."""
    kind, tasks, topology, message_bytes, iteration_s = shape
    if kind == "serial":
        return "serial"
    parallel = [row for row in rows if row.values.get("kind") != "serial"]
    words = f"{tasks} × {topology}"
    if len({row.at("message_bytes") for row in parallel}) > 1 and isinstance(message_bytes, (int, float)):
        words += f", {message_bytes / 1024:g} KiB"
    if len({row.at("iteration_s") for row in parallel}) > 1 and isinstance(iteration_s, (int, float)):
        words += f" each {1e3 * iteration_s:g} ms"
    return words
