"""`python -m node_agent.programs`: the program inside a guest; with `calibrate CPU_S` the speed of a core instead."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def _settle() -> None:
    """End with the parent, even while stopped by a signal, and reduce the kernel's timer slack from 50 to 1 µs.

    The first process of a container ends with the container; its parent, which started or restored it, exits soon.
    """
    if os.getpid() != 1:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1000", encoding="ascii")


def _live() -> int:
    from node_agent.programs.control import Control  # noqa: PLC0415  # the first thing: the agent waits for `hello`

    control = Control(os.environ["DFRS_CONTROL"])
    try:
        task, image = control.receive_task()
        from node_agent.programs.life import Life  # noqa: PLC0415  # numpy and perhaps MPI: later than `hello`

        Life(control, task, None if image is None else Path(image)).run()
    except Exception as error:  # noqa: BLE001  # any error is reported to the agent, and the process ends
        from testbed.errors import TestbedError  # noqa: PLC0415  # only on this path

        if not isinstance(error, TestbedError):
            traceback.print_exc()
        control.say("error", message=str(error) or type(error).__name__)
        return 1
    return 0


def main() -> int:
    """Run what the arguments ask for; return the exit code."""
    _settle()
    if sys.argv[1:2] == ["calibrate"]:
        from node_agent.programs.calibrate import units_per_core_s  # noqa: PLC0415  # numpy: only here

        sys.stdout.write(f"{units_per_core_s(float(sys.argv[2])):.3f}\n")
        return 0
    return _live()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # at once: MPI may have been left uninitialised, and there is nothing to clean up
