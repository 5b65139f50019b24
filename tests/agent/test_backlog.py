"""Samples that wait for the bus: no sample is lost or changed, their order is kept, and their disk space is bounded."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from node_agent.backlog import Backlog


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("telemetry-*.backlog"))


async def drain(backlog: Backlog) -> list[bytes]:
    lines = []
    while some := await backlog.first(3):
        lines += some
        backlog.take(some)
    return lines


class Queue(RuleBasedStateMachine):
    """Comparison with a plain queue: lines leave the backlog in their order, also across an agent that was killed."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self._folder = tempfile.TemporaryDirectory(prefix="backlog-")
        self.folder = Path(self._folder.name)
        self.backlog = Backlog(self.folder, limit_bytes=1 << 20)
        self.backlog.open()
        self.waiting: deque[bytes] = deque()
        self.taken: list[bytes] = []
        self.count = 0

    @rule(text=st.binary(max_size=20).map(lambda data: data.replace(b"\n", b" ")))
    def append(self, text: bytes) -> None:
        self.count += 1
        line = b"%d:%b" % (self.count, text)
        self.backlog.append(line)
        self.waiting.append(line)

    @rule(number=st.integers(1, 5))
    def take(self, number: int) -> None:
        lines = asyncio.run(self.backlog.first(number))
        assert bool(lines) == bool(self.waiting)
        assert lines == list(self.waiting)[: len(lines)]
        assert lines == asyncio.run(self.backlog.first(number))
        if lines:
            self.backlog.take(lines)
            self.taken += [self.waiting.popleft() for _ in lines]

    @rule(cut=st.binary(max_size=10).map(lambda data: data.replace(b"\n", b"")))
    def die(self, cut: bytes) -> None:
        """The agent is killed, perhaps in the middle of a line; the next agent may repeat lines that were sent."""
        self.backlog.close()
        written = files(self.folder)
        if written:
            with written[-1].open("ab") as file:
                file.write(cut)
        self.backlog = Backlog(self.folder, limit_bytes=1 << 20)
        self.backlog.open()
        again: deque[bytes] = deque()
        for path in written:
            again.extend(path.read_bytes().split(b"\n")[:-1])
        repeated = len(again) - len(self.waiting)
        assert repeated >= 0
        assert list(again)[repeated:] == list(self.waiting)
        assert list(again)[:repeated] == self.taken[len(self.taken) - repeated :]
        del self.taken[len(self.taken) - repeated :]
        self.waiting = again

    @invariant()
    def it_is_empty_when_all_was_taken_and_leaves_no_file(self) -> None:
        if not self.waiting and not self.backlog:
            assert files(self.folder) == []
        assert bool(self.backlog) or not self.waiting
        assert self.backlog.dropped == 0

    def teardown(self) -> None:
        self.backlog.close()
        self._folder.cleanup()


Queue.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestQueue = Queue.TestCase


def test_the_oldest_are_given_up_counted_and_told_when_there_is_no_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backlog = Backlog(tmp_path, limit_bytes=16 * 1024)
    backlog.open()
    lines = [b"%05d" % number + b"x" * 94 for number in range(1000)]  # 100 bytes each with its end
    with caplog.at_level(logging.ERROR):
        for line in lines:
            backlog.append(line)
            assert sum(path.stat().st_size for path in files(tmp_path)) <= 16 * 1024 + 100
    kept = asyncio.run(drain(backlog))
    assert len(kept) > 140
    assert kept == lines[-len(kept) :]
    assert backlog.dropped == 1000 - len(kept)
    assert f"{backlog.dropped} by now" in caplog.messages[-1]
    assert files(tmp_path) == []
    backlog.close()


def test_a_line_that_is_given_up_while_it_is_sent_takes_no_other_with_it(tmp_path: Path) -> None:
    backlog = Backlog(tmp_path, limit_bytes=1600)
    backlog.open()
    backlog.append(b"0" * 99)
    first = asyncio.run(backlog.first(5))
    assert first == [b"0" * 99]
    for number in range(1, 30):
        backlog.append(b"%02d" % number * 49)
    assert backlog.dropped > 0
    oldest = asyncio.run(backlog.first(1))
    backlog.take(first)  # its acknowledgement arrives now
    assert asyncio.run(backlog.first(1)) == oldest
    assert len(asyncio.run(drain(backlog))) == 30 - backlog.dropped
    backlog.close()


def test_a_folder_that_cannot_be_written_loses_samples_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backlog = Backlog(tmp_path / "gone")
    backlog.open()
    backlog.append(b"one")
    backlog.append(b"two")
    assert (backlog.dropped, bool(backlog)) == (2, False)
    assert len(caplog.messages) == 1
    assert "No such file or directory" in caplog.text
    (tmp_path / "gone").mkdir()
    backlog.append(b"three")
    assert asyncio.run(drain(backlog)) == [b"three"]
    backlog.close()
