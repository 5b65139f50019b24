"""A resource left by a dead run or agent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leftover:
    """A resource without a live owner: `of` is its former owner; `kept` is the reason if it was not removed."""

    of: str
    what: str
    kept: str = ""
