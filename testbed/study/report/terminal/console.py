"""The console for the output of commands, which survives a closed pipe so that the command continues."""

from __future__ import annotations

import os

from rich.console import Console

NARROWEST = 140


class LastingConsole(Console):
    """A console that becomes silent after a broken pipe, as with `head`, so that the display does not end a run."""

    def on_broken_pipe(self) -> None:
        """Print nothing from now on, and discard the buffered output, whose flush would fail."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


def wide_console(*, stderr: bool = False) -> Console:
    """Return a console for tables: as wide as the terminal, or at least `NARROWEST` columns without a terminal."""
    console = LastingConsole(stderr=stderr)
    return console if console.is_terminal else LastingConsole(stderr=stderr, width=max(console.width, NARROWEST))
