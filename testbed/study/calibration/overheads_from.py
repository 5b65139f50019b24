"""Tables of overheads for the simulator (`testbed.scheduling.simulation.overheads_file`), from the fits.

The grid has the memory sizes and the numbers of tasks at once that were measured by trials of save and restore, with
the expected times of the fits. The simulator extrapolates linearly beyond the grid, never below 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from testbed.measure.robust import Interval
from testbed.scheduling.simulation.overheads import LIVE, SAVE_AND_RESTORE
from testbed.study.calibration.experiments.beside import OPERATIONS, Beside
from testbed.study.calibration.experiments.live_migration import LiveMigration
from testbed.study.calibration.experiments.mpi_save_restore import MpiSaveRestore
from testbed.study.calibration.experiments.proportionality import Proportionality
from testbed.study.calibration.experiments.save_restore import SaveRestore
from testbed.study.calibration.experiments.start import Start
from testbed.study.calibration.experiments.transfer import Transfer
from testbed.study.calibration.fits import TimeFit, median_interval
from testbed.study.calibration.model import Grid, OverheadGrids, ProgressCurve, Quantity, condition_words
from testbed.study.calibration.quantities import WHOLE, Column, Quantities, column, number, units_of
from testbed.study.calibration.trials import Outcome, Trials

GB_PER_MIB = 2**20 / 1e9
_STOPPED_FRAC = 0.5  # of a migration's time per MiB: if more of it is downtime, the guest is stopped while it is copied
_MOVING = (SaveRestore.name, Transfer.name, LiveMigration.name, Start.name, Beside.name)


def overheads_from(
    trials: Trials, by_experiment: Mapping[str, Quantities], *, storage: str = "disk", cache: str = "warm"
) -> tuple[OverheadGrids | None, list[str]]:
    """Return the tables, None if saves and restores were not measured, and notes for their reader."""
    found = {name: by_experiment.get(name, Quantities()) for name in _MOVING}
    saves = found[SaveRestore.name]
    save, resume = saves.fit("save", storage=storage), saves.fit("resume", storage=storage, cache=cache)
    if save is None or resume is None:
        return None, [
            f"No [overheads]: no trial of {SaveRestore.name} with storage {storage} and cache {cache} succeeded."
        ]
    notes: list[str] = []
    memory_mib, levels = _grid_of(trials, storage, cache)
    if levels[0] != 1:
        notes.append(f"Single tasks were not measured, but {levels[0]} at once: times of single tasks are by the fits.")
        levels = [1, *levels]

    def grid(*fits: TimeFit) -> Grid:
        return tuple(
            tuple(round(sum(fit.measured_s(mib, level) for fit in fits), 6) for mib in memory_mib) for level in levels
        )

    transfer = found[Transfer.name].fit("transfer")
    if transfer is None:
        notes.append("No transfer of images between nodes was measured: moves by images include none.")
    ways = {SAVE_AND_RESTORE: grid(save, resume) if transfer is None else grid(save, transfer, resume)}
    live = found[LiveMigration.name].fit("live_felt")
    if live is not None:
        ways[LIVE] = grid(live)
    sent_mib_per_s, note = _sent_mib_per_s(found[LiveMigration.name])
    notes += [note] if note else []
    chosen = str(trials.begin.get("migration", SAVE_AND_RESTORE))
    if chosen not in ways:
        notes.append(f"The scenario migrates by {chosen}, which was not measured: migration_s is by save and restore.")
        chosen = SAVE_AND_RESTORE
    notes += [note for name, fit in (("save", save), ("resume", resume)) if (note := _missed(name, fit))]
    start = found[Start.name].fit("start", tasks=1) or found[Start.name].fit("start")
    if start is None:
        notes.append("No start of a job was measured: start_s is left out, and starts are free in a simulation.")
    return (
        OverheadGrids(
            concurrent_tasks=tuple(levels),
            memory_gb=tuple(round(mib * GB_PER_MIB, 9) for mib in memory_mib),
            start_s=grid(start) if start else None,
            save_s=grid(save),
            resume_s=grid(resume),
            migration_s=ways[chosen],
            migration=chosen,
            migration_ways_s=ways,
            transfer_s=None if transfer is None else grid(transfer),
            parallel=_parallel(trials, save, resume, start, by_images=chosen == SAVE_AND_RESTORE),
            beside=_beside(found[Beside.name]),
            live_mib_per_s=sent_mib_per_s,
        ),
        notes,
    )


def _sent_mib_per_s(measured: Quantities) -> tuple[float | None, str]:
    """Return the rate at which a live migration of one guest sends memory, None if it is not known, and a note why."""
    whole, downtime = measured.fit("live_migration"), measured.fit("live_downtime")
    if whole is None:
        return None, ""
    slope = whole.s_per_mib[0]
    if slope is None or not slope.low > 0.0:
        return None, "The time of a live migration does not depend on memory: costs of guests that write are not known."
    stopped = downtime.s_per_mib[0] if downtime is not None else None
    if stopped is not None and stopped.value > _STOPPED_FRAC * slope.value:
        return None, "Guests stand still while they are copied: a live migration sends nothing twice."
    return round(1.0 / slope.value, 6), ""


def _missed(name: str, fit: TimeFit) -> str:
    """Return a note on a fit with a lack of fit; empty if there is none."""
    lack = fit.lack
    if lack is None or not lack.shown:
        return ""
    where = condition_words({"memory_mib": round(lack.memory_mib), "concurrent": round(lack.concurrent)})
    return (
        f"{name}: the {fit.model} model of memory does not fit: the median residual is {lack.worst_frac:+.0%} at "
        f"{where} (p = {lack.p:.2g}), so {name}_s has the observed medians."
    )


def _parallel(
    trials: Trials, save: TimeFit, resume: TimeFit, start: TimeFit | None, *, by_images: bool
) -> dict[str, float] | None:  # fmt: skip
    """Return the additional seconds of jobs of several tasks over as many independent tasks at once.

    A value is 0 unless its whole 95 % interval is above 0. Return None if such jobs were not measured. A guest that
    migrates live is neither saved nor restored, so its migration takes no more in such a job. A start may take more the
    larger the tasks are, as in a line through the smallest and the largest memory that was measured.
    """
    jobs = [outcome for outcome in trials.of(MpiSaveRestore.name) if not outcome.condition.get("moved")]
    begun = [outcome for outcome in trials.of(Start.name) if (number(outcome.condition, "tasks") or 1) > 1]
    saves = _beyond(trials, jobs, ("save_s",), save)
    resumes = _beyond(trials, jobs, ("restore_s", "first_progress_s"), resume)
    starts = None if start is None else _starts_beyond(trials, begun, start)
    if saves is None and starts is None:
        return None
    found = {**(starts or {"start_s": 0.0, "start_s_per_gb": 0.0}), "save_s": saves or 0.0, "resume_s": resumes or 0.0}
    return {**found, "migration_s": found["save_s"] + found["resume_s"] if by_images else 0.0}


def _beyond(trials: Trials, outcomes: Sequence[Outcome], names: Sequence[str], fit: TimeFit) -> float | None:
    """Return the median excess, None without observations; it is 0 if its 95 % interval is not above 0."""
    found = _excess(trials, outcomes, names, fit)
    return None if found is None else round(found.value, 6) if found.low > 0.0 else 0.0


def _starts_beyond(trials: Trials, begun: Sequence[Outcome], start: TimeFit) -> dict[str, float] | None:
    """Return the excess of starts: constant, or a line if that of the largest memory is shown to exceed the least's."""
    constant_s = _beyond(trials, begun, ("ready_s",), start)
    if constant_s is None:
        return None
    of_size: dict[float, list[Outcome]] = {}
    for outcome in begun:
        of_size.setdefault(number(outcome.condition, "memory_mib") or 0.0, []).append(outcome)
    ends = [(mib, _excess(trials, of_size[mib], ("ready_s",), start)) for mib in (min(of_size), max(of_size))]
    (least_mib, least), (most_mib, most) = ends
    if least is None or most is None or most.low <= max(least.high, 0.0):
        return {"start_s": constant_s, "start_s_per_gb": 0.0}
    fixed_s, s_per_gb = _line(least_mib, least.value, most_mib, most.value)
    return {"start_s": fixed_s, "start_s_per_gb": s_per_gb}


def _line(least_mib: float, least_s: float, most_mib: float, most_s: float) -> tuple[float, float]:
    """Return the seconds at no memory, at least 0, and the seconds per 1e9 bytes of the line through two points."""
    least_gb, most_gb = (mib * GB_PER_MIB for mib in (least_mib, most_mib))
    fixed_s = max(least_s - (most_s - least_s) / (most_gb - least_gb) * least_gb, 0.0)
    return round(fixed_s, 6), round((most_s - fixed_s) / most_gb, 6)


def _excess(trials: Trials, outcomes: Sequence[Outcome], names: Sequence[str], fit: TimeFit) -> Interval | None:
    """Return the median excess of observed times over the expected times of a fit, None without observations."""
    nodes = trials.begin.get("nodes", {})
    machines = len({facts.get("address") for facts in nodes.values()})
    found = Column()
    for outcome in outcomes:
        tasks = int(number(outcome.condition, "tasks") or 1)
        at_once = -(-tasks // max(machines, 1))  # nodes of one machine share its cores and its disk
        expected_s = fit.measured_s(number(outcome.condition, "memory_mib") or 0.0, at_once)
        for value, trial in zip(*_columns(outcome, names), strict=True):
            found.add(value - expected_s, trial)
    if not found.values:
        return None
    return median_interval(found.values, units_of(outcomes, found.trials))


def _columns(outcome: Outcome, names: Sequence[str]) -> tuple[list[float], list[int]]:
    own = column([outcome], *names)
    return own.values, own.trials


def _beside(measured: Quantities) -> dict[str, float] | None:
    """Return the fraction by which each running guest makes an operation longer, None if that was not measured.

    A fraction is 0 unless its whole 95 % interval is above 0.
    """
    fractions = {name: measured.named(f"beside_{name}_frac") for name in OPERATIONS}
    if not any(fractions.values()):
        return None
    return {
        f"{name}_frac": round(own[0].value, 6) if own and own[0].low > 0.0 else 0.0 for name, own in fractions.items()
    }


def _grid_of(trials: Trials, storage: str, cache: str) -> tuple[list[float], list[int]]:
    """Return the memory sizes (MiB) and the numbers of tasks at once that were measured, each increasing."""
    wanted = {"storage": storage, "cache": cache}.items()
    used = [outcome for outcome in trials.of(SaveRestore.name) if wanted <= outcome.condition.items()]
    whole = [outcome for outcome in used if outcome.condition.get("touched_frac", WHOLE) == WHOLE]
    sizes = {_filled_mib(outcome) for outcome in whole or used}
    levels = {int(number(outcome.condition, "concurrent") or 1) for outcome in whole or used}
    return sorted(sizes), sorted(levels)


def _filled_mib(outcome: Outcome) -> float:
    return (number(outcome.condition, "memory_mib") or 0.0) * (number(outcome.condition, "touched_frac") or WHOLE)


def progress_from(by_experiment: Mapping[str, Quantities]) -> tuple[ProgressCurve | None, list[str]]:
    """Return the progress of serial and of parallel jobs by yield, and notes for the reader.

    A point is the median over the conditions of one kind of job; of parallel jobs, those that communicate least, as the
    default jobs of a scenario do. At a yield that was measured for the other kind only, the point is interpolated
    linearly.
    """
    measured = by_experiment.get(Proportionality.name, Quantities()).named("relative_progress")
    points = {kind: _points(measured, kind) for kind in ("serial", "parallel")}
    yields = sorted({at for own in points.values() for at in own} | {1.0})
    if len(yields) < 2:
        return None, []
    curves = {kind: _curve(own, yields) for kind, own in points.items()}
    notes = [
        f"Progress of {kind} jobs was not measured: a simulation uses their yield [RR 2.2]."
        for kind, curve in curves.items()
        if curve is None
    ]
    return ProgressCurve(tuple(yields), curves["serial"], curves["parallel"]), notes


def _points(measured: Sequence[Quantity], kind: str) -> dict[float, float]:
    """Return the median progress at each measured yield below 1, without medians of 0."""
    found: dict[float, float] = {}
    kinds = [quantity for quantity in measured if quantity.condition.get("kind") == kind]
    calmest = min(map(_talk, kinds), default=())
    own = [quantity for quantity in kinds if _talk(quantity) == calmest]
    for at in {float(quantity.condition["yield_frac"]) for quantity in own}:
        rates = [quantity.value for quantity in own if quantity.condition["yield_frac"] == at]
        if 0.0 < at < 1.0 and (rate := float(np.median(rates))) > 0.0:
            found[at] = rate
    return found


def _talk(quantity: Quantity) -> tuple[float, ...]:
    """Return a key by which jobs that communicate less come first: bytes of a message, messages per second."""
    size, iteration_s = (number(quantity.condition, name) for name in ("message_bytes", "iteration_s"))
    return size or 0.0, -(iteration_s or 0.0)


def _curve(points: Mapping[float, float], yields: Sequence[float]) -> tuple[float, ...] | None:
    if not points:
        return None
    known = [0.0, *sorted(points), 1.0]
    rates = [0.0, *(points[at] for at in sorted(points)), 1.0]  # rates are relative to the rate at yield 1
    return tuple(round(float(rate), 6) for rate in np.interp(yields, known, rates))
