"""The common form of all records on the bus: one JSON object each, with the protocol of its sender.

A reader ignores fields that it does not know and fills missing ones with their defaults, so a newer minor change needs
no new protocol. A record whose `v` is higher than `PROTOCOL` (`testbed.bus.version`) is refused.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from testbed.bus.numbers import MOST_TEXT_CHARS
from testbed.bus.version import PROTOCOL, named
from testbed.errors import TestbedError, printable


class BadRecordError(TestbedError):
    """A payload is not a valid record of its type; `topic` is its source."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = printable(topic)
        self.reason = printable(reason)  # a decoder's text, which may repeat a value chosen by the sender
        super().__init__(f"bad record on {self.topic}: {self.reason}")


class OtherProtocolError(BadRecordError):
    """A record has a protocol that this side cannot read; `protocol` and `release` identify it."""

    def __init__(self, topic: str, protocol: int, release: object) -> None:
        self.protocol = protocol
        self.release = release
        super().__init__(topic, f"{named(protocol, release)}; this side reads 1 to {PROTOCOL}")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of all published records."""

    v: int = PROTOCOL


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of values nested in a record."""


def make_printable(struct: msgspec.Struct, *fields: str) -> None:
    """Make texts of a struct, and those in its tuples and tables, single lines of bounded length without control codes.

    `__post_init__` calls this, because texts of a node reach screens, logs and reports on several paths.
    """
    for name in fields:
        value = getattr(struct, name)
        printed = _printable(value)
        if printed != value:
            msgspec.structs.force_setattr(struct, name, printed)


def _printable(value: object) -> object:
    if isinstance(value, str):
        return printable(value, MOST_TEXT_CHARS)
    if isinstance(value, tuple):
        return tuple(map(_printable, value))
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return value


T = TypeVar("T")


def convert(plain: object, kind: type[T]) -> T:
    """Read a part of a reply's result as `kind`, or raise `BadRecordError`, because an agent may send any value."""
    try:
        return msgspec.convert(plain, kind)
    except (msgspec.ValidationError, OverflowError) as error:
        raise BadRecordError("a reply", str(error)) from error


R = TypeVar("R", bound=Record)

_encoder = msgspec.json.Encoder()


def encode(record: Record) -> bytes:
    """Return the record as JSON.

    Plain data that JSON cannot hold is a `TypeError`. A NaN becomes null, which no reader accepts as a number.
    """
    return _encoder.encode(record)


class _Version(msgspec.Struct):
    v: int | None = None
    release: object = None


def decode(kind: type[R], payload: bytes | str, topic: str = "?", *, any_protocol: bool = False) -> R:
    """Read a record from any bytes, or raise `BadRecordError` with the reason.

    A record of a newer protocol raises `OtherProtocolError`; with `any_protocol` its known fields are read.
    """
    try:
        found = msgspec.json.decode(payload, type=_Version)
        if found.v is None:
            raise BadRecordError(topic, "it has no schema version `v`")
        if found.v < 1 or (found.v > PROTOCOL and not any_protocol):
            raise OtherProtocolError(topic, found.v, found.release)
        return msgspec.json.decode(payload, type=kind)
    except RecursionError:
        raise BadRecordError(topic, "nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadRecordError(topic, str(error)) from error
