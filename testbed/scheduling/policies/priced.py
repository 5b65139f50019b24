"""DFRS policies that weigh the cost of moves (suffix `/KNOWS=cost`) or limit their number (`/MOVES=k`).

Both suffixes change only the periodic passes; decisions on other events are the same as without the suffix. See
`testbed.scheduling.policies.priced_kernel` for the rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from testbed.errors import UserError, shown
from testbed.scheduling.policies.dfrs import DfrsPolicy
from testbed.scheduling.policies.kernel_policy import JobColumns, Kernels, decide_view, first_argument
from testbed.scheduling.policies.priced_kernel import PricedRules, decide
from testbed.scheduling.policies.state import NO_PASS
from testbed.scheduling.policies.view import NOT_PLACED, ClusterView, Decision, Event
from testbed.scheduling.policies.wrapped import WrappedPolicy

PRICED = Kernels(decide)
MANY = int(np.iinfo(np.int64).max)
_SUFFIX = re.compile(r"(?P<policy>.*?)(?P<parts>(?:/(?:knows|moves)=[^/]*)+)", re.IGNORECASE | re.DOTALL)
_COST = re.compile(r"cost(?::(?P<horizon_s>\d{1,9}(?:\.\d+)?))?", re.IGNORECASE)
_EXPECTED = (
    "expected, at most once each and last, /KNOWS=cost or /KNOWS=cost:seconds, the horizon, and /MOVES= jobs that a "
    "pass may move, such as GreedyPM */per/OPT=MIN/MINVT=600/KNOWS=cost/MOVES=2"
)


@dataclass(frozen=True, slots=True)
class PricedPolicy(WrappedPolicy):
    """A DFRS policy whose passes weigh the cost of moves over a horizon, or limit the number of moved jobs.

    `horizon_s` is None without `/KNOWS=cost`, and 0 if the horizon is the period; `most_moves` is None without a limit.
    """

    policy: DfrsPolicy
    horizon_s: float | None
    most_moves: int | None

    @property
    def name(self) -> str:
        """The name of the policy, and the suffixes."""
        knows = "" if self.horizon_s is None else "/KNOWS=cost"
        if self.horizon_s:
            knows += f":{repr(self.horizon_s).removesuffix('.0')}"
        return f"{self.policy.name}{knows}" + ("" if self.most_moves is None else f"/MOVES={self.most_moves}")

    @property
    def knows_costs(self) -> bool:
        """See `CostAwarePolicy`."""
        return self.horizon_s is not None

    @property
    def needs_columns(self) -> bool:
        """True, as the kernel needs the costs of moves."""
        return True

    @property
    def kernels(self) -> Kernels:
        """The kernels."""
        return PRICED

    @property
    def rules(self) -> PricedRules:
        """The numeric rules of the policy."""
        most = MANY if self.most_moves is None else self.most_moves
        return PricedRules(self.policy.rules, most, float(self.horizon_s or self.policy.rules.period_s))

    def decide(self, view: ClusterView, event: Event) -> Decision:
        """Return the decision on an event."""
        jobs = view.tasks.size
        unknown = np.full(jobs, np.nan)
        cost_s = unknown if view.move_cost_s is None else view.move_cost_s.copy()
        image_node = np.full(view.task_node.size, NOT_PLACED, dtype=np.int64)
        if view.image_node is not None:
            image_node = view.image_node.copy()
        columns = JobColumns(unknown, unknown, np.zeros(jobs, dtype=np.bool_), cost_s, image_node)
        return decide_view(self.kernels, first_argument(self, columns), view, event)


def split(name: str) -> tuple[str, float | None, int | None] | None:
    """Return the name of a policy without these suffixes, the horizon and the most moves; None without any.

    Raises `UserError` for suffixes that are invalid or repeated.
    """
    match = _SUFFIX.fullmatch("".join(name.split()))
    if match is None:
        return None
    horizon_s: float | None = None
    most_moves: int | None = None
    for part in match["parts"].split("/")[1:]:
        key, _, value = part.partition("=")
        cost = _COST.fullmatch(value)
        if key.casefold() == "knows" and horizon_s is None and cost is not None:
            horizon_s = float(cost["horizon_s"] or 0.0)
        elif key.casefold() == "moves" and most_moves is None and re.fullmatch(r"\d{1,6}", value):
            most_moves = int(value)
        else:
            raise UserError(f"policy {shown(name, 60)}: {shown(part, 30)}: {_EXPECTED}")
    return match["policy"], horizon_s, most_moves


def priced(policy: DfrsPolicy, horizon_s: float | None, most_moves: int | None) -> PricedPolicy:
    """Return the policy with these suffixes; raises `UserError` for a policy without passes."""
    if policy.rules.periodic == NO_PASS:
        raise UserError(
            f"policy {policy.name}: it has no periodic pass whose moves KNOWS= or MOVES= could change: expected one "
            "with /per or /stretch-per"
        )
    return PricedPolicy(policy, horizon_s, most_moves)
