"""The join of an MPI job's guests: each agent starts its own rank and serves it as process manager."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from node_agent.drivers.procs.environment import environment, program_argv, rank_environment
from node_agent.drivers.procs.guest import ProcessGuest


async def join_job(
    member: ProcessGuest, session: str, address: str, more: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Start a guest's rank, with `more` variables; return when it has its memory.

    That is after all ranks have passed a barrier.
    """
    manager = await member.open_mpi(session)
    program = member.spec.program
    ranks = rank_environment(manager, program.rank, program.ranks, address)
    await member.enter(program_argv(), environment(member.control) | ranks | dict(more))
    await member.made()
