"""The speed of a core of this node, by the programs that guests run."""

from __future__ import annotations

import asyncio
import contextlib

from node_agent.drivers.errors import DriverError
from node_agent.drivers.procs.child import ending
from node_agent.drivers.procs.environment import environment, program_argv, tethered

_SHOWN_CHARS = 500


async def calibrate_here(cpu_s: float) -> float:
    """Return the work units that one core does in a second of CPU time, by an uncapped process that takes `cpu_s`."""
    child = await asyncio.create_subprocess_exec(
        *tethered(program_argv("calibrate", f"{cpu_s:g}")), env=environment(), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await child.communicate()
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await asyncio.shield(child.wait())
    printed = output.decode(errors="replace").strip()
    with contextlib.suppress(ValueError):
        if child.returncode == 0:
            return float(printed.rpartition("\n")[2])
    raise DriverError(f"calibration: {ending(child.returncode or 0)}; it printed: {printed[-_SHOWN_CHARS:]}")
