"""Removes the leftovers of this user's killed agents, unless a live agent or controller may need them."""

from __future__ import annotations

from collections.abc import Iterable

from testbed.host.agents import Claim, Sweep, claims
from testbed.lab.cleanup.held import held_by
from testbed.lab.cleanup.leftover import Leftover
from testbed.lab.cleanup.lost_runs import run_of
from testbed.lab.cleanup.sweeper import sweeper


async def clean_agents(*, dry_run: bool, force: bool) -> list[Leftover]:
    """Remove the leftovers of this user's killed agents, by their claims; with `dry_run` only list them.

    With `force` leftovers are also removed in labs whose lease is held or unknown. Leftovers of runs that can be
    resumed stay (`testbed.lab.cleanup.lost_runs`).
    """
    every = claims()
    alive = [claim for _, claim in every if claim.alive]
    dead = []
    for path, claim in every:
        if claim.alive or run_of(claim) is not None:
            continue
        if not any(other.state_dir == claim.state_dir for other in alive):
            dead.append((path, claim))
        elif not dry_run:  # the agent's successor on the same folder has removed everything
            path.unlink(missing_ok=True)
    found: list[Leftover] = []
    if not dead:
        return found
    async with sweeper() as sweep:
        for path, claim in dead:
            kept = _namesake(claim, alive) or ("" if force else await held_by(claim))
            swept = await sweep(Sweep(claim, dry_run=dry_run or bool(kept)))
            found += [Leftover(f"agent {claim.name}", what, kept) for what in swept.there]
            found += [Leftover(f"agent {claim.name}", what, why) for what, why in swept.failed]
            if not (dry_run or kept or swept.failed):
                path.unlink(missing_ok=True)
    return found


def _namesake(claim: Claim, alive: Iterable[Claim]) -> str:
    """Return why a live agent's guests could be confused with those of this claim; empty if there is no such agent."""
    for other in alive:
        if (other.node, other.driver, other.options) == (claim.node, claim.driver, claim.options):
            return f"agent {other.name} (process {other.pid}) has a node of the same name: end it first"
    return ""
