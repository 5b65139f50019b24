"""Exchange of CPU shares within jobs: checks the nodes' capabilities, and builds the orders to the agents."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from testbed.bus.messages import Exchange, NodeFacts, WaitsFrom
from testbed.errors import UserError
from testbed.lab.job_guests import JobGuests
from testbed.scenario.schema import SharesTable
from testbed.scheduling.policies.view import ExchangeMode, Policy, SharingPolicy
from testbed.scheduling.policies.within import DividingPolicy

_SECRET_BYTES = 32


def check_sharing(policy: Policy, nodes: Mapping[str, NodeFacts], waits: WaitsFrom = "layer") -> None:
    """Raise `UserError` for a node without the capabilities that the policy's exchange of shares or caps needs.

    `nodes` are facts by name. With `waits` = `traffic` a node may also guess which tasks wait for which.
    """
    mode: ExchangeMode
    needs: dict[str, list[str]] = {}
    if isinstance(policy, DividingPolicy):
        mode = policy.within
    elif isinstance(policy, SharingPolicy):
        mode, needs = policy.exchange, {"let guests compete by shares": ["shares"]}
    else:
        return
    if mode == "distributed" and waits == "traffic":
        needs["note or guess which tasks wait for which"] = ["waits", "traffic"]
    elif mode == "distributed":
        needs["note which tasks wait for which"] = ["waits"]
    for node, facts in nodes.items():
        for what, capabilities in needs.items():
            if not set(capabilities) & set(facts.capabilities):
                raise UserError(
                    f"node {node}: its driver {facts.driver!r} cannot {what} here, as policy {policy.name} requires: "
                    f"expected one with the capability {' or '.join(capabilities)}, such as process with control groups"
                )


@dataclass(frozen=True, slots=True)
class Sharing:
    """Settings by which the jobs of a run exchange shares. The bank of a job is on the node of its first task.

    That node has a guest of the job for as long as the job runs, so no other node needs to be monitored for the bank.
    Each life of a job gets a new secret, which makes messages of an earlier life invalid. With `capped` shares are
    caps, and each new yield of a job begins a new life.
    """

    mode: ExchangeMode
    periods: SharesTable
    name: Callable[[int], str]  # of a node
    capped: bool = False

    @classmethod
    def under(cls, policy: Policy, periods: SharesTable, name: Callable[[int], str]) -> Sharing | None:
        """Return the settings under a policy, None if its jobs do not exchange shares."""
        if isinstance(policy, DividingPolicy):
            return cls(policy.within, periods, name, capped=True)
        return cls(policy.exchange, periods, name) if isinstance(policy, SharingPolicy) else None

    def order(self, job: JobGuests, nodes: Sequence[int]) -> Exchange | None:
        """Return the order for a new life of a job, None if its shares do not change."""
        if self.mode == "none" or len(nodes) < 2:  # a single task has no exchange partner
            return None
        names = [self.name(node) for node in nodes]
        waits = self.periods.waits if self.mode == "distributed" else "layer"  # a bank does not use the waits
        return Exchange(
            mode=self.mode, secret=secrets.token_hex(_SECRET_BYTES),
            period_s=self.periods.period_s, grant_s=self.periods.grant_s,
            nodes=dict(zip(job.guests, names, strict=True)), bank=names[0], waits=waits,
            addresses=() if waits == "layer" else tuple(spec.address for spec in job.specs),
            capped=self.capped,
        )  # fmt: skip
