"""The results of a calibration: quantities with their intervals, verdicts on assumptions, tables for the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal

from testbed.study.calibration.values import Value

VERSION = 1
Verdict = Literal["held", "within", "broken", "undecided", "not measured"]
Grid = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One measured value of the lab in `unit`, under `condition` (what is not named in it was varied or irrelevant).

    `low` and `high` bound its 95 % interval over `n` trials, NaN where one trial, or a maximum, supports none;
    `observations` of those trials were used, all of them, also `outliers` of them (see `Outlier`). `model` is the kind
    of fit: "constant" (a median, or another statistic of its own), "linear" (a line over memory), "shared" (a line
    whose rate is shared by tasks at once), "levels" (a line for each number of tasks at once) or "maximum". `goodness`
    is the median absolute residual of the observations relative to what the model expects, NaN where that has no
    meaning. `lack_of_fit_p` is how likely chance alone makes a condition miss the model as much, NaN if not tested.
    """

    name: str
    value: float
    low: float
    high: float
    unit: str
    n: int
    observations: int
    model: str = "constant"
    goodness: float = float("nan")
    outliers: int = 0
    condition: Mapping[str, Value] = field(default_factory=dict)
    lack_of_fit_p: float = float("nan")

    @property
    def bounded(self) -> bool:
        """Whether it has an interval."""
        return isfinite(self.low) and isfinite(self.high)


@dataclass(frozen=True, slots=True)
class Outlier:
    """An observation further than 3.5 robust standard deviations from what its model expects; it was kept."""

    quantity: str
    trial: int
    value: float
    expected: float
    deviations: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A trial that failed; it gave no observation."""

    trial: int
    experiment: str
    condition: Mapping[str, Value]
    error: str


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption of the papers, and whether this lab agrees.

    `within_frac` is the least bound on the deviation from the assumption that its 95 % intervals support, NaN if it
    was not measured. `found` says it in a sentence with figures.
    """

    verdict: Verdict
    within_frac: float
    statement: str
    found: str
    source: str


@dataclass(frozen=True, slots=True)
class OverheadGrids:
    """Seconds by tasks that move at one instant on one node (rows) and memory of a task in 1e9 bytes (columns).

    `start_s` is None where no start was measured. `migration_ways_s` holds a whole migration by each mechanism that
    was measured; `migration_s` is that of the lab's scenario. `parallel` are the seconds that jobs of several tasks
    take beyond that, by the names of these grids; None if none was measured.
    """

    concurrent_tasks: tuple[int, ...]
    memory_gb: tuple[float, ...]
    start_s: Grid | None
    save_s: Grid
    resume_s: Grid
    migration_s: Grid
    migration_ways_s: Mapping[str, Grid]
    parallel: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class ProgressCurve:
    """Rate of progress relative to the dedicated one at each yield, 1 at yield 1; None for a kind not measured."""

    yield_frac: tuple[float, ...]
    serial: tuple[float, ...] | None
    parallel: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class About:
    """The trials of a calibration: the file with its digest, how many, of which experiments, and the seed of the plan.

    `repeats` is the least number of trials that a condition has; `notes` are remarks for its reader.
    """

    trials_file: str
    trials_digest: str
    trials: int
    repeats: int
    seed: int
    experiments: tuple[str, ...]
    created_utc: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Calibration:
    """All that a file `calibration.toml` holds; `provenance` is the lab as its nodes announced it."""

    about: About
    provenance: Mapping[str, Any]
    quantities: tuple[Quantity, ...]
    assumptions: Mapping[str, Assumption]
    overheads: OverheadGrids | None
    progress: ProgressCurve | None
    outliers: tuple[Outlier, ...] = ()
    failed: tuple[Failed, ...] = ()

    def find(self, name: str, **condition: Value) -> list[Quantity]:
        """Return the quantities of a name whose conditions hold all these values."""
        return [
            quantity
            for quantity in self.quantities
            if quantity.name == name and condition.items() <= dict(quantity.condition).items()
        ]


def condition_words(condition: Mapping[str, Value]) -> str:
    """Return a condition as text such as `512 MiB, cache warm, 4 at once`; empty for none."""
    return ", ".join(
        _WORDS.get(key, f"{key.replace('_', ' ')} {{}}").format(f"{value:g}" if isinstance(value, float) else value)
        for key, value in condition.items()
        if _USUAL.get(key) != value
    )


_USUAL: Mapping[str, Value] = {"touched_frac": 1.0, "moved": 0}  # goes without saying
_WORDS = {
    "memory_mib": "{} MiB",
    "touched_frac": "{} of it touched",
    "concurrent": "{} at once",
    "storage": "store {}",
    "program": "{}",
    "kind": "{}",
    "tasks": "tasks {}",
    "moved": "moved",
    "neighbours": "neighbours {}",
    "message_bytes": "messages of {} B",
    "iteration_s": "iterations of {} s",
    "window_s": "window {} s",
    "cap_frac": "cap {}",
    "from_frac": "from {}",
    "to_frac": "to {}",
    "yield_frac": "yield {}",
}
