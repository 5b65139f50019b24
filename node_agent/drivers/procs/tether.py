"""Run as a script: `tether.py PARENT_PID ARGV...` becomes ARGV, and is killed when its parent dies.

For third-party programs, which do not ask the kernel for that themselves. Imports no package, so that it starts
quickly.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent and become the program."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == int(sys.argv[1]):  # it may have died before
        os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    main()
