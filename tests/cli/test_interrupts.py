"""Signals during a run: the first one lets it clean up, whatever it was doing; the second one ends it at once."""

from __future__ import annotations

import subprocess
import sys

from support.live import HANG_S

PROGRAM = """
import asyncio, os, signal
from rich.console import Console
from testbed.cli.bodies.interrupts import run_interruptible

async def work():
    asyncio.current_task().cancel()  # as asyncio.timeout does when its time is over
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            if {again}:
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.Event().wait()
            print("cleaned up", flush=True)

try:
    run_interruptible(work(), Console(stderr=True))
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def run(*, again: bool) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(again=again)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=HANG_S)


def test_the_first_signal_lets_a_run_clean_up_even_while_a_timeout_within_it_ends() -> None:
    """Such a run once ended at once, with exit code 130 and without its summary."""
    done = run(again=False)
    assert (done.returncode, done.stdout) == (130, "cleaned up\n"), done.stderr
    assert "stopping: guests are destroyed, measured data is kept" in done.stderr


def test_the_second_signal_ends_it_at_once() -> None:
    done = run(again=True)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
