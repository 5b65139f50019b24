"""The journal of a calibration's trials, from which a calibration can be resumed: one JSON object per line.

The first line is the `begin` with the facts of the lab. A line `trial` or `failed` is appended when a trial ends. A
partial last line, which a crash leaves, is cut off when the journal is opened again.
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

    `trial` is its number in the journal. `error` is the reason of a failed trial, which has no observations. `t_s` are
    the seconds since the begin of the session. `foreign_cpu_frac` is the fraction of the machine's CPU time that load
    other than guests, agents and controller used during the trial, None if unknown.
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
        """The identity of this trial among the planned trials."""
        return (self.experiment, self.block, *sorted(self.condition.items()))


@dataclass(frozen=True, slots=True)
class Trials:
    """The content of a journal: the data of its first line, and the outcomes in their order."""

    begin: dict[str, Any]
    outcomes: list[Outcome]

    def of(self, experiment: str) -> list[Outcome]:
        """Return the trials of one experiment that did not fail."""
        return [outcome for outcome in self.outcomes if outcome.experiment == experiment and outcome.error is None]

    def failed(self) -> list[Outcome]:
        """Return the failed trials that were not repeated with success."""
        done = {outcome.key for outcome in self.outcomes if outcome.error is None}
        last = {outcome.key: outcome for outcome in self.outcomes if outcome.key not in done}
        return list(last.values())


def read_trials(path: Path) -> Trials:
    """Read a journal (`path` is the file or its folder); raises `UserError` with the file, the line and the error."""
    path = path / FILE if path.is_dir() else path
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}; expected the trials of a calibration") from error
    begin: dict[str, Any] | None = None
    outcomes = []
    for number, line in enumerate(lines[:-1], start=1):  # a line without a line break is partial
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
    """Writer of a journal; a line is durable when the call returns. `next_trial` is the number of the next trial."""

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
    """Cut off a partial last line; return the number of lines."""
    if not path.exists():
        return 0
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
    return content.count(b"\n")
