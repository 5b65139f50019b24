"""A file is written completely, or stays as it was."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from testbed.host.whole_files import draft_of, write_whole


@pytest.fixture
def umask() -> None:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("mode", "found"), [(0o666, 0o644), (0o600, 0o600)])
def test_a_file_is_written_with_its_mode(tmp_path: Path, mode: int, found: int) -> None:
    path = tmp_path / "file"
    for content in ("old", b"new", "n\u00e4chste\r\n"):
        write_whole(path, content, mode=mode)
        assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
        assert path.stat().st_mode & 0o777 == found
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def interrupted() -> None:
        with draft_of(path) as draft:
            draft.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_makes_no_file_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), draft_of(path):
        pass
    assert path.read_text() == "old"


def test_threads_that_write_the_same_file_do_not_take_each_others_drafts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with draft_of(path) as draft:
        draft.write_text("of this thread")
        other = threading.Thread(target=write_whole, args=(path, "of the other thread"))
        other.start()
        other.join()
        assert path.read_text() == "of the other thread"
    assert path.read_text() == "of this thread"
    assert list(tmp_path.iterdir()) == [path]


def test_the_draft_of_a_killed_process_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "file"
    left = tmp_path / f".file.{os.getpid()}.part"
    left.write_text("left, and for all to read")
    left.chmod(0o644)
    write_whole(path, "new", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    (tmp_path / f".file.{os.getpid()}.part").mkdir()
    with pytest.raises(OSError, match="file"):
        write_whole(path, "new")
    assert path.read_text() == "old"
