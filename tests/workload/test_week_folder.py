from dataclasses import replace

import pytest

from testbed.errors import UserError
from testbed.scheduling.workload import week_folder
from testbed.scheduling.workload.jobs import Job
from testbed.scheduling.workload.segments import WEEK_S, Week, cut
from testbed.scheduling.workload.table import read_table
from testbed.scheduling.workload.week_folder import write_weeks

JOBS = [
    Job(4, 3.0, 2, 1.0, 0.5, 60.0),
    Job(1, WEEK_S - 0.5, 1, 0.25, 0.1, 5.0),
    Job(9, WEEK_S + 0.0, 1, 0.25, 0.1, 5.0, "x"),
    Job(2, 12 * WEEK_S + 7.0, 3, 1.0, 1.0, 9.0, None, 12.0),
]


def _state(folder):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_each_week_with_jobs_is_a_table_of_its_own(tmp_path):
    folder = tmp_path / "new" / "weeks"
    assert write_weeks(folder, JOBS) == [folder / f"week-{index:03}.csv" for index in (0, 1, 12)]
    assert {path.name: read_table(path) for path in folder.iterdir()} == {
        f"week-{index:03}.csv": cut(JOBS, Week(index)) for index in (0, 1, 12)
    }
    assert [path.name for path in folder.parent.iterdir()] == ["weeks"]


def test_writing_again_changes_nothing_and_mends_what_is_missing_or_broken(tmp_path):
    folder = tmp_path / "weeks"
    write_weeks(folder, JOBS)
    (folder / "notes.txt").write_text("mine")
    whole = _state(folder)
    write_weeks(folder, JOBS)
    assert _state(folder) == whole
    (folder / "week-001.csv").unlink()
    (folder / "week-012.csv").write_text("job_id\n")
    write_weeks(folder, JOBS)
    mended = _state(folder)
    assert {name: content for name, (_, _, content) in mended.items()} == {
        name: content for name, (_, _, content) in whole.items()
    }
    assert mended["week-000.csv"] == whole["week-000.csv"]
    assert mended["notes.txt"] == whole["notes.txt"]


def test_a_new_folder_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    write_text = week_folder.write_text

    def full_disk(path, text):
        if path.name == "week-012.csv":
            raise UserError(f"{path}: cannot be written: No space left on device")
        write_text(path, text)

    monkeypatch.setattr(week_folder, "write_text", full_disk)
    with pytest.raises(UserError, match="No space left"):
        write_weeks(tmp_path / "weeks", JOBS)
    assert list(tmp_path.iterdir()) == []


def test_weeks_of_two_traces_are_not_mixed(tmp_path):
    folder = tmp_path / "weeks"
    write_weeks(folder, JOBS)
    before = _state(folder)
    with pytest.raises(UserError, match=r"holds week-012\.csv, which is no week of this trace"):
        write_weeks(folder, [replace(job, tasks=7) for job in JOBS[:3]])
    assert _state(folder) == before


def test_a_folder_that_cannot_be_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file: expected a folder, or a new name"):
        write_weeks(tmp_path / "file", JOBS)
    with pytest.raises(UserError, match="weeks: cannot be written: File exists"):
        write_weeks(tmp_path / "file" / "weeks", JOBS)
