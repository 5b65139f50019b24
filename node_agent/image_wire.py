"""The protocol of an image transfer between two agents.

Request: one JSON line {"ticket", "image", "bytes", "digest", "offset"}. Answer: one JSON line {"bytes"} or {"error"},
then the bytes from the offset on. An error has a `code` if the image is missing.
"""

from __future__ import annotations

import msgspec

from testbed.bus.numbers import Count
from testbed.errors import shown

PATIENCE_S = 10.0  # for a connection, a line, and each piece of an image
LONGEST_LINE = 4096  # bytes
_SHOWN_CHARS = 300


class Request(msgspec.Struct, frozen=True):
    """The requested image, as named by the controller, and the offset."""

    ticket: str
    image: str
    bytes: Count
    digest: str
    offset: Count = 0


class Answer(msgspec.Struct, frozen=True):
    """The number of bytes that follow, or an error."""

    bytes: int = 0
    error: str | None = None
    code: str = ""


def line_of(record: Request | Answer) -> bytes:
    """Return a record as its line."""
    return msgspec.json.encode(record) + b"\n"


def shown_line(text: str) -> str:
    """Return text of the other end for a message: unchanged if it is one short line."""
    return text if len(text) <= _SHOWN_CHARS and text.isprintable() else shown(text, _SHOWN_CHARS)
