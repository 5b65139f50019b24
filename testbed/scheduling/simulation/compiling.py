"""Machine code, or the kernels as they stand: whichever has a simulation done sooner.

Both produce the same bits. Compiling takes more than a minute where it was never done, and the twins do most traces
in seconds. So a loop without machine code at hand begins with its twin, checks at intervals how much it has done, and
switches to machine code, on the same arrays, once what is left would take the twin longer than to compile.
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
_LOOK_S = 1.0  # how long a twin runs before its speed is known


class When(Enum):
    """When a loop is compiled that is not cached."""

    AT_ONCE = "at once"
    IF_SOONER = "if that has the work done sooner"
    NEVER = "never"


def _nothing() -> None:
    """Announce nothing."""


@dataclass(frozen=True, slots=True)
class Compiling:
    """When to compile; `alike` simulations of such a trace follow, and `announce` is called before compiling midway.

    Machine code that is cached is used but with NEVER, as it takes no time.
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
        """Return the form for a loop of batch policies, which cannot go over midway; its time is known beforehand."""
        form = self.begin(function)
        twin_s = jobs * BATCH_TWIN_S_PER_JOB * (1 + self.alike)
        if form is function and self.when is When.IF_SOONER and can_compile() and twin_s > BATCH_COMPILE_S:
            self.announce()
            return compiled(function)
        return form


AT_ONCE = Compiling(When.AT_ONCE)
NEVER = Compiling(When.NEVER)
