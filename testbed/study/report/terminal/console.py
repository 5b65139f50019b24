"""The console on which commands print, which loses its reader without ending the work."""

from __future__ import annotations

import os

from rich.console import Console

NARROWEST = 140


class LastingConsole(Console):
    """A console that falls silent once nobody reads it, as behind `head`: a run is not ended because of its display."""

    def on_broken_pipe(self) -> None:
        """Print nothing from here on, and let nothing that is still buffered fail."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


def wide_console(*, stderr: bool = False) -> Console:
    """Return a console for tables: as wide as the terminal, and wide enough for them where there is none."""
    console = LastingConsole(stderr=stderr)
    return console if console.is_terminal else LastingConsole(stderr=stderr, width=max(console.width, NARROWEST))
