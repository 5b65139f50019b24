"""Findings: the results of checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["ok", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "error")


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked property.

    A "note" is information about no fault. A fault of severity "warning" makes measurements worse; an "error" prevents
    a function. `mend` is the command that fixes the fault, or an instruction, if there is one. `values` have units in
    their names.
    """

    check: str
    severity: Severity
    found: str
    mend: str = ""
    values: Mapping[str, float | int | str] = field(default_factory=dict)


Check = Callable[[], Iterable[Finding]]


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the highest severity of the findings, ok if there are none."""
    return max((each.severity for each in findings), key=SEVERITIES.index, default="ok")
