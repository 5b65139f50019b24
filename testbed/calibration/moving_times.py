"""Times of starts, saves, restores, transfers and live migrations, fitted over memory and tasks at once."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.calibration.fits import ratio_interval
from testbed.calibration.found import WHOLE, Found, by_condition, column
from testbed.calibration.trials import Outcome, Trials

SAVE_RESTORE, MPI, TRANSFER, LIVE, START = (
    "save-restore", "mpi-save-restore", "transfer", "live-migration", "start",
)  # fmt: skip
_SAME_BUT_TOUCHED = ("memory_mib", "storage", "cache", "concurrent", "program")


def add_moving_times(found: Found, trials: Trials) -> None:
    """Add what the five experiments support."""
    _save_restore(found, trials.of(SAVE_RESTORE))
    for condition, outcomes in by_condition(trials.of(MPI), "tasks", "topology", "moved"):
        for name in ("save", "restore", "penalty", "felt"):
            found.times(f"mpi_{name}", outcomes, [f"{name}_s"], condition)
        for name in ("hold_skew_s", "release_skew_s"):
            found.median(f"mpi_{name}", "s", column(outcomes, name), condition)
    found.times("transfer", trials.of(TRANSFER), ["transfer_s"], {})
    found.times("live_migration", trials.of(LIVE), ["migrate_s"], {})
    found.times("live_downtime", trials.of(LIVE), ["downtime_reported_s"], {})
    found.times("live_felt", trials.of(LIVE), ["felt_s"], {})
    for condition, outcomes in by_condition(trials.of(START), "tasks"):
        found.times("start", outcomes, ["ready_s"], condition)


def _save_restore(found: Found, outcomes: Sequence[Outcome]) -> None:
    for condition, some in by_condition(outcomes, "storage"):
        found.times("save", some, ["save_s"], condition)  # of a running guest: what is cached does not matter yet
    for condition, some in by_condition(outcomes, "storage", "cache"):
        found.times("restore", some, ["restore_s"], condition)
        found.times("first_progress", some, ["first_progress_s"], condition)
        found.times("resume", some, ["restore_s", "first_progress_s"], condition)
        found.times("penalty", some, ["penalty_s"], condition)
        found.times("felt", some, ["felt_s"], condition)
        found.median("image_cached_frac", "1", column(some, "cached_frac"), condition, listed=False)
    for condition, some in by_condition(outcomes, *_SAME_BUT_TOUCHED, "touched_frac"):
        found.median("penalty_at_s", "s", column(some, "penalty_s"), condition, listed=False)
    for condition, some in by_condition(outcomes, *_SAME_BUT_TOUCHED):
        _touched(found, condition, some)


def _touched(found: Found, condition: dict[str, float | int | str], outcomes: Sequence[Outcome]) -> None:
    """Add how much less guests cost that have touched but a part of their memory."""
    groups = by_condition(outcomes, "touched_frac")
    whole = next((column(some, "penalty_s") for kind, some in groups if kind.get("touched_frac") == WHOLE), None)
    for kind, some in groups:
        part = column(some, "penalty_s")
        if whole is None or kind.get("touched_frac", WHOLE) == WHOLE or min(*whole.values, *part.values) <= 0.0:
            continue
        ratio = ratio_interval(part.values, part.trials, whole.values, whole.trials)
        found.add("penalty_touched_ratio", "1", ratio, part, {**condition, **kind})
