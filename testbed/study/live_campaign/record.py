"""What a campaign of live runs has done, on disk: a line for each run that has ended, and the run directories.

    DIR/campaign.toml     the file of the last time
    DIR/runs/             run directories
    DIR/done.jsonl        key, run directory, reasons for which the run is left out of comparisons

A run that was interrupted has no line; it is done again, and its directory stays.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from testbed.errors import UserError


class EndedRun(msgspec.Struct, frozen=True):
    """A run that has ended; `run` is its directory under `runs`, empty if it made none."""

    key: str
    run: str
    code: int
    reasons: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it can be compared."""
        return not self.reasons


class Record:
    """The record of the campaign in a folder, which is made if it is not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self._file = folder / "done.jsonl"
        self.ended: list[EndedRun] = []
        try:
            self.runs.mkdir(parents=True, exist_ok=True)
            lines = self._file.read_bytes().splitlines(keepends=True) if self._file.exists() else []
        except OSError as error:
            raise UserError(f"{folder}: {error.strerror}: expected a folder for the campaign") from error
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):  # else the process was killed while it wrote the last one
                self.ended.append(self._decoded(line, number))

    def _decoded(self, line: bytes, number: int) -> EndedRun:
        try:
            return msgspec.json.decode(line, type=EndedRun)
        except msgspec.MsgspecError as error:
            raise UserError(f"{self._file}: line {number}: expected a run that has ended: {error}") from error

    def add(self, ended: EndedRun) -> None:
        """Note a run, durably."""
        self.ended.append(ended)
        whole = b"".join(msgspec.json.encode(each) + b"\n" for each in self.ended)
        part = self._file.with_suffix(".part")
        with part.open("wb") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._file)

    def done(self, key: str) -> bool:
        """Whether a run of the plan can be compared."""
        return any(each.key == key and each.counts for each in self.ended)

    @property
    def left_out(self) -> int:
        """Number of runs that ended and cannot be compared."""
        return sum(not each.counts for each in self.ended)

    def paths(self) -> list[Path]:
        """Return the directories of the runs that can be compared."""
        return [self.runs / each.run for each in self.ended if each.counts]
