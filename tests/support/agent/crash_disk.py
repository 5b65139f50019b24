"""States of a folder after a crash: recorded operations on its files, replayed up to any of them.

`Recording` records the operations in a folder while it is active: data, syncs, new names, renames and removals, in
order. It takes a snapshot of the folder around each of these calls, so it detects writes by any means. `Left` is the
state after a crash. `killed` yields states after the end of the process at any byte; the kernel still has all written
data. `unpowered` yields states after a loss of power. They have the names of the last sync of the folder, and any
number of the later changes, in order. The data of each file is the synced data, the written data, or a torn half.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_EVERY_BYTE = 24  # writes up to this size are cut at every byte, longer ones at this many of their bytes
Names = dict[str, int]


@dataclass(frozen=True)
class Data:
    """The content of a file has changed."""

    file: int
    before: bytes
    after: bytes


@dataclass(frozen=True)
class SyncFile:
    """The data of a file is durable."""

    file: int


@dataclass(frozen=True)
class SyncFolder:
    """The names in the folder are durable."""


@dataclass(frozen=True)
class Renamed:
    """The names in the folder have changed: a file was made, renamed or removed."""

    after: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Mark:
    """An event that is not an operation on files, such as a reply."""

    word: str


Event = Data | SyncFile | SyncFolder | Renamed | Mark


@dataclass(frozen=True)
class Left:
    """The files after a crash, and the marks before it."""

    files: dict[str, bytes]
    marks: frozenset[str]
    where: str

    def lay_out(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


@dataclass
class Recording:
    """Operations on the files of a folder, in their order."""

    folder: Path
    events: list[Event] = field(default_factory=list)
    first: dict[str, bytes] = field(default_factory=dict)  # the files at the beginning, which are durable
    _first: Names = field(default_factory=dict)
    _ids: dict[int, int] = field(default_factory=dict)  # by inode
    _names: Names = field(default_factory=dict)
    _contents: dict[int, bytes] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.RLock)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def active(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._look()
        self._first = dict(self._names)
        self.first = {name: self._contents[file] for name, file in self._names.items()}
        self.events.clear()
        with pytest.MonkeyPatch.context() as patch:
            for name in ("write", "replace", "rename", "unlink"):
                patch.setattr(os, name, self._seen(getattr(os, name)))
            for name in ("fsync", "fdatasync"):
                patch.setattr(os, name, self._synced(getattr(os, name)))
            yield
        self._look()

    def mark(self, word: str) -> None:
        with self._lock:
            self._look()
            self.events.append(Mark(word))

    def _seen(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            with self._lock:
                self._look()
                result = real(*arguments, **more)
                self._look()
                return result

        return call

    def _synced(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            with self._lock:
                self._look()
                real(descriptor)
                inode = os.fstat(descriptor).st_ino
                if inode == self.folder.stat().st_ino:
                    self.events.append(SyncFolder())
                elif inode in self._ids:
                    self.events.append(SyncFile(self._ids[inode]))

        return call

    def _look(self) -> None:
        """Record the changes since the last snapshot: first the data of files, then their names."""
        names: Names = {}
        inodes = {}
        for path in sorted(self.folder.iterdir()):
            if path.is_file():
                inode = path.stat().st_ino
                inodes[inode] = path
                names[path.name] = self._ids.setdefault(inode, next(self._numbers))
        self._ids = {inode: file for inode, file in self._ids.items() if inode in inodes}
        if names != self._names:
            self._names = names
            self.events.append(Renamed(tuple(names.items())))
        for inode, path in inodes.items():
            file, content = self._ids[inode], path.read_bytes()
            before = self._contents.get(file, b"")
            if content != before or file not in self._contents:
                self._contents[file] = content
                if content:
                    self.events.append(Data(file, before, content))

    # --- crashes

    def killed(self) -> Iterator[Left]:
        """Yield the files that remain after a kill at each operation, and at each byte of the written data."""
        names, contents, marks = self._begin()
        yield self._left(names, contents, marks, "killed at the beginning")
        for number, event in enumerate(self.events):
            where = f"killed at {number}: {_shown(event)}"
            if isinstance(event, Data):
                for size in _sizes(event):
                    yield self._left(
                        names, {**contents, event.file: event.after[:size]}, marks, f"{where}, {size} bytes"
                    )
            names, contents, marks = _apply(event, names, contents, marks)
            yield self._left(names, contents, marks, where)

    def unpowered(self) -> Iterator[Left]:
        """Yield the possible states after a loss of power at each operation."""
        names, contents, marks = self._begin()
        pending = [names]  # the names that a sync has made durable, and all later ones, in order
        synced = dict(contents)
        for number, event in enumerate(self.events):
            names, contents, marks = _apply(event, names, contents, marks)
            match event:
                case SyncFolder():
                    pending = [names]
                case SyncFile():
                    synced[event.file] = contents.get(event.file, b"")
                case Renamed():
                    pending.append(names)
            seen: set[tuple[tuple[str, bytes], ...]] = set()
            for there in pending:
                files = sorted(set(there.values()))
                choices = [_torn(synced.get(file, b""), contents.get(file, b"")) for file in files]
                for chosen in itertools.product(*choices):
                    left = self._left(
                        there, dict(zip(files, chosen, strict=True)), marks, f"no power after {number}: {_shown(event)}"
                    )
                    if (key := tuple(sorted(left.files.items()))) not in seen:
                        seen.add(key)
                        yield left

    def _begin(self) -> tuple[Names, dict[int, bytes], frozenset[str]]:
        return dict(self._first), {file: self.first[name] for name, file in self._first.items()}, frozenset()

    @staticmethod
    def _left(names: Names, contents: dict[int, bytes], marks: frozenset[str], where: str) -> Left:
        return Left({name: contents.get(file, b"") for name, file in names.items()}, marks, where)


def _apply(
    event: Event, names: Names, contents: dict[int, bytes], marks: frozenset[str]
) -> tuple[Names, dict[int, bytes], frozenset[str]]:
    match event:
        case Data():
            contents = {**contents, event.file: event.after}
        case Renamed():
            names = dict(event.after)
        case Mark():
            marks = marks | {event.word}
    return names, contents, marks


def _sizes(event: Data) -> Iterator[int]:
    """Return the lengths at which a write is cut off; an overwriting write is cut off at the beginning only."""
    same = event.after.startswith(event.before)
    first, last = (len(event.before) if same else 0), len(event.after)
    step = max(1, (last - first) // _EVERY_BYTE)
    yield from range(first, last, step)
    yield last - 1


def _torn(synced: bytes, written: bytes) -> list[bytes]:
    if synced == written:
        return [written]
    return [synced, written[: (len(synced) + len(written)) // 2], written]


def _shown(event: Event) -> str:
    match event:
        case Data():
            return f"data of file {event.file}"
        case Renamed():
            return f"names {[name for name, _ in event.after]}"
        case _:
            return str(event)
