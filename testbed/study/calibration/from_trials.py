"""Evaluation of a lab's trials: from the journal of trials to a calibration."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from testbed.errors import RunError, UserError
from testbed.study.calibration.model import About, Calibration, Failed
from testbed.study.calibration.overheads_from import overheads_from, progress_from
from testbed.study.calibration.registry import find_experiments
from testbed.study.calibration.results import results_of
from testbed.study.calibration.trials import FILE, Trials

_NOT_PROVENANCE = ("kind", "created_unix_s", "seed", "experiments")


def calibrate_from(
    trials: Trials, trials_file: Path | None = None, *, storage: str = "disk", cache: str = "warm"
) -> Calibration:
    """Return the calibration of trials by the installed experiments; equal trials give an equal calibration.

    `trials_file` is the file of the trials or its folder, for the digest. The tables of overheads are for images in
    `storage`, read with a `cache` that is "warm" or "cold". Raises RunError if no trial succeeded.
    """
    done = [outcome for outcome in trials.outcomes if outcome.error is None]
    if not done:
        raise RunError(f"{trials_file or 'trials'}: {len(trials.outcomes)} trials, none that succeeded: expected some")
    results = results_of(trials, find_experiments())
    overheads, notes = overheads_from(trials, results.quantities, storage=storage, cache=cache)
    progress, more_notes = progress_from(results.quantities)
    conditions = Counter((outcome.experiment, *sorted(outcome.condition.items())) for outcome in done)
    about = About(
        trials_file="" if trials_file is None else _file(trials_file).name,
        trials_digest="" if trials_file is None else _digest(_file(trials_file)),
        trials=len(done),
        repeats=min(conditions.values()),
        seed=int(trials.begin.get("seed", 0)),
        experiments=tuple(sorted({outcome.experiment for outcome in done})),
        created_utc=_utc(trials.begin.get("created_unix_s")),
        notes=(*notes, *more_notes, *results.notes),
    )
    failed = tuple(
        Failed(outcome.trial, outcome.experiment, outcome.condition, outcome.error)
        for outcome in trials.outcomes
        if outcome.error is not None
    )
    return Calibration(
        about=about,
        provenance=_provenance(trials),
        quantities=tuple(quantity for found in results.quantities.values() for quantity in found),
        assumptions=results.assumptions,
        overheads=overheads,
        progress=progress,
        outliers=tuple(outlier for found in results.quantities.values() for outlier in found.outliers),
        failed=failed,
    )


def _file(path: Path) -> Path:
    return path / FILE if path.is_dir() else path


def _digest(path: Path) -> str:
    try:
        return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}; expected the trials of a calibration") from error


def _utc(unix_s: object) -> str:
    if not isinstance(unix_s, int | float):
        return ""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _provenance(trials: Trials) -> dict[str, Any]:
    """Return the facts of the lab at the begin, and the foreign load on its machine during the trials."""
    known = {key: value for key, value in trials.begin.items() if key not in _NOT_PROVENANCE}
    foreign = [outcome.foreign_cpu_frac for outcome in trials.outcomes if outcome.foreign_cpu_frac is not None]
    if foreign:
        known |= {"foreign_cpu_frac": round(median(foreign), 6), "foreign_cpu_worst_frac": max(foreign)}
    return _without_nothing(known)


def _without_nothing(table: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out None values: TOML has no null."""
    return {
        key: _without_nothing(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }
