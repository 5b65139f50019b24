"""Sleep intervals of a rank that polls for messages: MPI's own wait functions poll at full speed.

`naps.h` has the same for the programs of virtual machines.
"""

from __future__ import annotations

import math

_FIRST_S = 20e-6
_SHORT_S = 1e-3
LONGEST_S = 50e-3
FORESEEN_S = 0.5  # limit of the first interval: messages that come sooner than before are found that late
_LATE_FRAC = 0.05


class Naps:
    """The sleep intervals of one wait.

    The intervals are short at first, so that a quick answer is found quickly, and then grow up to a twentieth of the
    time slept: a message is found at most a millisecond or 5 % of the wait late.

    Each poll takes up to 0.1 ms of CPU time, as the core wakes up for it. So a rank sleeps through half of the time
    that it waited at the same place of the iteration before (`last_s`), at most `FORESEEN_S`. Without this, the polls
    of iterations of a second take 0.6 % of a core, which is a third of the CPU time of a rank with a small part of a
    node.
    """

    def __init__(self, last_s: float = 0.0) -> None:
        self._next_s = min(max(_FIRST_S, last_s / 2), FORESEEN_S)
        self._foreseen = self._next_s > _FIRST_S  # all naps so far
        self._limited = False
        self._slept_s = 0.0

    def next_s(self, longest_s: float = math.inf) -> float:
        """Return the length of the next interval."""
        length_s = min(self._next_s, longest_s)
        self._limited = self._limited or length_s < self._next_s
        self._foreseen = self._foreseen and self._slept_s == 0.0
        self._slept_s += length_s
        self._next_s = min(1.5 * length_s, max(_SHORT_S, min(_LATE_FRAC * self._slept_s, LONGEST_S)))
        return length_s

    def waited_s(self) -> float:
        """Return the time slept, as `last_s` of the next wait.

        It is 0 if the messages may have come long before the end, or if `longest_s` has limited an interval.
        """
        return 0.0 if self._foreseen or self._limited else self._slept_s
