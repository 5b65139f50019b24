"""The suffix `/NEEDS=discovered`: a policy that uses estimated CPU needs instead of declared ones.

Decisions are those of the policy before the suffix. The view has the declared need of a job until the agents have an
estimate (`testbed.needs`), and from then on the estimate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from testbed.errors import UserError, shown
from testbed.scheduling.policies.view import Policy
from testbed.scheduling.policies.wrapped import WrappedPolicy

_SUFFIX = re.compile(r"(?P<policy>.*?)\s*/\s*needs\s*=(?P<needs>.*)", re.IGNORECASE | re.DOTALL)


@runtime_checkable
class WatchingPolicy(Policy, Protocol):
    """A policy that may use estimated needs."""

    @property
    def watches_needs(self) -> bool:
        """Whether views have estimated needs as soon as there are estimates."""


def watches_needs(policy: Policy) -> bool:
    """Whether the views of a policy have estimated needs."""
    return isinstance(policy, WatchingPolicy) and policy.watches_needs


@dataclass(frozen=True, slots=True)
class DiscoveringPolicy(WrappedPolicy):
    """A policy with the suffix `/NEEDS=discovered`."""

    @property
    def name(self) -> str:
        """The name of the policy, and the suffix."""
        return f"{self.policy.name}/NEEDS=discovered"

    @property
    def watches_needs(self) -> bool:
        """See `WatchingPolicy`."""
        return True


def split(name: str) -> str | None:
    """Return the name of a policy without the suffix, None without one; raises `UserError` for another value."""
    match = _SUFFIX.fullmatch(name)
    if match is None:
        return None
    if "".join(match["needs"].split()).casefold() != "discovered":
        raise UserError(
            f"policy {shown(name, 60)}: NEEDS={shown(match['needs'].strip(), 30)}: expected /NEEDS=discovered, last "
            "and without WITHIN="
        )
    return match["policy"]
