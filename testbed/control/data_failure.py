"""Cancellation of a run whose data cannot be written any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial

from testbed.lab.ended_by import ended_by
from testbed.measure.rundir import RunDirectory


@contextlib.asynccontextmanager
async def ended_by_failure(directory: RunDirectory) -> AsyncIterator[None]:
    """Cancel the block when the run directory cannot be written, and raise the directory's failure instead."""
    loop = asyncio.get_running_loop()
    async with ended_by() as end:
        directory.on_failure = lambda failure: _call_soon(loop, partial(end, failure))  # may run in any thread
        if directory.failure is not None:
            raise directory.failure
        yield


def _call_soon(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: there is no block to cancel
        loop.call_soon_threadsafe(act)
