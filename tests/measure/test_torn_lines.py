"""Journal and points of a run whose controller was killed, or whose machine lost its power."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from testbed.errors import UserError
from testbed.measure.rundir import RunDirectory, read_journal
from testbed.measure.spool import read_lines
from testbed.measure.torn_lines import cut_torn_lines
from testbed.run import events
from testbed.run.journal import BadEntryError, encode, is_sealed, read_events, seal

ENTRIES = [events.Aborted(t_s=float(number), trace_s=0.0, reason="x" * (7 * number)) for number in range(20)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = RunDirectory(tmp_path / "run", {"run": "r", "lab": "l", "policy": "p"})
    directory.open()
    for entry in ENTRIES:
        directory.journal(entry)
        directory.point("run", {"stage": "replay"}, {"elapsed_s": entry.t_s}, int(entry.t_s * 1e9))
    directory.close()
    return directory.path


@pytest.mark.parametrize("zeros", [0, 5, 5000])
def test_a_journal_cut_at_any_byte_keeps_every_whole_entry(run: Path, zeros: int) -> None:
    path = run / "events.jsonl"
    whole = path.read_bytes()
    ends = [place + 1 for place, octet in enumerate(whole) if octet == ord("\n")]
    draw = random.Random(1)  # noqa: S311  # the same cuts each time
    for cut in draw.sample(range(len(whole)), 200) + ends:
        path.write_bytes(whole[:cut] + bytes(zeros))
        kept = sum(end <= cut for end in ends)
        assert [event.t_s for event in read_events(path)] == [float(number) for number in range(kept)], cut
        torn = cut_torn_lines(run)
        assert path.read_bytes() == whole[: ends[kept - 1] if kept else 0]
        assert sum(each.bytes for each in torn) == zeros + cut - (ends[kept - 1] if kept else 0)
        assert len(read_journal(path)) == kept


def test_a_flipped_bit_before_whole_entries_is_an_error_and_at_the_end_is_torn(run: Path) -> None:
    path = run / "events.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    draw = random.Random(2)  # noqa: S311  # the same bits each time
    for place in draw.sample(range(len(whole)), 100):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        if place >= len(whole) - len(lines[-1]):
            assert len(list(read_events(path))) == len(ENTRIES) - 1
        else:
            with pytest.raises(UserError, match=r"events\.jsonl:\d+: (damaged|not)"):
                list(read_events(path))


def test_points_are_cut_after_the_last_whole_line(run: Path) -> None:
    path = run / "points.lp"
    whole = path.read_bytes()
    path.write_bytes(whole + b"run,stage=replay elapsed_s=1.0 12" + bytes(100))
    assert len(cut_torn_lines(run)) == 1
    assert path.read_bytes() == whole
    assert cut_torn_lines(run) == []
    assert len(list(read_lines(run))) == len(ENTRIES)


def test_a_file_without_any_whole_line_is_not_emptied_silently(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.measure.torn_lines._MOST_TORN_BYTES", 1000)
    path = run / "events.jsonl"
    path.write_bytes(path.read_bytes() + bytes(200_000))
    with pytest.raises(UserError, match="no whole line in its last 1000 B"):
        cut_torn_lines(run)


def test_a_checksum_is_that_of_the_line_without_it() -> None:
    line = encode(ENTRIES[3])
    assert is_sealed(seal(line))
    assert not is_sealed(line)
    with pytest.raises(BadEntryError, match="damaged: its checksum is"):
        is_sealed(seal(line).replace(b"xx", b"xy", 1))
