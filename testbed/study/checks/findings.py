"""The results of a check session as data: for the terminal, JSON, and JUnit properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from testbed.study.checks.interval import MedianInterval
from testbed.study.checks.judge import Better, Reference, Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure of one check on one machine: its runs (the second one confirms the first), and their verdict.

    `note` is the reason why there is no reference. `updated` means that the first run became the reference.
    """

    figure: str
    unit: str
    node: str
    machine: str
    condition: str
    runs: tuple[MedianInterval, ...]
    reference: Reference | None
    verdict: Verdict
    note: str = ""
    updated: bool = False

    @property
    def sentence(self) -> str:
        """The figure, its runs, its reference and its verdict in one sentence."""
        runs = ", then ".join(f"{run.value:.4g} [{run.low:.4g}, {run.high:.4g}]" for run in self.runs)
        measured = f"{self.figure} on {self.node}: {runs} {self.unit}"
        if self.updated:
            return f"{measured}: written as the reference"
        if self.reference is None:
            return f"{measured}: no reference: {self.note}"
        reference = self.reference
        limit = (
            f"at least {reference.low:.4g}" if reference.better is Better.HIGHER else f"at most {reference.high:.4g}"
        )
        return f"{measured}; reference {reference.value:.4g}, {limit}: {_SAYS[self.verdict]}"

    def as_dict(self) -> dict[str, object]:
        """Return the finding as data for JSON; values are in `unit`."""
        reference = self.reference
        return {
            "figure": self.figure,
            "unit": self.unit,
            "node": self.node,
            "machine": self.machine,
            "condition": self.condition,
            "verdict": self.verdict.value,
            "updated": self.updated,
            "note": self.note,
            "runs": [
                {"value": run.value, "low": run.low, "high": run.high, "values": list(run.values)} for run in self.runs
            ],
            "reference": None
            if reference is None
            else {
                "value": reference.value,
                "low": reference.low,
                "high": reference.high,
                "better": reference.better.value,
            },
        }

    def properties(self) -> list[tuple[str, object]]:
        """Return the finding as properties of a JUnit test case."""
        first = self.runs[0]
        found: list[tuple[str, object]] = [
            (self.figure, f"{first.value:.6g}"),
            (f"{self.figure}.interval", f"{first.low:.6g}..{first.high:.6g}"),
            (f"{self.figure}.unit", self.unit),
            (f"{self.figure}.verdict", "updated" if self.updated else self.verdict.value),
        ]
        if self.reference is not None:
            found.append((f"{self.figure}.reference", f"{self.reference.value:.6g}"))
        if len(self.runs) > 1:
            found.append((f"{self.figure}.second_run", f"{self.runs[1].value:.6g}"))
        return found


_SAYS = {
    Verdict.HELD: "held",
    Verdict.REGRESSED: "a regression, confirmed by the second run",
    Verdict.UNCONFIRMED: "UNCONFIRMED: worse than the reference, but the interval or the second run does not prove it",
    Verdict.IMPROVED: "improved, confirmed by the second run: --update-references makes it the reference",
    Verdict.NO_REFERENCE: "no reference",
}


@dataclass(slots=True)
class CheckRecord:
    """One check: its outcome, the reason, and its duration with set-up and tear-down in seconds.

    `doubts` are possible faults on a machine that was too busy to confirm them; on an idle one they fail the check.
    """

    check: str
    outcome: str = "passed"
    reason: str = ""
    elapsed_s: float = 0.0
    nodes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """Return the record as data for JSON."""
        return {
            "check": self.check,
            "outcome": self.outcome,
            "reason": self.reason,
            "elapsed_s": round(self.elapsed_s, 3),
            "nodes": self.nodes,
            "doubts": self.doubts,
            "figures": [finding.as_dict() for finding in self.findings],
        }


def of_verdict(findings: Sequence[Finding], *verdicts: Verdict) -> list[Finding]:
    """Return the findings with one of these verdicts, without those that became the reference."""
    return [finding for finding in findings if finding.verdict in verdicts and not finding.updated]
