"""Leftovers and their former owners."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leftover:
    """A resource without a live owner; `kept` is the reason if it was not removed."""

    of: str
    what: str
    kept: str = ""
