"""Suffixes of names of DFRS policies that change how jobs share CPU: `/WEIGHTS=jobs`, `/LEAST=jobs`, `/DECAY=s`."""

from __future__ import annotations

import re

from testbed.errors import UserError, shown
from testbed.scheduling.policies.dfrs import DfrsPolicy
from testbed.scheduling.policies.state import OPT_MIN, PACK_FOR_STRETCH

_SUFFIX = re.compile(r"(?P<policy>.*?)(?P<parts>(?:/(?:weights|least|decay)=[^/]*)+)", re.IGNORECASE | re.DOTALL)
_VALUES = {"weights": "jobs", "least": "jobs", "decay": r"(?P<s>[1-9]\d{0,8}(?:\.\d+)?)"}
_EXPECTED = (
    "expected after a policy with OPT=MIN, at most once each, /WEIGHTS=jobs, /LEAST=jobs, and /DECAY= seconds of "
    "virtual time at which a job has half its weight, such as GreedyPM */per/OPT=MIN/WEIGHTS=jobs/DECAY=3600"
)


def split(name: str) -> tuple[str, dict[str, float]] | None:
    """Return the name of a policy without these suffixes, and the value of each; None without any.

    Raises `UserError` for suffixes that are invalid or repeated.
    """
    match = _SUFFIX.fullmatch("".join(name.split()))
    if match is None:
        return None
    found: dict[str, float] = {}
    for part in match["parts"].split("/")[1:]:
        key, _, value = part.casefold().partition("=")
        fits = re.fullmatch(_VALUES[key], value)
        if fits is None or key in found:
            raise UserError(f"policy {shown(name, 60)}: {shown(part, 30)}: {_EXPECTED}")
        found[key] = float(value) if key == "decay" else 1.0
    return match["policy"], found


def with_suffixes(policy: DfrsPolicy, suffixes: dict[str, float]) -> DfrsPolicy:
    """Return the policy with its name and rules changed; raises `UserError` for a policy without OPT=MIN."""
    if policy.rules.optimise != OPT_MIN or policy.rules.periodic == PACK_FOR_STRETCH:
        raise UserError(f"policy {policy.name}: {_EXPECTED}")
    name = policy.name
    for key in ("weights", "least"):
        if key in suffixes:
            name += f"/{key.upper()}=jobs"
    decay_s = suffixes.get("decay", 0.0)
    if decay_s:
        name += f"/DECAY={repr(decay_s).removesuffix('.0')}"
    return DfrsPolicy(
        name, policy.rules._replace(weighs="weights" in suffixes, guarantees="least" in suffixes, decay_s=decay_s)
    )
