"""Progress display of a campaign."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console

from testbed.cli.bodies.progress import Progress
from testbed.scheduling.campaign.work import UnitResult


class CampaignProgress:
    """Counts the units that have ended; the time left is estimated from the work done since the start."""

    def __init__(self, simulations: int, console: Console) -> None:
        self.simulations = simulations
        self.done = 0
        self.failed = 0
        self._shown = Progress("simulations", console)
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        """Show the bar."""
        self._shown.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bar."""
        self._shown.__exit__(kind, error, trace)

    def ended(self, result: UnitResult) -> None:
        """Count a unit that has ended, and update the display."""
        self.done += len(result.measures) + len(result.bounds)
        self.failed += len(result.faults)
        for fault in result.faults:
            self._shown.line(f"failed: {result.label}, {fault.what}: {fault.error}")
        settled = self.done + self.failed
        elapsed_s = time.monotonic() - self._began_s
        left_s = elapsed_s / max(settled, 1) * max(self.simulations - settled, 0)
        self._shown.show(settled, self.simulations, left_s, f"{self.failed} failed" if self.failed else "")
