"""A recorder for tests: it lets one rank of an MPI job pass the last barrier, and then kills the controller.

Before that, the recorder stops this rank. The rank ends when the test continues it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import psutil

from testbed.bus.messages import RankKeys
from testbed.errors import TestbedError
from testbed.lab.mpi_exchange import MpiExchange, MpiSession

PROGRAM = ["-P", "-m", "node_agent.programs"]
_pass_at = MpiExchange._pass_at


def _stop_first_rank() -> None:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the process has just ended
            if child.cmdline()[1:] == PROGRAM and child.environ().get("PMI_RANK") == "0":
                child.suspend()
                Path(os.environ["DFRS_HALF_PASSING"]).write_text(str(child.pid))


async def _pass_first_rank(
    self: MpiExchange, node: int, session: MpiSession, guest: str, number: int, keys: Sequence[RankKeys]
) -> TestbedError | None:
    if session.starting:
        return await _pass_at(self, node, session, guest, number, keys)
    if guest != session.live.guests[0]:
        await asyncio.Event().wait()
    _stop_first_rank()
    await _pass_at(self, node, session, guest, number, keys)
    os.kill(os.getpid(), signal.SIGKILL)
    return None


class HalfPassing:
    """Acts if DFRS_HALF_PASSING is set to the path of a file for the stopped process: not in the resumed run."""

    def open(self, path: Path, manifest: dict[str, object]) -> None:
        """See `testbed.measure.recorders`."""
        if "DFRS_HALF_PASSING" in os.environ:
            mock.patch.object(MpiExchange, "_pass_at", _pass_first_rank).start()  # until this process is killed

    def journal(self, entry: dict[str, object]) -> None:
        """See `testbed.measure.recorders`."""

    def point(self, *point: object) -> None:
        """See `testbed.measure.recorders`."""

    def close(self) -> None:
        """See `testbed.measure.recorders`."""
