"""A folder with one job table per week of a trace: week-000.csv, week-001.csv, ..."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import UserError
from testbed.scheduling.workload.files import write_text
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.segments import Week, cut, weeks
from testbed.scheduling.workload.table import format_table


def week_name(week: Week) -> str:
    """Return the file name of a week."""
    return f"week-{week.index:03}.csv"


def write_weeks(folder: Path, jobs: Sequence[Job]) -> list[Path]:
    """Write every week in which jobs were submitted to `folder`, and return the files in order of time.

    A new folder is created atomically with all its weeks. In an existing folder each file is written atomically, and a
    file with the same content is not touched: writing the same trace again changes nothing. `jobs` are sorted by
    submission. Raises UserError when the folder has a week that the trace has not (it belongs to another trace,
    and a campaign over the folder would mix the two), or cannot be written.
    """
    tables = {week_name(week): format_table(cut(jobs, week)) for week in weeks(jobs)}
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: expected a folder, or a new name")
    if not folder.exists():
        _create(folder, tables)
    else:
        foreign = sorted(path.name for path in folder.glob("week-*.csv") if path.name not in tables)
        if foreign:
            raise UserError(f"{folder}: holds {foreign[0]}, which is no week of this trace; expected another folder")
        for name, text in tables.items():
            if not _holds(folder / name, text):
                write_text(folder / name, text)
    return [folder / name for name in tables]


def _create(folder: Path, tables: dict[str, str]) -> None:
    draft = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        for name, text in tables.items():
            write_text(draft / name, text)
        draft.rename(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except OSError:
        return False  # missing or unreadable: writing reports the reason, if it fails as well
