"""How far the guests of a job are, as samples and events tell: a measurement, which no journal has each second."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Progress:
    """Work units by task; `at_s` is the time of the last report, in wall seconds since the run began.

    `highest_s` is the highest virtual time that was derived from them, in trace seconds: it never goes back.
    `arriving` are tasks that are being taken over after a live migration, and have not progressed since. `ended` are
    tasks whose end has been looked at.
    """

    units: list[int]
    at_s: float = 0.0
    highest_s: float = 0.0
    arriving: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)

    def advance(self, task: int, units: int | None) -> None:
        """Take the work units that a task has done; it never goes back."""
        if units is not None:
            self.units[task] = max(self.units[task], units)

    def restart(self) -> None:
        """Forget all: its guests are gone."""
        self.units, self.highest_s = [0] * len(self.units), 0.0
        self.arriving.clear()
        self.ended.clear()
