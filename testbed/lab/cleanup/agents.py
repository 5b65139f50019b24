"""Leftovers of killed agents: guests and other resources of their driver, images, folders, control groups.

The agents' package, which has the drivers, removes them in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from subprocess import PIPE

import msgspec

from testbed.errors import RunError
from testbed.host.agents import Claim, Sweep, Swept, claims
from testbed.host.interpreter import module_argv
from testbed.lab.cleanup.held import held_by
from testbed.lab.cleanup.leftover import Leftover

_LONGEST_LINE = 1 << 24


async def clean_agents(*, dry_run: bool, force: bool) -> list[Leftover]:
    """Remove the leftovers of this user's killed agents, by their claims; with `dry_run` only list them.

    With `force` also in labs whose lease is held or unknown.
    """
    every = claims()
    alive = [claim for _, claim in every if claim.alive]
    dead = []
    for path, claim in every:
        if claim.alive:
            continue
        if not any(other.state_dir == claim.state_dir for other in alive):
            dead.append((path, claim))
        elif not dry_run:  # its successor has removed all of it
            path.unlink(missing_ok=True)
    found: list[Leftover] = []
    if not dead:
        return found
    async with _sweeper() as sweep:
        for path, claim in dead:
            kept = _namesake(claim, alive) or ("" if force else await held_by(claim))
            swept = await sweep(Sweep(claim, dry_run=dry_run or bool(kept)))
            found += [Leftover(f"agent {claim.name}", what, kept) for what in swept.there]
            found += [Leftover(f"agent {claim.name}", what, why) for what, why in swept.failed]
            if not (dry_run or kept or swept.failed):
                path.unlink(missing_ok=True)
    return found


def _namesake(claim: Claim, alive: Iterable[Claim]) -> str:
    """Return the live agent whose guests could be confused with this one's; empty if there is none."""
    for other in alive:
        if (other.node, other.driver, other.options) == (claim.node, claim.driver, claim.options):
            return f"agent {other.name} (process {other.pid}) has a node of the same name: end it first"
    return ""


@contextlib.asynccontextmanager
async def _sweeper() -> AsyncIterator[Callable[[Sweep], Awaitable[Swept]]]:
    """Run the agents' command inside the block; the yielded function raises `RunError` if it fails."""
    command = module_argv("node_agent.leftovers")
    # a session of its own keeps the terminal's Ctrl-C from it: the block ends it
    child = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, limit=_LONGEST_LINE, start_new_session=True
    )

    async def sweep(order: Sweep) -> Swept:
        if child.stdin is None or child.stdout is None:
            raise RunError(f"{' '.join(command)}: no pipes to it")
        child.stdin.write(msgspec.json.encode(order) + b"\n")
        with contextlib.suppress(ConnectionError):  # it has ended
            await child.stdin.drain()
        line = await child.stdout.readline()
        if not line:
            raise RunError(f"{' '.join(command)}: exit code {await child.wait()} at what {order.claim.name} left")
        return msgspec.json.decode(line, type=Swept)

    try:
        yield sweep
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()  # it has answered all requests
        await child.wait()
