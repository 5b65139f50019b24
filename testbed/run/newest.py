"""Finds the run directory that began last."""

from __future__ import annotations

import os
from pathlib import Path

from testbed.run.parts import has_journal


def begin_key(run: Path) -> tuple[str, float, str]:
    """Return a sort key of a run directory: the time in its name, or else the last write to its journal.

    Names without a time come before all names with a time.
    """
    stamp = run.name[:19]
    digits = stamp.replace("-", "").replace("T", "")
    named = len(digits) == 14 and digits.isdigit()
    try:
        written_s = 0.0 if named else (run / "events.jsonl").stat().st_mtime
    except OSError:
        written_s = 0.0
    number = run.name.rsplit("-", 1)[-1]
    return stamp if named else "", written_s, number.zfill(6) if number.isdigit() else ""


def newest_run(runs: Path) -> Path | None:
    """Return the run directory under `runs` that began last, None if there is none."""
    try:
        with os.scandir(runs) as entries:
            found = [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return None
    return max(filter(has_journal, found), key=begin_key, default=None)
