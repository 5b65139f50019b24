"""The claim of an agent in the registry of agents, and the budget of its driver."""

from __future__ import annotations

import os
from pathlib import Path

from node_agent.drivers.protocol import PREFIX, NodeBudget
from testbed.host.agents import Claim
from testbed.host.process_identity import boot_id, start_ticks


def own_claim(
    budget: NodeBudget, lab: str, driver: str, options: dict[str, str], broker: str, tls_dir: Path | None,
    *, ephemeral: bool,
) -> Claim:  # fmt: skip
    """Return the claim of this process."""
    return Claim(
        lab, budget.node, driver, options, budget.cpus, budget.memory_mib, str(budget.state_dir),
        str(budget.image_dir), budget.address, broker, str(tls_dir or ""), ephemeral, os.getpid(),
        start_ticks(os.getpid()) or 0, boot_id(),
    )  # fmt: skip


def budget_of(claim: Claim) -> NodeBudget:
    """Return the budget with which the driver of an agent was opened."""
    return NodeBudget(
        claim.node, claim.cpus, claim.memory_mib, Path(claim.state_dir), Path(claim.image_dir), claim.address, PREFIX
    )  # fmt: skip
