"""The join of an MPI job's guests: each agent starts its own rank and serves it as process manager."""

from __future__ import annotations

from node_agent.drivers.procs.environment import environment, program_argv, rank_environment
from node_agent.drivers.procs.guest import ProcessGuest


async def join_job(member: ProcessGuest, session: str, address: str) -> None:
    """Start a guest's rank; return when it has its memory, which is after all ranks have passed a barrier."""
    manager = await member.open_mpi(session)
    program = member.spec.program
    ranks = rank_environment(manager, program.rank, program.ranks, address)
    await member.enter(program_argv(), environment(member.control) | ranks)
    await member.made()
