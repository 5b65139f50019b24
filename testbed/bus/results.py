"""Results of finished jobs and the verdicts of their verification, exchanged by controller and result checker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.bus.messages import GuestSpec


@dataclass(frozen=True, slots=True)
class Claim:
    """The checksums that nodes reported for a finished job, one for each task."""

    job_id: int
    specs: tuple[GuestSpec, ...]
    checksums: Mapping[int, str]


@dataclass(slots=True)
class Verdicts:
    """The number of jobs with a right result, and the jobs with a wrong or unchecked result, with the reason."""

    right: int = 0
    wrong: dict[int, str] = field(default_factory=dict)
    unchecked: dict[int, str] = field(default_factory=dict)

    def summary(self) -> dict[str, object]:
        """Return the entry for summary.json: ids of jobs by verdict."""
        return {"right": self.right, "wrong": self.reasons(), "unchecked": self.unchecked_jobs()}

    def reasons(self) -> dict[str, str]:
        """Return why results are wrong, by the job's id as a text."""
        return {str(job_id): reason for job_id, reason in sorted(self.wrong.items())}

    def unchecked_jobs(self) -> dict[str, list[int]]:
        """Return the jobs that were not compared, by the reason."""
        reasons: dict[str, list[int]] = {}
        for job_id, reason in sorted(self.unchecked.items()):
            reasons.setdefault(reason, []).append(job_id)
        return reasons


@dataclass(frozen=True, slots=True)
class Comparison:
    """The input of `python -m node_agent.result_checks`, as JSON; that program prints `Verdicts`."""

    claims: tuple[Claim, ...]
    budget_s: float
