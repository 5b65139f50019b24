"""What a check says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["ok", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "error")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    "note" is worth knowing and no fault; "warning" makes measurements worse; with an "error" something does not work.
    `mend` is the command that mends it, or what to do, where there is such a thing. `values` have units in their names.
    """

    check: str
    severity: Severity
    found: str
    mend: str = ""
    values: Mapping[str, float | int | str] = field(default_factory=dict)


Check = Callable[[], Iterable[Finding]]


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the severity of the worst of them, ok if there is none."""
    return max((each.severity for each in findings), key=SEVERITIES.index, default="ok")
