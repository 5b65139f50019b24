"""The suffix `/WITHIN=dps`: a policy gives each job a yield, and the tasks of a job divide the CPU of the job.

The policy before the suffix decides which jobs run where, and at which yield. The yield times the CPU need is the first
cap of each task. The agents of the job then move caps between its tasks, in the mode `within`: see `testbed.shares`,
whose shares are caps here. The sum of the caps stays as the policy has set it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from testbed.errors import UserError, shown
from testbed.scheduling.policies.view import Policy
from testbed.scheduling.policies.wrapped import WrappedPolicy

WithinMode = Literal["bank", "distributed"]
_SUFFIX = re.compile(r"(?P<policy>.*?)\s*/\s*within\s*=(?P<within>.*)", re.IGNORECASE | re.DOTALL)
_MODES: dict[str, WithinMode] = {"dps": "bank", "dps/bank": "bank", "dps/distributed": "distributed"}


@runtime_checkable
class DividingPolicy(Policy, Protocol):
    """A policy under which the tasks of a job divide the CPU of the job."""

    @property
    def within(self) -> WithinMode:
        """The mode in which caps move: through a bank of the job, or to the tasks that a task waits for."""


@dataclass(frozen=True, slots=True)
class WithinPolicy(WrappedPolicy):
    """A policy with the suffix `/WITHIN=dps`, or `/WITHIN=dps/distributed`; `policy` decides."""

    within: WithinMode

    @property
    def name(self) -> str:
        """The name of the policy, and the suffix."""
        return f"{self.policy.name}/WITHIN=dps" + ("" if self.within == "bank" else f"/{self.within}")


def split(name: str) -> tuple[str, WithinMode | None]:
    """Return the name of a policy without the suffix `/WITHIN=…`, and its mode; raises `UserError` for others."""
    match = _SUFFIX.fullmatch(name)
    if match is None:
        return name, None
    within = _MODES.get("".join(match["within"].split()).casefold())
    if within is None:
        raise UserError(
            f"policy {shown(name, 60)}: WITHIN={shown(match['within'].strip(), 30)}: expected dps or dps/distributed"
        )
    return match["policy"], within
