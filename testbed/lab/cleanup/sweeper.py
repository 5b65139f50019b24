"""Removes leftovers of killed agents: guests and other resources of their driver, images, folders, control groups.

A separate process of the agents' package, which has the drivers, removes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from subprocess import PIPE

import msgspec

from testbed.errors import RunError
from testbed.host.agents import Sweep, Swept, claims
from testbed.host.interpreter import module_argv

_LONGEST_LINE = 1 << 24
_log = logging.getLogger(__name__)


async def clean_up_after(pids: Collection[int]) -> None:
    """Remove the leftovers of this user's agents that were killed, given by process id; failures are logged."""
    dead = [(path, claim) for path, claim in claims() if claim.pid in pids and not claim.alive]
    if not dead:
        return
    try:
        async with sweeper() as sweep:
            for path, claim in dead:
                swept = await sweep(Sweep(claim, dry_run=False))
                for what, why in swept.failed:
                    _log.warning("agent %s was killed and has left %s: %s", claim.name, what, why)
                if not swept.failed:
                    path.unlink(missing_ok=True)
    except RunError as error:
        _log.warning("%s: `testbed cleanup` removes what killed agents have left", error)


@contextlib.asynccontextmanager
async def sweeper() -> AsyncIterator[Callable[[Sweep], Awaitable[Swept]]]:
    """Run the sweeper process inside the block; the yielded function raises `RunError` if the process fails."""
    command = module_argv("node_agent.leftovers")
    # a session of its own, so that Ctrl-C does not reach the process, which the block ends
    child = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, limit=_LONGEST_LINE, start_new_session=True
    )

    async def sweep(order: Sweep) -> Swept:
        if child.stdin is None or child.stdout is None:
            raise RunError(f"{' '.join(command)}: no pipes to it")
        child.stdin.write(msgspec.json.encode(order) + b"\n")
        with contextlib.suppress(ConnectionError):  # the process has ended; the read below detects that
            await child.stdin.drain()
        line = await child.stdout.readline()
        if not line:
            raise RunError(f"{' '.join(command)}: exit code {await child.wait()} at leftovers of {order.claim.name}")
        return msgspec.json.decode(line, type=Swept)

    try:
        yield sweep
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()  # the process has answered all requests
        await child.wait()
