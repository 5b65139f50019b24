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
    """One measured value in `unit`, under `condition`; factors that it does not name varied or do not matter.

    `low` and `high` bound its 95 % interval over `n` trials, NaN where a single trial, or a maximum, supports none.
    `observations` is the number of observations in those trials. All of them were used, also the `outliers` among them
    (see `Outlier`). `model` is the kind of fit: "constant" (a median, or another statistic of its own), "linear" (a
    line over memory), "shared" (a line whose rate is shared by tasks at once), "levels" (a line for each number of
    tasks at once) or "maximum". `goodness` is the median absolute residual relative to the model's expected value, NaN
    where that has no meaning. `lack_of_fit_p` is the p-value of the lack-of-fit test, NaN if not tested.
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
        """Whether the quantity has an interval."""
        return isfinite(self.low) and isfinite(self.high)


@dataclass(frozen=True, slots=True)
class Outlier:
    """An observation further than 3.5 robust standard deviations from the model's expected value; it was kept."""

    quantity: str
    trial: int
    value: float
    expected: float
    deviations: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed trial, which has no observations."""

    trial: int
    experiment: str
    condition: Mapping[str, Value]
    error: str


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption of the papers, and the verdict of this lab on it.

    `within_frac` is the least bound on the deviation from the assumption that the 95 % intervals support, NaN if the
    deviation was not measured. `found` is a sentence with the largest and the smallest deviation.
    """

    verdict: Verdict
    within_frac: float
    statement: str
    found: str
    source: str


@dataclass(frozen=True, slots=True)
class OverheadGrids:
    """Overheads in seconds by tasks that move at once on one node (rows) and memory per task in 1e9 bytes (columns).

    `start_s` and `transfer_s` are None if no start, or no transfer of an image, was measured. `migration_ways_s` has a
    complete migration by each mechanism that was measured; `migration_s` is that by `migration`, the mechanism of the
    lab's scenario if it was measured. `parallel` has the additional seconds for jobs of several tasks, by the names of
    these grids, and `start_s_per_gb` for each 1e9 bytes of a task's memory; None if not measured. `beside` has
    `start_frac`, `save_frac` and `resume_frac`: the fraction by which each guest that already runs on the node makes
    that operation longer; None if not measured. `live_mib_per_s` is the rate at which a live migration sends memory,
    None if it is not known or if guests are stopped meanwhile.
    """

    concurrent_tasks: tuple[int, ...]
    memory_gb: tuple[float, ...]
    start_s: Grid | None
    save_s: Grid
    resume_s: Grid
    migration_s: Grid
    migration: str
    migration_ways_s: Mapping[str, Grid]
    transfer_s: Grid | None = None
    parallel: Mapping[str, float] | None = None
    beside: Mapping[str, float] | None = None
    live_mib_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProgressCurve:
    """Rate of progress at each yield, relative to the dedicated rate; None for a kind of job that was not measured."""

    yield_frac: tuple[float, ...]
    serial: tuple[float, ...] | None
    parallel: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class About:
    """The trials of a calibration: their file and its digest, their number, the experiments, and the seed of the plan.

    `repeats` is the least number of trials of a condition; `notes` are remarks for the reader.
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
    """The content of a file `calibration.toml`; `provenance` has the facts of the lab that its nodes announced."""

    about: About
    provenance: Mapping[str, Any]
    quantities: tuple[Quantity, ...]
    assumptions: Mapping[str, Assumption]
    overheads: OverheadGrids | None
    progress: ProgressCurve | None
    outliers: tuple[Outlier, ...] = ()
    failed: tuple[Failed, ...] = ()

    def find(self, name: str, **condition: Value) -> list[Quantity]:
        """Return the quantities of a name whose conditions have all these values."""
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


_USUAL: Mapping[str, Value] = {"touched_frac": 1.0, "moved": 0}  # default values, which are left out of texts
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
