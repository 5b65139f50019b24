"""The record of a campaign of live runs on disk: one line per run that has ended, and the run directories.

    DIR/campaign.toml     the campaign file of the last call
    DIR/runs/             run directories
    DIR/done.jsonl        key, run directory, exit code, and the reasons to exclude the run from comparisons

A run that was interrupted has no line. It is repeated, and its directory stays.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from testbed.errors import UserError
from testbed.study.live_campaign.plan import Case


class EndedRun(msgspec.Struct, frozen=True):
    """A run that has ended; `run` is its directory under `runs`, empty if it created none."""

    key: str
    run: str
    code: int
    reasons: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether the run counts in comparisons."""
        return not self.reasons


class Record:
    """The record of the campaign in a folder, which is created if it does not exist."""

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
        """Record a run durably."""
        self.ended.append(ended)
        whole = b"".join(msgspec.json.encode(each) + b"\n" for each in self.ended)
        part = self._file.with_suffix(".part")
        with part.open("wb") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._file)

    def done(self, key: str) -> bool:
        """Return whether a planned run has ended and counts in comparisons."""
        return any(each.key == key and each.counts for each in self.ended)

    @property
    def left_out(self) -> int:
        """Number of runs that have ended and are excluded from comparisons."""
        return sum(not each.counts for each in self.ended)

    def runs_of(self, case: Case) -> set[str]:
        """Return the names of the runs of a case that count in comparisons."""
        return {each.run for each in self.ended if each.counts and each.key.startswith(f"{case}, repeat ")}

    def paths(self) -> list[Path]:
        """Return the directories of the runs that count in comparisons."""
        return [self.runs / each.run for each in self.ended if each.counts]
