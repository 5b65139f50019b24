"""An asyncio event loop in virtual time: its clock jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from testbed.bus.limits import MOST_EVENTS, MOST_IDLE_TURNS
from testbed.errors import UserError

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that returns at once, and counts the time that the loop would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed_s = 0.0
        self.jumps_left = MOST_EVENTS
        self.turns_left = MOST_IDLE_TURNS

    def _count(self, *, jumped: bool) -> None:
        """Count an iteration of the loop; raise `UserError`, once, when a run has more events than is practical."""
        self.turns_left = MOST_IDLE_TURNS if jumped else self.turns_left - 1
        self.jumps_left -= jumped
        many = jumped and self.jumps_left == 0
        if many or self.turns_left == 0:
            found = f"{MOST_EVENTS} events" if many else f"{MOST_IDLE_TURNS} turns at one instant"
            raise UserError(
                f"dry run: {found} by virtual second {self.elapsed_s:g}, and no end: expected a larger time_scale or "
                "period_s, or a shorter trace"
            )

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready events; without any, advance the time by `timeout` seconds."""
        ready = super().select(0)
        self._count(jumped=bool(not ready and timeout))
        if ready or timeout == 0:
            return ready
        if timeout is None:  # only an event from outside, such as a signal, can continue the loop
            return super().select(None)
        self.elapsed_s += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time; for code that waits only through the loop, without sockets and threads."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        # a tiny amount is added so that rounding does not delay a timer that is due
        return self._jumping.elapsed_s + 1e-9

    def run_in_executor(self, *_args: object) -> Any:
        """Raise `RuntimeError`, as virtual time would advance arbitrarily far while a thread works."""
        raise RuntimeError("no threads in virtual time")


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
