"""What was left by whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that is there and belongs to nobody who lives; `kept` says why it was not removed, if it was not."""

    of: str
    what: str
    kept: str = ""
