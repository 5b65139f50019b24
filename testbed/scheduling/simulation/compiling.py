"""Choice between machine code and plain kernels: whichever completes a simulation sooner.

Both produce the same bits. Compiling takes more than a minute if nothing is cached, and the twins simulate most traces
in seconds. So a loop without cached machine code begins with its twin, and checks its progress at intervals. It
switches to machine code, on the same arrays, once the rest would take the twin longer than the compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from testbed.scheduling.compiler import can_compile, compiled, fastest, is_cached

F = TypeVar("F", bound=Callable[..., Any])

COMPILE_S = 100.0  # CPU seconds for all kernels of the event loop, on one core of 2020
BATCH_COMPILE_S = 8.0  # and for the loop of batch policies
BATCH_TWIN_S_PER_JOB = 1.1e-4  # EASY
_LOOK_S = 1.0  # time for which a twin runs before its speed is known


class When(Enum):
    """When to compile a loop whose machine code is not cached."""

    AT_ONCE = "at once"
    IF_SOONER = "if that has the work done sooner"
    NEVER = "never"


def _nothing() -> None:
    """Announce nothing."""


@dataclass(frozen=True, slots=True)
class Compiling:
    """When to compile; `alike` similar simulations follow, and `announce` is called before a compilation midway.

    Cached machine code is used except with NEVER, as loading it takes almost no time.
    """

    when: When
    alike: int = 0
    announce: Callable[[], None] = _nothing

    def begin(self, function: F) -> F:
        """Return the form of a kernel to begin with."""
        if self.when is When.AT_ONCE:
            return fastest(function)
        if self.when is When.IF_SOONER and can_compile() and is_cached(function):
            return compiled(function)
        return function

    def is_sooner(self, spent_s: float, done_frac: float) -> bool:
        """Whether to compile now: a twin took `spent_s` for `done_frac` of its simulation."""
        if self.when is not When.IF_SOONER or spent_s < _LOOK_S or not can_compile():
            return False
        left_frac = 1.0 - done_frac + self.alike
        return spent_s * left_frac > COMPILE_S * done_frac

    def begin_batch(self, function: F, jobs: int) -> F:
        """Return the form for a loop of batch policies, which cannot switch midway, but has a known time."""
        form = self.begin(function)
        twin_s = jobs * BATCH_TWIN_S_PER_JOB * (1 + self.alike)
        if form is function and self.when is When.IF_SOONER and can_compile() and twin_s > BATCH_COMPILE_S:
            self.announce()
            return compiled(function)
        return form


AT_ONCE = Compiling(When.AT_ONCE)
NEVER = Compiling(When.NEVER)
