"""The journal of a run as JSON lines: encodes events, and decodes those of any version.

From version 5 on each line ends with the key `crc`, the CRC-32 of the line without that key. The checksum reveals lines
that a crash has cut off or damaged, even if the disk has kept their length but not their content.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from testbed.errors import TestbedError, UserError
from testbed.run.events import KINDS, Event, Known, Unknown, upgrade
from testbed.run.parts import READ_ERRORS, journal_parts, reason

T = TypeVar("T")
_MOST_CHARS = 40  # of an unknown kind, in messages
_CRC = b',"crc":"'
_CRC_BYTES = len(_CRC) + 10  # with eight digits, a quotation mark and the end of the object
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


def seal(line: bytes) -> bytes:
    """Return a line with its checksum."""
    return b'%s%s%08x"}' % (line[:-1], _CRC, zlib.crc32(line))


def is_sealed(line: bytes) -> bool:
    """Whether a line has a checksum; raises `BadEntryError` for a wrong checksum."""
    end = len(line) - line.endswith(b"\n")
    begin = end - _CRC_BYTES
    if line[begin : begin + len(_CRC)] != _CRC:
        return False
    found = zlib.crc32(b"}", zlib.crc32(memoryview(line)[:begin]))
    expected = line[begin + len(_CRC) : end - 2]
    if b"%08x" % found != expected:
        raise BadEntryError(f"damaged: its checksum is {found:08x}, expected {expected.decode(errors='replace')}")
    return True


def plain(event: Known) -> dict[str, Any]:
    """Return an event as untyped JSON data."""
    return cast("dict[str, Any]", json.loads(encode(event)))


def decode(line: bytes | str) -> Known:
    """Decode a line of a journal of any version; raises `BadEntryError` for a line that is no journal entry."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _decode_other(line)


def _decode_other(line: bytes | str) -> Known:
    """Decode a line that is not an event of this version in its present form."""
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
    """Convert the JSON data of an entry of a journal of any version; raises `BadEntryError`."""
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

    Last lines that a crash has cut off or damaged are left out, with a warning. Lines for which `skip` returns true are
    not decoded. Raises `UserError` with the line's number for any other line that is no journal entry, and for a file
    that cannot be read or is missing.
    """
    return read_lines(path, decode, skip)


def read_lines(path: Path, read: Callable[[bytes], T], skip: Callable[[bytes], bool] = never) -> Iterator[T]:
    """Yield the result of `read` for each line, as `read_events`; `read` raises `BadEntryError` for a bad line."""
    try:
        for file in journal_parts(path).each():
            sealed = False
            lines = enumerate(file, 1)
            for number, line in lines:
                if not line.strip() or skip(line):
                    continue
                try:
                    sealed = _check(line, sealed=sealed)
                    entry = read(line)
                except BadEntryError as error:
                    if _is_torn(line, (more for _, more in lines), sealed=sealed):
                        _log.warning("%s:%d: cut off after %d B: left out", file.name, number, len(line))
                        break
                    raise UserError(f"{file.name}:{number}: {error}") from None
                yield entry
    except READ_ERRORS as error:
        raise UserError(f"{path}: cannot read: {reason(error)}; expected the journal of a run") from error


def _check(line: bytes, *, sealed: bool) -> bool:
    """Check a line's checksum; return whether it has one. It must have one if earlier lines have (`sealed`)."""
    if is_sealed(line):
        return True
    if sealed:
        raise BadEntryError("damaged: it has no checksum, unlike the lines before it")
    return False


def _is_torn(bad: bytes, following: Iterable[bytes], *, sealed: bool) -> bool:
    """Whether a crash can have left a bad line: no whole entry follows it.

    Without checksums only a line without its line break is known to be cut off.
    """
    if not sealed:
        return not bad.endswith(b"\n")
    return not any(is_whole(line) for line in following)


def is_whole(line: bytes) -> bool:
    """Whether a line, with its line break, has the checksum of its content."""
    try:
        return line.endswith(b"\n") and is_sealed(line)
    except BadEntryError:
        return False
