"""The journal of a run as JSON lines: encodes events, and decodes those of any version."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from testbed.errors import TestbedError, UserError
from testbed.run.events import KINDS, Event, Known, Unknown, upgrade
from testbed.run.parts import READ_ERRORS, journal_parts, reason

T = TypeVar("T")
_MOST_CHARS = 40  # of an unknown kind, in messages
_log = logging.getLogger(__name__)
_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class BadEntryError(TestbedError):
    """A line that is no entry of a journal; the text says why, in one line."""


class _Times(msgspec.Struct):
    t_s: float
    trace_s: float = 0.0


def encode(event: Known) -> bytes:
    """Return the JSON line of an event, without a line break. A lone surrogate in a text becomes a question mark."""
    try:
        return _encoder.encode(event.entry if isinstance(event, Unknown) else event)
    except UnicodeEncodeError:  # names of files and the output of programs may contain lone surrogates
        data = event.entry if isinstance(event, Unknown) else msgspec.to_builtins(event)
        return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def plain(event: Known) -> dict[str, Any]:
    """Return an event as JSON data, as a reader without types has it."""
    return cast("dict[str, Any]", json.loads(encode(event)))


def decode(line: bytes | str) -> Known:
    """Read a line of a journal of any version; raises `BadEntryError` for one that is no entry of a journal."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _decode_other(line)


def _decode_other(line: bytes | str) -> Known:
    """Read a line that is no event of this version as it stands."""
    try:
        data = json.loads(line)
    except RecursionError:
        raise BadEntryError("not a JSON object: nested too deeply") from None
    except ValueError as error:
        raise BadEntryError(f"not a JSON object: {error}") from None
    if not isinstance(data, dict):
        raise BadEntryError(f"not a JSON object: {type(data).__name__}")
    return convert(data)


def convert(data: Mapping[str, Any]) -> Known:
    """Read the JSON data of an entry of a journal of any version; raises `BadEntryError`."""
    kind = data.get("kind")
    if not isinstance(kind, str):
        raise BadEntryError("not an entry of a run's journal: no `kind`")
    try:
        if kind in KINDS:
            return cast("Event", msgspec.convert(upgrade(data), KINDS[kind]))
        times = msgspec.convert(data, _Times)
    except (msgspec.ValidationError, OverflowError) as error:
        known = kind if kind in KINDS else repr(kind[:_MOST_CHARS])
        raise BadEntryError(f"not an entry of a run's journal: {known}: {error}") from None
    return Unknown(times.t_s, times.trace_s, kind, dict(data))


def is_decision(line: bytes) -> bool:
    """Whether a line is a decision; decisions are most of a journal's bytes."""
    return b'"kind":"decision"' in line[:80]


def never(_line: bytes) -> bool:
    """Skip no line."""
    return False


def read_events(path: Path, skip: Callable[[bytes], bool] = never) -> Iterator[Known]:
    """Yield the events of the journal that grows at `path`, the file events.jsonl, one by one, with all its full parts.

    A last line that was cut off by a crash is left out, with a warning. Lines for which `skip` holds are not decoded.
    Raises `UserError` with the line's number for a line that is no entry of a journal, and for a file that cannot be
    read or is missing.
    """
    return read_lines(path, decode, skip)


def read_lines(path: Path, read: Callable[[bytes], T], skip: Callable[[bytes], bool] = never) -> Iterator[T]:
    """Yield what `read` returns for each line, as `read_events` does; it raises `BadEntryError` for a bad line."""
    try:
        for file in journal_parts(path).each():
            for number, line in enumerate(file, 1):
                if not line.strip() or skip(line):
                    continue
                try:
                    entry = read(line)
                except BadEntryError as error:
                    if line.endswith(b"\n"):
                        raise UserError(f"{file.name}:{number}: {error}") from None
                    _log.warning("%s:%d: cut off after %d B: left out", file.name, number, len(line))
                    break
                yield entry
    except READ_ERRORS as error:
        raise UserError(f"{path}: cannot read: {reason(error)}; expected the journal of a run") from error
