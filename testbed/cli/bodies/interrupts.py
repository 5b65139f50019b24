"""Runs work on a lab with signal handlers: the first signal stops it cleanly, the second one at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from rich.console import Console

from testbed.lab.virtual_time import VirtualTimeLoop

T = TypeVar("T")


def run_interruptible(work: Coroutine[Any, Any, T], console: Console, *, virtual_time: bool = False) -> T:
    """Run a coroutine in a new loop; raises `KeyboardInterrupt` once it has cleaned up after Ctrl-C or SIGTERM.

    A second signal ends the process at once; its agents and its broker then end by themselves.
    """

    async def main() -> T:
        task = asyncio.current_task()
        if task is not None:
            _interrupts(asyncio.get_running_loop(), task, console)
        return await work

    try:
        with asyncio.Runner(loop_factory=VirtualTimeLoop if virtual_time else None) as runner:
            return runner.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _interrupts(loop: asyncio.AbstractEventLoop, main: asyncio.Task[Any], console: Console) -> None:
    stops = False  # not `main.cancelling()`: that is true, too, while a timeout within the work has just ended

    def stop() -> None:
        nonlocal stops
        if stops:
            console.show_cursor()
            os._exit(130)
        stops = True
        console.print("stopping: guests are destroyed, measured data is kept; repeat to stop at once", style="yellow")
        main.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
