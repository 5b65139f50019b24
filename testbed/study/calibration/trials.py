"""The journal of a calibration: one JSON object a line, appended as each trial ends, so that it can be resumed.

The first line is the `begin` with everything that was known of the lab; each `trial` or `failed` follows. What a
crash left of a last line is cut off when the journal is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from testbed.errors import RunError, UserError
from testbed.study.calibration.values import Value

FILE = "trials.jsonl"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One trial that was done.

    `trial` is its number in the journal. `error` says why it failed; there are then no observations. `t_s` counts from
    the begin of its session; `foreign_cpu_frac` is the part of the machine's CPU time that was used by others than
    guests, agents and controller meanwhile, None if it is not known.
    """

    trial: int
    experiment: str
    block: int
    condition: dict[str, Value]
    observations: tuple[dict[str, Value], ...] = ()
    elapsed_s: float = 0.0
    t_s: float = 0.0
    foreign_cpu_frac: float | None = None
    error: str | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """The identity of this trial among all planned ones."""
        return (self.experiment, self.block, *sorted(self.condition.items()))


@dataclass(frozen=True, slots=True)
class Trials:
    """The content of a journal: the data at the begin, and the outcomes in their order."""

    begin: dict[str, Any]
    outcomes: list[Outcome]

    def of(self, experiment: str) -> list[Outcome]:
        """Return the trials of one experiment that did not fail."""
        return [outcome for outcome in self.outcomes if outcome.experiment == experiment and outcome.error is None]

    def failed(self) -> list[Outcome]:
        """Return the trials that failed and were not done again since."""
        done = {outcome.key for outcome in self.outcomes if outcome.error is None}
        last = {outcome.key: outcome for outcome in self.outcomes if outcome.key not in done}
        return list(last.values())


def read_trials(path: Path) -> Trials:
    """Read a journal (or the folder it is in); raises `UserError` that names file, line and error."""
    path = path / FILE if path.is_dir() else path
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}; expected the trials of a calibration") from error
    begin: dict[str, Any] | None = None
    outcomes = []
    for number, line in enumerate(lines[:-1], start=1):  # a line without a line break was not written whole
        try:
            entry = json.loads(line)
            if entry["kind"] == "begin":
                begin = entry
            else:
                outcomes.append(msgspec.convert(entry, Outcome))
        except (ValueError, LookupError, TypeError, msgspec.ValidationError) as error:
            raise UserError(f"{path}: line {number}: expected a record of a trial: {error}") from error
    if begin is None:
        raise UserError(f"{path}: no line of kind begin: expected the trials of a calibration")
    return Trials(begin, outcomes)


class TrialJournal:
    """Appends to a journal; every line is durable when the call returns. `next_trial` is the number of the next one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.next_trial = max(1, _whole_lines(path))
        try:
            self._file = path.open("ab")
        except OSError as error:
            raise UserError(f"{path}: cannot write: {error.strerror}") from error

    def begin(self, entry: Mapping[str, Any]) -> None:
        """Write the first line."""
        self._append({"kind": "begin", **entry})

    def add(self, outcome: Outcome) -> None:
        """Write one trial."""
        kind = "trial" if outcome.error is None else "failed"
        self.next_trial = outcome.trial + 1
        self._append({"kind": kind, **msgspec.to_builtins(outcome)})

    def _append(self, entry: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RunError(f"{self.path}: cannot write: {error.strerror}; the trials so far are in it") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self._file.close()


def _whole_lines(path: Path) -> int:
    """Cut a torn last line off, and return how many lines there are."""
    if not path.exists():
        return 0
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
    return content.count(b"\n")
