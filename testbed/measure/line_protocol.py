"""Parser of line protocol: the exact inverse of `testbed.measure.points.to_line`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from testbed.measure.points import Value

_NAME: Final = r"(?:[^, \\]|\\.)+"
_KEY: Final = r"(?:[^,= \\]|\\.)+"
_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_VALUE: Final = rf"(?:{_QUOTED}|[-+.0-9A-Za-z]+)"
_HEAD_TEXT: Final = rf"{_NAME}(?:,{_KEY}={_KEY})*"

_HEAD = re.compile(_HEAD_TEXT, re.DOTALL)
_LINE = re.compile(rf"({_HEAD_TEXT}) ({_KEY}={_VALUE}(?:,{_KEY}={_VALUE})*) (-?[0-9]+)", re.DOTALL)
_FIRST = re.compile(_NAME, re.DOTALL)
_TAG = re.compile(rf",({_KEY})=({_KEY})", re.DOTALL)
_FIELD = re.compile(rf"({_KEY})=({_VALUE})", re.DOTALL)
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_INT = re.compile(r"[-+]?[0-9]+i")
_BOOL: Final = {
    **dict.fromkeys(("t", "T", "true", "True", "TRUE"), True),
    **dict.fromkeys(("f", "F", "false", "False", "FALSE"), False),
}
# A backslash before any other character is literal, as everywhere in the protocol.
_ESCAPED_NAME = re.compile(r"\\([,= ])")  # InfluxDB has no other escapes in names and tags
_ESCAPED_TEXT = re.compile(r'\\(["\\])')


class LineError(ValueError):
    """A line is not a valid point; the message has the expected form."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point; `time_ns` is Unix time."""

    measurement: str
    tags: dict[str, str]
    fields: dict[str, Value]
    time_ns: int


def parse_line(line: str) -> Point:
    """Return the point of one whole line without its line break, or raise `LineError`."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise LineError(f"not a point: {_shortened(line)}: expected MEASUREMENT,TAG=VALUE FIELD=VALUE TIME_NS")
    time_ns = int(match[3])
    if not -(2**63) <= time_ns < 2**63:
        raise LineError(f"time {time_ns}: expected nanoseconds in 64 bits")
    fields = {_name(name): _value(text) for name, text in _FIELD.findall(match[2])}
    measurement, tags = _split_head(match[1])
    return Point(measurement, tags, fields, time_ns)


def parse_head(head: str) -> tuple[str, dict[str, str]]:
    """Return measurement and tags of the text before the fields, or raise `LineError`."""
    if _HEAD.fullmatch(head) is None:
        raise LineError(f"not a measurement with its tags: {_shortened(head)}")
    return _split_head(head)


def _split_head(head: str) -> tuple[str, dict[str, str]]:
    first = _FIRST.match(head)
    end = first.end() if first else 0
    tags = {_name(name): _name(value) for name, value in _TAG.findall(head, end)}
    return _name(head[:end]), tags


def _name(text: str) -> str:
    return _unescaped(text) if "\\" in text else text


@lru_cache(maxsize=1024)  # the text is nearly always the name of the run's one policy
def _unescaped(text: str) -> str:
    return _ESCAPED_NAME.sub(r"\1", text)


def _value(text: str) -> Value:
    if text[0] == '"':
        return _ESCAPED_TEXT.sub(r"\1", text[1:-1])
    if _FLOAT.fullmatch(text) and abs(number := float(text)) != float("inf"):
        return number
    if _INT.fullmatch(text) and -(2**63) <= (whole := int(text[:-1])) < 2**63:
        return whole
    if text in _BOOL:
        return _BOOL[text]
    raise LineError(f'field value {_shortened(text)}: expected 1.5, 15i, true or "text", finite and in 64 bits')


def _shortened(text: str, most: int = 60) -> str:
    return repr(text if len(text) <= most else text[: most - 1] + "…")
