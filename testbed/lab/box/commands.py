"""Runs programs of the system with a deadline; a failure has the program's last error message."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from testbed.errors import RunError, UserError

_PLACES = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
HANG_S = 120.0  # only against hanging of short calls: guests may occupy both cores meanwhile


class CommandError(RunError):
    """A program failed; `said` is its last line on standard error."""

    def __init__(self, argv: Sequence[str], ending: str, said: str) -> None:
        self.argv = tuple(argv)
        self.ending = ending
        self.said = said
        super().__init__(f"{' '.join(argv)}: {ending}{': ' if said else ''}{said}")


def program(name: str) -> str:
    """Return the path of a program, also from folders such as /usr/sbin; raises `UserError` if it is not installed."""
    found = shutil.which(name) or shutil.which(name, path=_PLACES)
    if found is None:
        raise UserError(f"{name}: no such program; the lab in a box needs it")
    return found


def run(*argv: str, timeout_s: float = HANG_S) -> str:
    """Run a program to its end and return its output; raises `CommandError`."""
    try:
        done = subprocess.run(  # noqa: S603  # arguments are a list, built from checked names
            (program(argv[0]), *argv[1:]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CommandError(argv, f"no end after {timeout_s:g} s", "") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise CommandError(argv, f"exit code {done.returncode}", lines[-1] if lines else "")
    return done.stdout
