"""What two agents say to each other when an image goes from one to the other.

Request: one JSON line {"ticket", "image", "bytes", "digest", "offset"}. Answer: one JSON line {"bytes"} or {"error"},
then the bytes from the offset on. With an error comes a `code` if the image is missing.
"""

from __future__ import annotations

import msgspec

from testbed.bus.numbers import Count
from testbed.errors import shown

PATIENCE_S = 10.0  # for a connection, a line, and each piece of an image
LONGEST_LINE = 4096  # bytes
_SHOWN_CHARS = 300


class Request(msgspec.Struct, frozen=True):
    """The image that is wanted, as the controller named it, and from where on."""

    ticket: str
    image: str
    bytes: Count
    digest: str
    offset: Count = 0


class Answer(msgspec.Struct, frozen=True):
    """How many bytes follow, or why none do."""

    bytes: int = 0
    error: str | None = None
    code: str = ""


def line_of(record: Request | Answer) -> bytes:
    """Return a record as its line."""
    return msgspec.json.encode(record) + b"\n"


def shown_line(text: str) -> str:
    """Return words of the other end for a message: as they are if they are one short line."""
    return text if len(text) <= _SHOWN_CHARS and text.isprintable() else shown(text, _SHOWN_CHARS)
