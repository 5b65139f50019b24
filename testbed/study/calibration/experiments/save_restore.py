"""The measured rescheduling penalty: the cost of saving a guest and restoring it on its node [RR 5.1]."""

# ruff: noqa: RUF001 - signs of mathematics, for people to read

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from testbed.lab.lab import Lab
from testbed.measure.robust import Interval
from testbed.study.calibration.assumptions import PENALTY_S, Deviation, bounds_words, judged, relative
from testbed.study.calibration.experiment import Experiment, LabFacts
from testbed.study.calibration.experiments.felt import (
    MOST_CONCURRENT,
    SETTLE_S,
    WINDOW_S,
    boot_s,
    cores_of,
    emulated,
    group,
    lab_of,
    lacks,
    levels_mib,
    together,
)
from testbed.study.calibration.experiments.interruption import SKEWS, interrupt
from testbed.study.calibration.fits import ratio_interval
from testbed.study.calibration.model import Assumption, condition_words
from testbed.study.calibration.quantities import WHOLE, Quantities, by_condition, column
from testbed.study.calibration.trials import Outcome
from testbed.study.calibration.values import Condition, Observation, Value
from testbed.study.report.calibration.data import (
    Clocks,
    Measured,
    Row,
    Series,
    count_words,
    groups,
    having,
    listed,
    middle,
    percent,
    values_of,
    wholly_touched,
)
from testbed.study.report.calibration.memory import Phase, phase_panels
from testbed.study.report.calibration.panels import legend_above, sized, strip_panels
from testbed.study.report.calibration.suspend import figure_suspend
from testbed.study.report.page.style import Absent, Chart, Headline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PROGRAM = "eatcpu"
_SAME_BUT_TOUCHED = ("memory_mib", "storage", "cache", "concurrent", "program")
_WAYS = ("touched_frac", "storage", "cache", "program")
_MOST_LINES = 14
_SIZES_ALONE, _SIZES = 5, 4  # numbers of memory sizes for single guests, and for several at once
_PHASES = (
    ("save", "save_s", "save"),
    ("restore", "restore_s", "restore"),
    ("first_progress", "first_progress_s", "first progress after the restore"),
    ("penalty", "penalty_s", "penalty: the sum"),
)
_OTHERWISE = {
    "touched_frac": "{} touched", "storage": "images in {}", "cache": "{} cache", "program": "program {}",
}  # fmt: skip


class SaveRestore(Experiment):
    """Working guests on one node are saved concurrently and, once all images are written, restored concurrently.

    The main grid is memory by number of guests at once, with all memory filled, and with images on disk and in the page
    cache. From a point of the grid each other factor is varied alone: the touched part of the memory, images in the
    memory store, and images that are read from the disk. The start of a guest is not measured, and serves as warm-up.
    """

    name = "save-restore"
    about = "save and restore of guests on one node: memory, guests at once, touched memory, storage, page cache"
    section = "Preempt and restore"
    order = 10

    def why_not(self, lab: LabFacts) -> str:
        """Return the reason why guests cannot be saved on this lab, or an empty text."""
        return lacks(lab, "save")

    def conditions(self, lab: LabFacts, *, quick: bool) -> list[Observation]:
        """Return the grid and the points around it that fit the memory of every node."""
        few = quick or emulated(lab)
        grid = [
            (mib, concurrent)
            for concurrent, levels in self._grid(quick=quick)
            for mib in levels_mib(lab, concurrent, levels)
        ]
        found = [_condition(mib, concurrent) for mib, concurrent in grid]
        star_mib = max((mib for mib, concurrent in grid if concurrent == MOST_CONCURRENT), default=grid[0][0])
        if quick:
            return [*found, _condition(star_mib, cache="cold")]
        most_mib = max(mib for mib, _ in grid)
        found.append(_condition(most_mib, touched_frac=0.25))
        found += [_condition(mib, cache="cold") for mib in dict.fromkeys((most_mib,) if few else (star_mib, most_mib))]
        if self._has_memory_store(lab, most_mib):
            found.append(_condition(most_mib, storage="memory"))
        return found

    @staticmethod
    def _grid(*, quick: bool) -> Sequence[tuple[int, int]]:
        """Return numbers of guests at once, each with the number of memory sizes."""
        if quick:
            return (1, 2), (MOST_CONCURRENT, 2)
        alone = (1, _SIZES_ALONE)  # enough to see whether times grow linearly with memory
        return alone, *((concurrent, _SIZES) for concurrent in range(2, MOST_CONCURRENT + 1))

    @staticmethod
    def _has_memory_store(lab: LabFacts, memory_mib: int) -> bool:
        """Return whether every machine has a memory store, and memory for the guest and its image with a reserve."""
        return all("memory" in fact.image_stores and fact.machine_memory_mib >= 4 * memory_mib for fact in lab.facts)

    def expected_s(self, condition: Condition, lab: LabFacts) -> float:
        """Return the approximate duration of a trial in seconds."""
        each_s = boot_s(lab) + float(condition["memory_mib"]) / 200
        return 1.5 + WINDOW_S + SETTLE_S + each_s * sqrt(float(condition["concurrent"]))

    async def trial(self, lab: Lab, condition: Condition) -> list[Observation]:
        """Do one trial; return one observation per guest.

        `pause_s`, the time until the last of the other guests was saved, is no part of `penalty_s` and `felt_s`.
        `penalty_s` includes the time until the guest was held, in which it worked; `felt_s` does not. `felt_s` includes
        slower work after the first progress; `penalty_s` does not. `cached_frac` is left out where the node cannot
        measure it.
        """
        cores = cores_of(lab_of(lab))
        guests = [
            lab.job(
                memory_mib=int(condition["memory_mib"]),
                cpu_cores=cores,
                program=str(condition["program"]),
                touched_frac=float(condition["touched_frac"]),
            )
            for _ in range(int(condition["concurrent"]))
        ]
        async with group(guests) as specimens:
            await together([specimen.start() for specimen in specimens])
            found = await interrupt(specimens, store=str(condition["storage"]), cold=condition["cache"] == "cold")
        return [{name: value for name, value in seen.items() if name not in SKEWS} for seen in found]

    def quantities(self, trials: Sequence[Outcome]) -> Quantities:
        """Return fits of each part by image store and page cache, and the penalty of each condition."""
        found = Quantities(trials)
        for condition, some in by_condition(trials, "storage"):
            found.times("save", some, ["save_s"], condition)  # the page cache matters for restores only
        for condition, some in by_condition(trials, "storage", "cache"):
            found.times("restore", some, ["restore_s"], condition)
            found.times("first_progress", some, ["first_progress_s"], condition)
            found.times("resume", some, ["restore_s", "first_progress_s"], condition)
            found.times("penalty", some, ["penalty_s"], condition)
            found.times("felt", some, ["felt_s"], condition)
            found.median("image_cached_frac", "1", column(some, "cached_frac"), condition, listed=False)
        for condition, some in by_condition(trials, *_SAME_BUT_TOUCHED, "touched_frac"):
            found.median("penalty_at_s", "s", column(some, "penalty_s"), condition, listed=False)
        for condition, some in by_condition(trials, *_SAME_BUT_TOUCHED):
            _touched(found, condition, some)
        return found

    def assumptions(self, quantities: Quantities) -> Mapping[str, Assumption]:
        """Judge the penalty of each condition relative to 300 s, and its dependence on memory."""
        penalties = []
        for quantity in quantities.named("penalty_at_s"):
            times = f", 1/{PENALTY_S / quantity.value:.3g} of 300 s" if 0 < quantity.value < PENALTY_S else ""
            words = f"{bounds_words(quantity, ' s')}{times} ({condition_words(quantity.condition)})"
            penalties.append(Deviation(relative(quantity, PENALTY_S), words))
        costs = "A preemption or a migration costs a job 300 s of wall clock time."
        constant = "The cost of a preemption or a migration does not depend on the memory of the job."
        return {
            "penalty": judged(costs, "[RR 5.1]", penalties),
            "memory_independence": judged(constant, "[RR 5.1]", _memory_deviations(quantities.trials)),
        }

    def headlines(self, measured: Measured) -> Sequence[Headline]:
        """Return the median penalty of the largest guest that was saved alone, and the ratio of 300 s to it."""
        grid, _others = reschedulings(measured)
        kinds = groups([row for row in grid if row.number("concurrent") in {None, 1.0}], "memory_mib")
        if not kinds:
            return ()
        (memory_mib,), own = list(kinds.items())[-1]
        penalty = middle(own, "penalty_s")
        found = [Headline(f"{penalty.value:.3g}", "s", f"penalty of a guest of {memory_mib} MiB, median")]
        if penalty.value > 0:
            ratio = f"{PENALTY_S / penalty.value:.3g}"
            found.append(Headline(ratio, "×", "ratio of the papers' 300 s to this penalty"))
        return found

    def penalties(self, measured: Measured) -> Sequence[Series]:
        """Return penalties by guests at once and memory; of many series, the extreme memory sizes of each number."""
        kinds = groups(reschedulings(measured)[0], "concurrent", "memory_mib")
        levels = sorted({level for level, _ in kinds}, key=str)
        ends = {
            (level, end([size for at, size in kinds if at == level], key=float))
            for level in levels
            for end in (min, max)
        }
        return [
            Series(f"{memory_mib} MiB, {level} at once", own, "penalty_s", levels.index(level))
            for (level, memory_mib), own in kinds.items()
            if len(kinds) <= _MOST_LINES or (level, memory_mib) in ends
        ]

    def clocks(self, measured: Measured) -> Sequence[Clocks]:
        """Return the agent's write time against the controller's save time, and the penalty against the felt time."""
        stored = measured.rows("write_reported_s", "sync_reported_s", "save_s")
        written_s = values_of(stored, "write_reported_s") + values_of(stored, "sync_reported_s")
        save_s = values_of(stored, "save_s")
        felt = measured.rows("penalty_s", "felt_s")
        penalty_s, felt_s = values_of(felt, "penalty_s"), values_of(felt, "felt_s")
        return [
            Clocks("Save", "agent: write + sync (s)", "controller: save (s)", written_s, save_s, stored),
            Clocks("Rescheduling", "controller: penalty (s)", "job: felt (s)", penalty_s, felt_s, felt),
        ]

    def figures(self, measured: Measured) -> Sequence[Chart | Absent]:
        """Return charts of a rescheduling against memory, of suspend and resume, and of its cost by other factors."""
        return [figure_memory(measured), figure_suspend(measured, reschedulings(measured)[0]), _figure_star(measured)]


def _condition(
    memory_mib: int, concurrent: int = 1, *, touched_frac: float = 1.0, storage: str = "disk", cache: str = "warm"
) -> Observation:
    return {
        "memory_mib": memory_mib,
        "touched_frac": touched_frac,
        "storage": storage,
        "concurrent": concurrent,
        "cache": cache,
        "program": _PROGRAM,
    }


def _touched(found: Quantities, condition: Condition, trials: Sequence[Outcome]) -> None:
    """Add the penalty ratio of guests that touched a part of their memory to guests that touched all of it."""
    kinds = by_condition(trials, "touched_frac")
    whole = next((column(some, "penalty_s") for kind, some in kinds if kind.get("touched_frac") == WHOLE), None)
    for kind, some in kinds:
        part = column(some, "penalty_s")
        if whole is None or kind.get("touched_frac", WHOLE) == WHOLE or not (whole.values and part.values):
            continue
        if min(*whole.values, *part.values) <= 0.0:
            continue
        ratio = ratio_interval(part.values, part.trials, whole.values, whole.trials)
        found.add("penalty_touched_ratio", "1", ratio, part, {**condition, **kind})


def _memory_deviations(trials: Sequence[Outcome]) -> list[Deviation]:
    """Return the penalty of the largest guests relative to that of the smallest ones, both with all memory filled."""
    whole = [outcome for outcome in trials if outcome.condition.get("touched_frac", WHOLE) == WHOLE]
    deviations = []
    for condition, some in by_condition(whole, "storage", "cache", "concurrent"):
        sizes = [(kind["memory_mib"], column(own, "penalty_s")) for kind, own in by_condition(some, "memory_mib")]
        if len(sizes) < 2:
            continue
        (least_mib, least), (most_mib, most) = sizes[0], sizes[-1]
        if not least.values or not most.values or min(*least.values, *most.values) <= 0.0:
            continue
        ratio = ratio_interval(most.values, most.trials, least.values, least.trials)
        times = bounds_words(ratio, "")
        words = f"{most_mib} MiB cost {times} times as much as {least_mib} MiB ({condition_words(condition)})"
        deviations.append(Deviation(Interval(ratio.value - 1.0, ratio.low - 1.0, ratio.high - 1.0), words))
    return deviations


def reschedulings(measured: Measured) -> tuple[list[Row], list[Row]]:
    """Return the reschedulings of the grid of memory and guests at once, and those that vary another factor."""
    rows = measured.rows("memory_mib", "penalty_s")
    ways = groups(wholly_touched(rows), *_WAYS)
    grid = max(
        ways,
        key=lambda way: (len(groups(ways[way], "memory_mib", "concurrent")), "warm" in way, "disk" in way),
        default=(),
    )
    return [row for row in rows if row.at(*_WAYS) == grid], [row for row in rows if row.at(*_WAYS) != grid]


def figure_memory(measured: Measured) -> Chart | Absent:
    """Return save, restore, first progress and penalty against memory, one series per number of guests at once."""
    name, title = "calibration_memory", "Parts of a rescheduling against memory"
    rows, _others = reschedulings(measured)
    if not rows:
        return measured.absent(name, title)
    calibration = measured.calibration
    where = {"storage": rows[0].values.get("storage", "disk"), "cache": rows[0].values.get("cache", "warm")}
    phases = []
    for quantity, observed, label in _PHASES:
        under: dict[str, Value] = {"storage": where["storage"]} if quantity == "save" else dict(where)
        phases.append(Phase.of(calibration, quantity, observed, label, having(rows, observed), under))

    def draw(figure: Figure) -> None:
        legend_above(figure, phase_panels(figure, phases, calibration, across=2)[-1], 6)

    laws = [f"{phase.name.replace('_', ' ')} = {phase.law}" for phase in phases if phase.law]
    caption = (
        "Wall seconds by the controller's clock against the memory of a guest in MiB; one dot per guest. "
        f"Images on {where['storage']}, page cache {where['cache']}, all memory touched. Lines: the fit of the "
        "calibration; bands: 95 % bootstrap over whole trials, pointwise. Diamonds: outliers, further than 3.5 robust "
        "standard deviations from the fit, but kept in it; triangles count the outliers beyond the axis. "
        f"{count_words(rows)}. m is memory in MiB. " + (". ".join(laws) + "." if laws else "")
    )
    worst = max(rows, key=lambda row: row.number("penalty_s") or 0.0)
    alt = (
        f"Penalty of a rescheduling: median {np.median(values_of(rows, 'penalty_s')):.3g} s, "
        f"at most {worst.number('penalty_s'):.3g} s at {worst.number('memory_mib'):g} MiB"
    )
    return Chart(name, title, caption.strip(), alt, sized(draw), wide=True)


def _figure_star(measured: Measured) -> Chart | Absent:
    """Return a strip chart of the cost of a rescheduling with one varied factor: touched memory, storage or cache."""
    name, title = "calibration_star", "A rescheduling by touched memory, storage and cache"
    grid, others = reschedulings(measured)
    if not others:
        return measured.absent(name, title, "Only memory and guests at once were varied." if grid else "")
    places = set(groups(others, "memory_mib", "concurrent"))
    kinds = groups([row for row in grid if row.at("memory_mib", "concurrent") in places], "memory_mib", "concurrent")
    usual_way = grid[0].at(*_WAYS) if grid else ()
    several = len(places) > 1
    series = []
    for place in sorted(places, key=str):
        sort_of = f"{place[0]} MiB: " if several else ""
        if place in kinds:
            series.append(Series(f"{sort_of}usual", kinds[place], "penalty_s", 0))
        here = [row for row in others if row.at("memory_mib", "concurrent") == place]
        for way, own in groups(here, *_WAYS).items():
            series.append(Series(sort_of + _otherwise(way, usual_way), own, "penalty_s", 1))
    place = next(iter(sorted(places, key=str)))
    fixed = "" if several else f"Guests of {place[0]} MiB, {place[1]} at once. "
    words = listed(series, "s")
    caption = (
        f"{fixed}Wall seconds by the controller's clock; one dot per guest, with the median and its 95 % interval over "
        "trials. Each series varies one factor; `usual` has the values of the main grid. Penalty: save + restore + "
        f"first progress. Median penalty: {words}. {count_words([row for one in series for row in one.rows])}."
    )
    observed = [("save_s", "save"), ("restore_s", "restore"), ("penalty_s", "penalty")]
    return strip_panels(name, title, caption, f"Penalty: {words}", series, observed)


def _otherwise(way: Sequence[Value], grid: Sequence[Value]) -> str:
    """Return the differences of a condition from the grid in words."""
    found = [
        _OTHERWISE[name].format(percent(value) if name == "touched_frac" else value)
        for name, value, was in zip(_WAYS, way, grid or ("",) * len(_WAYS), strict=True)
        if value not in {was, ""}
    ]
    return ", ".join(found) or "otherwise"
