"""The state of a sweep on disk: completed, failed and running units, consistent after a kill at any instant.

    DIR/lock                  locked while a campaign works here; contains the id of its process
    DIR/campaign.toml         the campaign file of the last run
    DIR/done/UNIT.json        measures and bounds by key, written once, never changed
    DIR/failed/UNIT.json      simulations and bounds that failed, with the text of the error
    DIR/running/UNIT          empty: the unit was started and has not ended

Files are written atomically. A unit is done when its file under `done` exists; only then its mark under `running` is
removed. Units that are neither done nor failed remain to be executed, whether or not they were running when the process
ended.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self, TypeVar

import msgspec

from testbed.errors import RunError, UserError
from testbed.host.locks import try_lock
from testbed.scheduling.campaign.work import Fault, UnitResult
from testbed.scheduling.workload.files import write_text

S = TypeVar("S", bound=msgspec.Struct)


class Done(msgspec.Struct, frozen=True):
    """The content of a file of done work."""

    label: str
    code: str
    measures: dict[str, dict[str, float | int | None]]
    bounds: dict[str, float]


class Failed(msgspec.Struct, frozen=True):
    """The content of a file of failed work."""

    label: str
    code: str
    faults: list[Fault]


@dataclass(slots=True)
class Results:
    """Results by key of one version of the code; `other_code` counts the ignored results of other versions."""

    measures: dict[str, dict[str, float | int | None]] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    faults: dict[str, tuple[str, Fault]] = field(default_factory=dict)  # with the label of the trace
    other_code: int = 0

    def add(self, done: Done, *, own: bool) -> None:
        """Add the content of a file; results of the `own` version of the code take precedence over those of another."""
        for key, figures in done.measures.items():
            if own or key not in self.measures:
                self.measures[key] = figures
                self.code[key] = done.code
        for key, value in done.bounds.items():
            if own or key not in self.bounds:
                self.bounds[key] = value

    def settled(self) -> set[str]:
        """Return the keys that need no more work: done, or failed."""
        return {*self.measures, *self.bounds, *self.faults}


class Sweep:
    """The folder of a campaign, locked inside the `with` block. Raises UserError when another process has the lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        """Lock the folder, and remove incomplete files of a killed process."""
        try:
            for name in ("done", "failed", "running"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be used for a campaign: {error.strerror}") from error
        if not try_lock(self._lock.fileno()):
            self._lock.seek(0)
            holder = self._lock.read().strip() or "unknown"
            self._lock.close()
            raise UserError(f"{self.folder}: a campaign works here (process {holder}): wait, or end it")
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()
        for draft in self.folder.glob("*/.*.part"):
            draft.unlink()
        return self

    def __exit__(self, *_failure: object) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.close()  # releases the lock

    def interrupted(self) -> list[str]:
        """Return the units that were under way when the last process ended, and remove their marks."""
        marks = sorted((self.folder / "running").iterdir())
        ended = {path.stem for state in ("done", "failed") for path in (self.folder / state).glob("*.json")}
        names = [mark.name for mark in marks if mark.name not in ended]
        for mark in marks:
            mark.unlink()
        return names

    def begin(self, unit: str) -> None:
        """Mark a unit as under way."""
        (self.folder / "running" / unit).touch()

    def end(self, result: UnitResult) -> None:
        """Store the result of a unit; it is on the disk when this method returns."""
        if result.measures or result.bounds:
            done = Done(result.label, result.code, result.measures, result.bounds)
            self._write("done", result.unit, done)
        failed = self.folder / "failed" / f"{result.unit}.json"
        if result.faults:
            self._write("failed", result.unit, Failed(result.label, result.code, result.faults))
        elif failed.exists():
            failed.unlink()
        (self.folder / "running" / result.unit).unlink(missing_ok=True)

    def forget_failures(self, keys: Iterable[str]) -> None:
        """Remove the failures of these keys, so that their work is done again."""
        wanted = set(keys)
        for path in sorted((self.folder / "failed").glob("*.json")):
            found = _read(path, Failed)
            if any(fault.key in wanted for fault in found.faults):
                path.unlink()

    def results(self, code: str, *, any_code: bool = False) -> Results:
        """Return the results and failures of version `code`, or of any version."""
        found = Results()
        for path in sorted((self.folder / "done").glob("*.json")):
            done = _read(path, Done)
            if done.code == code or any_code:
                found.add(done, own=done.code == code)
            else:
                found.other_code += len(done.measures)
        known = found.settled()
        for path in sorted((self.folder / "failed").glob("*.json")):
            failed = _read(path, Failed)
            if failed.code == code or any_code:
                left = [fault for fault in failed.faults if fault.key not in known]
                found.faults.update({fault.key: (failed.label, fault) for fault in left})
        return found

    def _write(self, state: str, unit: str, content: msgspec.Struct) -> None:
        try:
            write_text(self.folder / state / f"{unit}.json", msgspec.json.encode(content).decode() + "\n")
        except UserError as error:
            raise RunError(str(error)) from error


def _read(path: Path, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"{path}: not a result of a campaign: {error}; remove the file to repeat its work") from error
