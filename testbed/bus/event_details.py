"""Limits on the detail of a guest's event: a flat table of a few short fields, as journals store it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from testbed.bus.messages import MPI_BARRIER, GuestEvent
from testbed.errors import printable

MOST_EVENT_BYTES = 64 << 10
MOST_REASON_CHARS = 2000  # of a guest's failure: the last output of a program
_MOST_FIELDS, _MOST_CHARS = 24, 256
_GUEST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_REASON = "reason"


def fitting(detail: Mapping[str, object]) -> dict[str, object]:
    """Return the fields within the limits, with a long reason cut, and texts as single lines without control codes."""
    fits = {name: value for name, value in detail.items() if _WORD.fullmatch(name) and _fits(name, value)}
    return {name: _cut(fits[name]) for name in sorted(fits, key=lambda name: name != _REASON)[:_MOST_FIELDS]}


def told(event: str, detail: Mapping[str, object]) -> dict[str, object]:
    """Return the whole detail of an MPI barrier, which is not journalled, else the fields within the limits."""
    return dict(detail) if event == MPI_BARRIER else fitting(detail)


def named(event: GuestEvent) -> bool:
    """Whether guest and event have valid names."""
    return bool(_GUEST.fullmatch(event.guest) and _WORD.fullmatch(event.event))


def _fits(name: str, value: object) -> bool:
    if isinstance(value, str):
        return name == _REASON or len(value) <= _MOST_CHARS
    if isinstance(value, int):  # includes booleans
        return -(2**63) <= value < 2**63
    return value is None or (isinstance(value, float) and math.isfinite(value))


def _cut(value: object) -> object:
    if not isinstance(value, str):
        return value
    more = f"… ({len(value)} characters)" if len(value) > MOST_REASON_CHARS else ""
    return printable(value[:MOST_REASON_CHARS], MOST_REASON_CHARS) + more
