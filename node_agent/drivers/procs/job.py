"""How the guests of an MPI job come together: the process manager beside one of them, a proxy in each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from node_agent.drivers.procs.child import ending
from node_agent.drivers.procs.environment import environment, tethered
from node_agent.drivers.procs.guest import ProcessGuest
from node_agent.drivers.procs.hydra import LAUNCHED_WITHIN_S, LaunchLines, manager_argv, proxy_argv
from node_agent.drivers.protocol import DriverError


async def open_job(lead: ProcessGuest, hosts: Sequence[str], address: str) -> dict[str, list[str]]:
    """Start the manager beside `lead`, reached at `address`; return the command line of each host's proxy."""
    lines = LaunchLines(lead.log.write)
    manager = lead.spawn(tethered(manager_argv(address, hosts)), environment(), lines.feed)
    try:
        async with asyncio.timeout(LAUNCHED_WITHIN_S):
            await asyncio.wait((lines.launched, manager.exited), return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        raise DriverError(f"mpiexec printed no launch lines within {LAUNCHED_WITHIN_S:g} s") from None
    if not lines.launched.done():
        raise DriverError(f"mpiexec: {ending(manager.exited.result())}; it printed: {lead.log.tail()}")
    launch = lines.launched.result()
    if len(launch) != len(hosts):
        raise DriverError(f"mpiexec printed {len(launch)} launch lines; expected {len(hosts)}")
    return dict(zip(hosts, launch, strict=True))


async def join_job(member: ProcessGuest, argv: Sequence[str], address: str) -> None:
    """Start a guest's proxy, by a command line that may come from another node; return when its rank is made."""
    checked = proxy_argv(argv)
    await member.enter(checked, environment(member.control, address), tied=True)
    await member.made()
