"""Fences as an agent writes them for its keeper."""

from __future__ import annotations

import time
from pathlib import Path

from node_agent.fences import FENCES_FILE, Fences, clock_identity
from testbed.host.whole_files import write_whole


def fence(folder: Path, **seconds: float) -> None:
    """Write fences as an agent does: for each guest, in seconds from now."""
    fences = Fences(clock_identity())
    for guest, in_s in seconds.items():
        fences.place(guest, time.monotonic_ns() + int(in_s * 1e9))
    write_whole(folder / FENCES_FILE, fences.encode(), durable=False)
